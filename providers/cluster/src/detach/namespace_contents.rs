//! Searches a namespace for objects of any kind that are not ours.

use std::collections::BTreeMap;

use serde::Deserialize;
use vk_kube::{Client, Error, Kind};

use super::LowerObject;

/// How many objects of a kind are examined. A namespace that only we use has fewer.
const LIST_LIMIT: usize = 500;

#[derive(Deserialize)]
struct ApiGroupList {
    groups: Vec<ApiGroup>,
}

#[derive(Deserialize)]
struct ApiGroup {
    name: String,
    #[serde(rename = "preferredVersion")]
    preferred: GroupVersion,
    #[serde(default)]
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
struct GroupVersion {
    #[serde(rename = "groupVersion")]
    group_version: String,
}

#[derive(Deserialize)]
struct ApiResourceList {
    resources: Vec<ApiResource>,
}

#[derive(Clone, Debug, Deserialize)]
struct ApiResource {
    name: String,
    kind: String,
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Deserialize)]
struct ObjectList {
    #[serde(default)]
    metadata: ListMeta,
    items: Option<Vec<ListedObject>>,
}

#[derive(Default, Deserialize)]
struct ListMeta {
    #[serde(default, rename = "continue")]
    more: String,
}

#[derive(Deserialize)]
struct ListedObject {
    metadata: ObjectName,
    #[serde(default, rename = "type")]
    type_: serde_json::Value,
}

#[derive(Deserialize)]
struct ObjectName {
    name: String,
}

// === impl ApiGroup ===

impl ApiGroup {
    /// The name of the group, and the paths of its versions, the preferred one first.
    fn into_paths(self) -> (String, Vec<String>) {
        let preferred = self.preferred.group_version;
        let others = self.versions.into_iter().map(|version| version.group_version);
        let others: Vec<String> = others.filter(|version| *version != preferred).collect();
        let all = std::iter::once(preferred).chain(others);
        (self.name, all.map(|version| format!("/apis/{version}")).collect())
    }
}

/// Why a namespace must stay; `None` if it contains nothing but `known` objects and those that every namespace has.
pub(crate) async fn why_in_use(lower: &Client, namespace: &str, known: &[LowerObject]) -> Option<String> {
    match find_foreign_object(lower, namespace, known).await {
        Ok(found) => found.map(|what| format!("it contains {what}, which is not ours")),
        Err((what, error)) => Some(format!("cannot list {what} in it: {error}")),
    }
}

async fn find_foreign_object(
    lower: &Client,
    namespace: &str,
    known: &[LowerObject],
) -> Result<Option<String>, (String, Error)> {
    let read = |what: &str| {
        let what = what.to_owned();
        move |error| (what, error)
    };
    let groups: ApiGroupList = lower.read("apis", "/apis").await.map_err(read("the API groups"))?;
    let core = (String::new(), vec!["/api/v1".to_owned()]);
    // Metrics are not stored objects.
    let others = groups.groups.into_iter().filter(|group| group.name != "metrics.k8s.io");
    for (group, paths) in std::iter::once(core).chain(others.map(ApiGroup::into_paths)) {
        let is_core = group.is_empty();
        for (path, resource) in listed_resources(lower, &paths).await?.into_values() {
            let url = format!("{path}/namespaces/{namespace}/{}?limit={LIST_LIMIT}", resource.name);
            let listing: ObjectList = match lower.read(&resource.name, &url).await {
                // Some advertised resources cannot be listed.
                Err(error) if error.kind == Kind::MethodNotAllowed => continue,
                answer => answer.map_err(read(&resource.name))?,
            };
            let foreign = listing.items.iter().flatten().find(|object| {
                let ours = is_core
                    && known.iter().any(|item| {
                        item.kind == resource.kind
                            && item.namespace.as_deref() == Some(namespace)
                            && item.name == object.metadata.name
                    });
                !ours && !is_default_object(is_core, &resource.kind, object)
            });
            if let Some(object) = foreign {
                return Ok(Some(format!("{} {}", resource.kind, object.metadata.name)));
            }
            if !listing.metadata.more.is_empty() {
                return Ok(Some(format!("more than {LIST_LIMIT} {}", resource.name)));
            }
        }
    }
    Ok(None)
}

/// The resources of a group that can be listed, each in the first version that has it: the preferred version need not have them all.
async fn listed_resources(
    lower: &Client,
    paths: &[String],
) -> Result<BTreeMap<String, (String, ApiResource)>, (String, Error)> {
    let mut found = BTreeMap::new();
    for path in paths {
        let answer = lower.read("apis", path).await;
        let resources: ApiResourceList = answer.map_err(|error| (path.clone(), error))?;
        for resource in resources.resources.into_iter().filter(is_listed) {
            found.entry(resource.name.clone()).or_insert_with(|| (path.clone(), resource));
        }
    }
    Ok(found)
}

fn is_listed(resource: &ApiResource) -> bool {
    let has = |verb: &str| resource.verbs.iter().any(|one| one == verb);
    // Events outlive the objects that they describe.
    resource.namespaced && has("list") && !resource.name.contains('/') && resource.kind != "Event"
}

/// Whether every namespace has this object.
fn is_default_object(core: bool, kind: &str, object: &ListedObject) -> bool {
    let name = object.metadata.name.as_str();
    core && match kind {
        "ServiceAccount" => name == "default",
        "ConfigMap" => name == "kube-root-ca.crt",
        // In clusters before 1.24.
        "Secret" => {
            object.type_ == "kubernetes.io/service-account-token" && name.starts_with("default-token-")
        }
        _ => false,
    }
}
