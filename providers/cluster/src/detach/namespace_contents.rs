//! Whether a namespace has something in it that is not ours, of whichever kind.

use serde::Deserialize;
use vk_kube::{Client, Error, Kind};

use super::LowerObject;

/// How many objects of a kind are looked at: more than a namespace has in which nobody else is.
const LOOKED_AT: usize = 500;

#[derive(Deserialize)]
struct Groups {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    name: String,
    #[serde(rename = "preferredVersion")]
    preferred: Version,
}

#[derive(Deserialize)]
struct Version {
    #[serde(rename = "groupVersion")]
    group_version: String,
}

#[derive(Deserialize)]
struct Resources {
    resources: Vec<Resource>,
}

#[derive(Clone, Debug, Deserialize)]
struct Resource {
    name: String,
    kind: String,
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Deserialize)]
struct Listing {
    #[serde(default)]
    metadata: ListMeta,
    items: Option<Vec<Object>>,
}

#[derive(Default, Deserialize)]
struct ListMeta {
    #[serde(default, rename = "continue")]
    more: String,
}

#[derive(Deserialize)]
struct Object {
    metadata: ObjectMeta,
    #[serde(default, rename = "type")]
    type_: serde_json::Value,
}

#[derive(Deserialize)]
struct ObjectMeta {
    name: String,
}

/// Why a namespace is not to be removed; `None` if there is nothing in it but what every namespace has, and `known`.
pub(super) async fn why_in_use(lower: &Client, namespace: &str, known: &[LowerObject]) -> Option<String> {
    match search(lower, namespace, known).await {
        Ok(found) => found.map(|what| format!("{what} is in it, which is not ours")),
        Err((what, error)) => Some(format!("cannot look at {what} in it: {error}")),
    }
}

async fn search(
    lower: &Client,
    namespace: &str,
    known: &[LowerObject],
) -> Result<Option<String>, (String, Error)> {
    let read = |what: &str| {
        let what = what.to_owned();
        move |error| (what, error)
    };
    let groups: Groups = lower.read("apis", "/apis").await.map_err(read("the API groups"))?;
    let core = ("/api/v1".to_owned(), true);
    // What is measured is not there.
    let others = groups.groups.into_iter().filter(|group| group.name != "metrics.k8s.io");
    let others = others.map(|group| (format!("/apis/{}", group.preferred.group_version), false));
    for (path, is_core) in std::iter::once(core).chain(others) {
        let resources: Resources = lower.read("apis", &path).await.map_err(read(&path))?;
        for resource in resources.resources.into_iter().filter(is_listed) {
            let url = format!("{path}/namespaces/{namespace}/{}?limit={LOOKED_AT}", resource.name);
            let listing: Listing = match lower.read(&resource.name, &url).await {
                // Some that are announced are not there, or not in this way.
                Err(error) if error.kind == Kind::NotFound || error.message.contains("not allowed") => {
                    continue;
                }
                answer => answer.map_err(read(&resource.name))?,
            };
            let strange = listing.items.iter().flatten().find(|object| {
                let ours = is_core
                    && known.iter().any(|item| {
                        item.kind == resource.kind
                            && item.namespace.as_deref() == Some(namespace)
                            && item.name == object.metadata.name
                    });
                !ours && !is_usual(is_core, &resource.kind, object)
            });
            if let Some(object) = strange {
                return Ok(Some(format!("{} {}", resource.kind, object.metadata.name)));
            }
            if !listing.metadata.more.is_empty() {
                return Ok(Some(format!("more than {LOOKED_AT} {}", resource.name)));
            }
        }
    }
    Ok(None)
}

fn is_listed(resource: &Resource) -> bool {
    let has = |verb: &str| resource.verbs.iter().any(|one| one == verb);
    // Events tell of what was there.
    resource.namespaced && has("list") && !resource.name.contains('/') && resource.kind != "Event"
}

/// What every namespace has by itself.
fn is_usual(core: bool, kind: &str, object: &Object) -> bool {
    let name = object.metadata.name.as_str();
    core && match kind {
        "ServiceAccount" => name == "default",
        "ConfigMap" => name == "kube-root-ca.crt",
        // Of clusters before 1.24.
        "Secret" => {
            object.type_ == "kubernetes.io/service-account-token" && name.starts_with("default-token-")
        }
        _ => false,
    }
}
