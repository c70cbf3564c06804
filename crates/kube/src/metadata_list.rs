//! Listings that are cheap: what there is and in which version, and nothing more.

use kube::{api::ListParams, core::Request};
use serde::Deserialize;

use crate::{Error, Objects, Selector, objects::Object};

/// Objects in one page of a whole listing.
const PAGE: u32 = 500;

/// What a server's cache has. It may be old: it proves nothing, and is a reason to look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetadataList {
    /// The version of the listing.
    pub version: u64,
    /// The objects in it.
    pub objects: Vec<ObjectVersion>,
}

/// Which object it is, and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    /// Its namespace; empty for those that have none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its version.
    pub version: u64,
}

/// Whole objects, as they were at one moment.
#[derive(Clone, Debug, Default)]
pub struct Listing<K> {
    /// The version of the listing: what is newer cannot be in it.
    pub version: u64,
    /// The objects.
    pub objects: Vec<K>,
}

#[derive(Deserialize)]
struct List {
    metadata: Meta,
    /// `null` when there are none.
    items: Option<Vec<Item>>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Meta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
}

impl<K: Object> Objects<K> {
    /// Lists versions alone, from the server's cache.
    pub async fn list_metadata(&self, selector: &Selector) -> Result<MetadataList, Error> {
        let request = Request::new(K::url_path(&(), self.namespace()));
        let params = ListParams {
            field_selector: selector.fields.clone(),
            label_selector: selector.labels.clone(),
            ..ListParams::default()
        };
        let client = self.client().kube();
        let asked = async {
            let request = request.list_metadata(&params.match_any()).map_err(kube::Error::BuildRequest)?;
            client.request::<List>(request).await
        };
        let list = self.call("list", asked).await?;
        let objects = list.items.unwrap_or_default().into_iter().map(head).collect();
        Ok(MetadataList { version: number(&list.metadata.resource_version), objects })
    }

    /// Lists whole objects as they are now, in pages.
    pub async fn list(&self, selector: &Selector) -> Result<Listing<K>, Error> {
        let mut params = ListParams {
            field_selector: selector.fields.clone(),
            label_selector: selector.labels.clone(),
            limit: Some(PAGE),
            ..ListParams::default()
        };
        let mut objects = Vec::new();
        loop {
            let api = self.api();
            let page = self.call("list", api.list(&params)).await?;
            objects.extend(page.items);
            let version = number(page.metadata.resource_version.as_deref().unwrap_or_default());
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(Listing { version, objects });
            }
        }
    }
}

fn head(item: Item) -> ObjectVersion {
    let Meta { namespace, name, uid, resource_version } = item.metadata;
    ObjectVersion { namespace, name, uid, version: number(&resource_version) }
}

/// Versions are numbers, though clients are asked not to count on it; one that is none is older than all.
fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}
