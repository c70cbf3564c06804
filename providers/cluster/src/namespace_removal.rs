//! Removes what a virtual node has left in a lower namespace that it does not use any more.

use std::time::Duration;

use k8s_openapi::{
    Metadata,
    api::core::v1::{ConfigMap, Namespace, Pod, Secret, ServiceAccount},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use tokio::time::Instant;
use tracing::{debug, info};
use vk_kube::{Client, Error, Kind, Objects, Selector};

use crate::{
    copies::kind::CopiedObject,
    detach::{LowerObject, why_in_use},
    names::{self, OwnerId},
    owner_config_map,
    retirement_marks::RetirementMarks,
};

/// How long after the mark a namespace may be deleted. Others wait for longer than this.
const MAX_SEARCH: Duration = Duration::from_mins(1);

/// What becomes of a namespace that the node does not use any more.
#[derive(Debug)]
pub(crate) enum Removal {
    /// It is being deleted, with everything in it.
    Deleted,
    /// Another virtual node of this upper cluster uses it for this reason, and removes it when it does not use it any more.
    Left(String),
    /// It stays for now: somebody else uses it for this reason, who may leave later.
    Stays(String),
    /// The process may not delete it.
    Forbidden(Error),
}

/// Removes the owner ConfigMap of the node from a namespace, and the namespace if it was created for this upper cluster and nothing else is
/// in it. Fails if the namespace has to stay for now.
///
/// Each virtual node that uses a namespace has an owner ConfigMap in it, which it creates before its first pod there. So a namespace without
/// any is one that no virtual node uses.
pub(crate) async fn retire(
    lower: &Client,
    namespace: &str,
    owner: &OwnerId,
    marks: &RetirementMarks,
) -> Result<(), Error> {
    let maps: Objects<ConfigMap> = Objects::namespaced(lower.clone(), namespace);
    let found = match maps.get(&owner_config_map::name(owner)).await {
        Ok(found) if owner.owns(&found.metadata) => found,
        Ok(_) => return Ok(()),
        Err(error) if error.kind == Kind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let uid = found.metadata.uid.as_deref().unwrap_or_default();
    // Deleting the owner would delete everything that it owns.
    let owned = owned::<ConfigMap>(lower, namespace, owner, uid).await?
        || owned::<Secret>(lower, namespace, owner, uid).await?
        || owned::<ServiceAccount>(lower, namespace, owner, uid).await?
        || has_pods(lower, namespace, owner, uid).await?;
    if owned {
        return Err(in_use(namespace, "it contains objects of this node"));
    }
    let namespaces: Objects<Namespace> = Objects::all(lower.clone());
    match namespaces.get(namespace).await {
        Ok(found) if owner_config_map::is_created_by(owner, &found.metadata) => {
            match remove_unless_used(lower, &found.metadata, owner, uid, marks).await? {
                Removal::Deleted => return Ok(()),
                Removal::Stays(why) => return Err(in_use(namespace, &why)),
                Removal::Left(_) | Removal::Forbidden(_) => {}
            }
        }
        Ok(_) => {}
        // A process with permissions in some namespaces only has not created any.
        Err(error) if matches!(error.kind, Kind::NotFound | Kind::Forbidden) => {}
        Err(error) => return Err(error),
    }
    marks.record_deletion(uid);
    removed(maps.delete(&owner_config_map::name(owner), uid).await)
}

/// Deletes a namespace that was created for this upper cluster, unless somebody uses it. The owner ConfigMap of the node, which has this UID
/// and is the only object of the node in it, is marked meanwhile.
pub(crate) async fn remove_unless_used(
    lower: &Client,
    found: &ObjectMeta,
    owner: &OwnerId,
    map_uid: &str,
    marks: &RetirementMarks,
) -> Result<Removal, Error> {
    let namespace = found.name.as_deref().unwrap_or_default();
    let user = find_user(lower, namespace, owner, map_uid, marks).await;
    // Without a deletion nobody has to wait, even if it is not known whether the mark was set. With one the mark stays until others ignore
    // it: also a deletion that failed may take effect later.
    if !matches!(user, Ok(None))
        && let Err(error) = marks.clear(lower, namespace, owner, map_uid).await
    {
        debug!(%error, namespace, "cannot remove the mark of a namespace that stays: others ignore it after some minutes");
    }
    if let Some(user) = user? {
        return Ok(user);
    }
    marks.record_deletion(map_uid);
    let namespaces: Objects<Namespace> = Objects::all(lower.clone());
    match namespaces.delete(namespace, found.uid.as_deref().unwrap_or_default()).await {
        Ok(()) => {
            info!(namespace, "deleted a namespace of the lower cluster that nobody used any more");
            Ok(Removal::Deleted)
        }
        Err(error) if matches!(error.kind, Kind::NotFound | Kind::Conflict) => Ok(Removal::Deleted),
        Err(error) if error.kind == Kind::Forbidden => Ok(Removal::Forbidden(error)),
        Err(error) => Err(error),
    }
}

/// Marks the owner ConfigMap of the node and looks for somebody else who uses the namespace.
async fn find_user(
    lower: &Client,
    namespace: &str,
    owner: &OwnerId,
    map_uid: &str,
    marks: &RetirementMarks,
) -> Result<Option<Removal>, Error> {
    let begin = Instant::now();
    marks.set(lower, namespace, owner, map_uid).await?;
    let own_map = LowerObject {
        kind: "ConfigMap",
        namespace: Some(namespace.to_owned()),
        name: owner_config_map::name(owner),
    };
    let contents = why_in_use(lower, namespace, &[own_map]).await;
    // A virtual node that begins to use the namespace creates its owner ConfigMap first, and then looks for our mark: it is found here, or
    // it waits.
    let node = find_other_node(lower, namespace, owner, marks).await?;
    let slow =
        (begin.elapsed() > MAX_SEARCH).then(|| "the search for objects in it took too long".to_owned());
    Ok(node.or_else(|| contents.or(slow).map(Removal::Stays)))
}

/// Whether objects of a kind belong to the owner ConfigMap with this UID.
async fn owned<K: CopiedObject>(
    lower: &Client,
    namespace: &str,
    owner: &OwnerId,
    uid: &str,
) -> Result<bool, Error> {
    let found = K::objects(lower.clone(), Some(namespace)).list(&ours(owner)).await?.objects;
    Ok(found.iter().any(|object| is_owned(object.metadata(), uid)))
}

async fn has_pods(lower: &Client, namespace: &str, owner: &OwnerId, uid: &str) -> Result<bool, Error> {
    let pods: Objects<Pod> = Objects::namespaced(lower.clone(), namespace);
    let found = pods.list(&ours(owner)).await?.objects;
    Ok(found.iter().any(|pod| owner.owns(&pod.metadata) || is_owned(pod.metadata(), uid)))
}

/// Another virtual node that uses the namespace. It is left to a node of our upper cluster, but stays with one of another upper cluster,
/// which never removes it, or if all others of ours are removing it too: if each of them left it to the other ones, it would stay for ever.
async fn find_other_node(
    lower: &Client,
    namespace: &str,
    owner: &OwnerId,
    marks: &RetirementMarks,
) -> Result<Option<Removal>, Error> {
    let all = marks.owner_maps(lower, namespace).await?;
    let others = all.iter().filter(|(map, _)| !owner.owns(&map.metadata));
    let (ours, foreign): (Vec<_>, Vec<_>) = others.partition(|(map, _)| owner.is_origin_of(&map.metadata));
    let why = |map: &ConfigMap, does: &str| format!("virtual node {} {does}", owner_config_map::node_of(map));
    if let Some((map, _)) = ours.iter().find(|(_, retiring)| !retiring) {
        return Ok(Some(Removal::Left(why(map, "uses it"))));
    }
    Ok(match (foreign.first(), ours.first()) {
        (Some((map, _)), _) => Some(Removal::Stays(why(map, "of another upper cluster uses it"))),
        (None, Some((map, _))) => Some(Removal::Stays(why(map, "is removing it too"))),
        (None, None) => None,
    })
}

fn is_owned(object: &ObjectMeta, uid: &str) -> bool {
    object.owner_references.iter().flatten().any(|reference| reference.uid == uid)
}

fn ours(owner: &OwnerId) -> Selector {
    Selector { fields: None, labels: Some(format!("{}={}", names::ORIGIN, owner.origin)) }
}

fn in_use(namespace: &str, why: &str) -> Error {
    Error::new(Kind::Conflict, format!("namespace {namespace} of the lower cluster stays: {why}"))
}

fn removed(answer: Result<(), Error>) -> Result<(), Error> {
    match answer {
        Err(error) if !matches!(error.kind, Kind::NotFound | Kind::Conflict) => Err(error),
        _ => Ok(()),
    }
}
