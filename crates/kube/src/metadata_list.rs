//! Lists: cheap ones of metadata only, and paged ones of whole objects.

use kube::{api::ListParams, core::Request};
use serde::Deserialize;

use crate::{Error, Objects, Selector, objects::Object};

/// Objects in one page.
const PAGE_SIZE: u32 = 500;

/// The versions of all objects in the API server's cache. They may be stale: a difference proves nothing, but is a reason to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetadataList {
    /// The resource version of the list.
    pub version: u64,
    /// The objects.
    pub objects: Vec<ObjectVersion>,
}

/// An object's identity and version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The UID.
    pub uid: String,
    /// The resource version.
    pub version: u64,
}

/// A consistent list of objects.
#[derive(Clone, Debug, Default)]
pub struct ObjectList<K> {
    /// The resource version of the list: newer objects are not in it.
    pub version: u64,
    /// The objects.
    pub objects: Vec<K>,
}

#[derive(Deserialize)]
struct PartialObjectMetadataList {
    metadata: PartialObjectMeta,
    /// `null` when there are none.
    items: Option<Vec<PartialObjectMetadata>>,
}

#[derive(Deserialize)]
struct PartialObjectMetadata {
    metadata: PartialObjectMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PartialObjectMeta {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    #[serde(rename = "continue")]
    continue_token: String,
}

impl<K: Object> Objects<K> {
    /// Lists metadata only, from the API server's cache, in one response: the server does not page what it has in its cache.
    pub async fn list_metadata(&self, selector: &Selector) -> Result<MetadataList, Error> {
        let list = self.metadata_page(&list_params(selector).match_any()).await?;
        let objects = list.items.unwrap_or_default().into_iter().map(object_version).collect();
        Ok(MetadataList { version: parse_version(&list.metadata.resource_version), objects })
    }

    /// Lists metadata only, consistently and in pages, and keeps the objects for which `keep` holds: neither side holds more than
    /// a page of the others. Each page has the time limit of a call.
    pub async fn list_metadata_in_pages(
        &self,
        selector: &Selector,
        mut keep: impl FnMut(&ObjectVersion) -> bool + Send,
    ) -> Result<MetadataList, Error> {
        let mut params = list_params(selector).limit(PAGE_SIZE);
        let mut objects = Vec::new();
        loop {
            let page = self.metadata_page(&params).await?;
            let listed = page.items.unwrap_or_default().into_iter().map(object_version);
            objects.extend(listed.filter(|object| keep(object)));
            params.continue_token = Some(page.metadata.continue_token).filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(MetadataList { version: parse_version(&page.metadata.resource_version), objects });
            }
        }
    }

    async fn metadata_page(&self, params: &ListParams) -> Result<PartialObjectMetadataList, Error> {
        let request = Request::new(K::url_path(&(), self.namespace()));
        let client = self.client().kube();
        let request_list = async {
            let request = request.list_metadata(params).map_err(kube::Error::BuildRequest)?;
            client.request::<PartialObjectMetadataList>(request).await
        };
        self.call("list", request_list).await
    }

    /// Lists whole objects, consistently and in pages.
    pub async fn list(&self, selector: &Selector) -> Result<ObjectList<K>, Error> {
        let mut params = list_params(selector).limit(PAGE_SIZE);
        let mut objects = Vec::new();
        loop {
            let api = self.api();
            let page = self.call("list", api.list(&params)).await?;
            objects.extend(page.items);
            let version = parse_version(page.metadata.resource_version.as_deref().unwrap_or_default());
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(ObjectList { version, objects });
            }
        }
    }
}

fn list_params(selector: &Selector) -> ListParams {
    ListParams {
        field_selector: selector.fields.clone(),
        label_selector: selector.labels.clone(),
        ..ListParams::default()
    }
}

fn object_version(item: PartialObjectMetadata) -> ObjectVersion {
    let PartialObjectMeta { namespace, name, uid, resource_version, .. } = item.metadata;
    ObjectVersion { namespace, name, uid, version: parse_version(&resource_version) }
}

/// Parses a resource version. Versions are numbers, though clients should not rely on it; anything else counts as 0, the oldest.
fn parse_version(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}
