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
    if remove_namespace(lower, namespace, owner, uid, marks).await? {
        return Ok(());
    }
    removed(maps.delete(&owner_config_map::name(owner), uid).await)
}

/// Removes a namespace with the owner ConfigMap of the node in it. Returns whether it is gone, with the ConfigMap. Fails if it is ours and
/// somebody else uses it, who may leave later.
async fn remove_namespace(
    lower: &Client,
    namespace: &str,
    owner: &OwnerId,
    map_uid: &str,
    marks: &RetirementMarks,
) -> Result<bool, Error> {
    let objects: Objects<Namespace> = Objects::all(lower.clone());
    let found = match objects.get(namespace).await {
        Ok(found) => found.metadata,
        // A process with permissions in some namespaces only has not created any.
        Err(error) if matches!(error.kind, Kind::NotFound | Kind::Forbidden) => return Ok(false),
        Err(error) => return Err(error),
    };
    if !owner_config_map::is_created_by(owner, &found) {
        return Ok(false);
    }
    let marked = Instant::now();
    marks.set(lower, namespace, owner, map_uid).await?;
    let removed = remove_if_unused(lower, namespace, owner, &found, (marked, marks)).await;
    // After any other error the deletion may still take effect: then the mark stays until others ignore it.
    if matches!(&removed, Err(error) if error.kind == Kind::Conflict)
        && let Err(error) = marks.clear(lower, namespace, owner, map_uid).await
    {
        debug!(%error, namespace, "cannot remove the mark of a namespace that stays: others ignore it after some minutes");
    }
    removed
}

/// Deletes a namespace that was marked at this time, unless somebody uses it.
async fn remove_if_unused(
    lower: &Client,
    namespace: &str,
    owner: &OwnerId,
    found: &ObjectMeta,
    (marked, marks): (Instant, &RetirementMarks),
) -> Result<bool, Error> {
    let objects: Objects<Namespace> = Objects::all(lower.clone());
    let own_map = LowerObject {
        kind: "ConfigMap",
        namespace: Some(namespace.to_owned()),
        name: owner_config_map::name(owner),
    };
    if let Some(why) = why_in_use(lower, namespace, &[own_map]).await {
        if is_left_to_another(lower, namespace, owner, marks).await? {
            return Ok(false);
        }
        return Err(in_use(namespace, &why));
    }
    // A virtual node that begins to use the namespace creates its owner ConfigMap first, and then looks for our mark: it is found here, or
    // it waits.
    if is_left_to_another(lower, namespace, owner, marks).await? {
        return Ok(false);
    }
    if marked.elapsed() > MAX_SEARCH {
        return Err(in_use(namespace, "the search for objects in it took too long"));
    }
    match objects.delete(namespace, found.uid.as_deref().unwrap_or_default()).await {
        Ok(()) => {
            info!(namespace, "deleted a namespace of the lower cluster that nobody used any more");
            Ok(true)
        }
        Err(error) if matches!(error.kind, Kind::NotFound | Kind::Conflict) => Ok(true),
        Err(error) if error.kind == Kind::Forbidden => Ok(false),
        Err(error) => Err(error),
    }
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

/// Whether another virtual node of this upper cluster uses the namespace, which removes it when it does not use it any more. Fails if a
/// node of another upper cluster does, which never removes it, or if all others of ours are removing it too: if each of them left it to
/// the other ones, it would stay for ever.
async fn is_left_to_another(
    lower: &Client,
    namespace: &str,
    owner: &OwnerId,
    marks: &RetirementMarks,
) -> Result<bool, Error> {
    let all = marks.owner_maps(lower, namespace).await?;
    let others = all.iter().filter(|(map, _)| !owner.owns(&map.metadata));
    let (ours, foreign): (Vec<_>, Vec<_>) = others.partition(|(map, _)| owner.is_origin_of(&map.metadata));
    if ours.iter().any(|(_, retiring)| !retiring) {
        return Ok(true);
    }
    let used_by = |map: &ConfigMap, does: &str| {
        in_use(namespace, &format!("virtual node {} {does}", owner_config_map::node_of(map)))
    };
    match (foreign.first(), ours.first()) {
        (Some((map, _)), _) => Err(used_by(map, "of another upper cluster uses it")),
        (None, Some((map, _))) => Err(used_by(map, "is removing it too")),
        (None, None) => Ok(false),
    }
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
