//! Removes a virtual node from its lower cluster: everything that was created for it is deleted, and nothing else.
//!
//! Our objects are identified by their labels, so neither the upper cluster nor a running process is needed. Copies that pods of another
//! virtual node of the same upper cluster use are handed over to that node.

mod inventory;
mod namespace_contents;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Secret, ServiceAccount},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde_json::json;
use tokio::time::Instant;
use vk_kube::{Client, Error, Kind, Objects, Patch, Selector};
use vk_supervisor::Clock;

use self::inventory::{DetachPlan, Handover, Inventory, OwnedObject};
pub(crate) use self::namespace_contents::why_in_use;
use crate::{
    names::{self, OwnerId},
    namespace_removal::{self, Removal},
    owner_config_map,
    retirement_marks::RetirementMarks,
};

/// How often the remaining objects are checked.
const POLL: Duration = Duration::from_millis(500);
/// The number of concurrent calls.
const CONCURRENCY: usize = 16;
/// The number of objects that an error message names.
const MAX_NAMED: usize = 5;

/// What to detach, and how.
#[derive(Clone)]
pub struct DetachOptions {
    /// A client of the lower cluster.
    pub lower: Client,
    /// The upper cluster and the virtual node.
    pub owner: OwnerId,
    /// The lower namespaces to search; `None` for all, which needs the permission to list in all namespaces.
    pub namespaces: Option<Vec<String>>,
    /// Keeps claims and the data in their volumes.
    pub keep_claims: bool,
    /// Only reports what would be removed.
    pub dry_run: bool,
    /// How long it may take in total.
    pub timeout: Duration,
}

/// An object in the lower cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LowerObject {
    /// The kind.
    pub kind: &'static str,
    /// The namespace, unless it is cluster-scoped.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

/// The result of a detach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DetachReport {
    /// Objects that were removed, or would be.
    pub removed: Vec<LowerObject>,
    /// Objects that stay, and why.
    pub left: Vec<(LowerObject, String)>,
}

/// The id of an upper cluster in a lower cluster: the UID of its namespace `kube-system`.
pub async fn origin(upper: &Client) -> Result<String, Error> {
    vk_kube::cluster_id::cluster_id(upper).await
}

/// Removes everything that a virtual node has in the lower cluster, and waits until it is gone. Idempotent.
pub async fn detach(options: &DetachOptions) -> Result<DetachReport, Error> {
    check_origin(&options.owner.origin)?;
    let deadline = Instant::now() + options.timeout;
    let mut report = DetachReport::default();
    let mut handovers = BTreeMap::new();
    let mut asked = BTreeSet::new();
    let found = loop {
        let found = Inventory::read(options).await?;
        let plan = found.plan(&options.owner, options.keep_claims);
        handovers.extend(plan.handovers.iter().map(|one| (one.item.clone(), one.why.clone())));
        report.left = plan.left.clone();
        let items =
            |plan: &DetachPlan| plan.steps.iter().flatten().map(|object| object.item.clone()).collect();
        if options.dry_run {
            report.removed = items(&plan);
            break found;
        }
        // Objects may lose our labels while they are being deleted.
        let going =
            found.objects_listed().filter(|object| asked.contains(&object.uid)).map(|object| object.item);
        let mut remaining: Vec<LowerObject> = items(&plan);
        remaining.extend(going);
        remaining.extend(plan.handovers.iter().map(|one| one.item.clone()));
        if remaining.is_empty() {
            break found;
        }
        if Instant::now() >= deadline {
            return Err(overdue(options.timeout, &remaining));
        }
        if !plan.handovers.is_empty() {
            // Nothing is deleted before the handovers succeeded: it would delete these copies too.
            hand_over(options, &plan.handovers).await?;
            continue;
        }
        for step in plan.steps {
            let new = step.into_iter().filter(|object| !asked.contains(&object.uid)).collect::<Vec<_>>();
            remove(options, &new).await?;
            for object in new {
                asked.insert(object.uid);
                report.removed.push(object.item);
            }
        }
        tokio::time::sleep(POLL).await;
    };
    report.left.extend(handovers);
    namespaces(options, &found, deadline, &mut report).await?;
    report.removed.sort();
    Ok(report)
}

/// Validates the id, which becomes part of a label selector.
fn check_origin(origin: &str) -> Result<(), Error> {
    let good = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    if origin.is_empty() || origin.len() > 63 || !origin.chars().all(good) {
        let message = format!(
            "{origin:?} is not a valid id of an upper cluster: use the UID of its namespace kube-system, or the configured `origin`"
        );
        return Err(Error::new(Kind::Invalid, message));
    }
    Ok(())
}

fn overdue(timeout: Duration, remaining: &[LowerObject]) -> Error {
    let named: Vec<String> = remaining.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let more = remaining.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let message = format!(
        "not deleted after {timeout:?}: {}{more}; look for finalizers and unreachable nodes, and try again",
        named.join(", ")
    );
    Error::new(Kind::Timeout, message)
}

/// Deletes objects by UID, so that another object of the same name stays.
async fn remove(options: &DetachOptions, objects_listed: &[OwnedObject]) -> Result<(), Error> {
    let calls = objects_listed.iter().filter(|object| !object.going).map(|object| async {
        let (lower, uid) = (options.lower.clone(), object.uid.as_str());
        let (namespace, name) = (object.item.namespace.clone().unwrap_or_default(), &object.item.name);
        let answer = match object.item.kind {
            inventory::POD => Objects::<Pod>::namespaced(lower, namespace).delete(name, uid).await,
            inventory::CONFIG_MAP => {
                Objects::<ConfigMap>::namespaced(lower, namespace).delete(name, uid).await
            }
            inventory::SECRET => Objects::<Secret>::namespaced(lower, namespace).delete(name, uid).await,
            inventory::SERVICE_ACCOUNT => {
                Objects::<ServiceAccount>::namespaced(lower, namespace).delete(name, uid).await
            }
            // A claim.
            _ => Objects::<PersistentVolumeClaim>::namespaced(lower, namespace).delete(name, uid).await,
        };
        match answer {
            // It is already gone or was replaced.
            Err(error) if matches!(error.kind, Kind::NotFound | Kind::Conflict) => Ok(()),
            Err(error) => {
                Err(Error { message: format!("delete {}: {}", object.item, error.message), ..error })
            }
            Ok(()) => Ok(()),
        }
    });
    stream::iter(calls).buffer_unordered(CONCURRENCY).try_collect::<Vec<()>>().await.map(drop)
}

/// Makes the owner ConfigMap of another virtual node the owner of copies that it needs, so that they stay.
async fn hand_over(options: &DetachOptions, handovers: &[Handover]) -> Result<(), Error> {
    for one in handovers {
        let patch = json!([
            {"op": "replace", "path": "/metadata/resourceVersion", "value": one.version},
            {"op": "add", "path": "/metadata/ownerReferences", "value": one.owners},
        ]);
        let (lower, patch) = (options.lower.clone(), Patch::Json(&patch));
        let (namespace, name) = (one.item.namespace.clone().unwrap_or_default(), &one.item.name);
        let answer = match one.item.kind {
            inventory::CONFIG_MAP => {
                Objects::<ConfigMap>::namespaced(lower, namespace).patch(name, patch).await.map(drop)
            }
            inventory::SECRET => {
                Objects::<Secret>::namespaced(lower, namespace).patch(name, patch).await.map(drop)
            }
            _ => Objects::<ServiceAccount>::namespaced(lower, namespace).patch(name, patch).await.map(drop),
        };
        match answer {
            // The next round reads it again.
            Err(error) if matches!(error.kind, Kind::NotFound | Kind::Conflict) => {}
            answer => answer?,
        }
    }
    Ok(())
}

/// Removes the namespaces that we created, if nothing else is in them.
async fn namespaces(
    options: &DetachOptions,
    found: &Inventory,
    deadline: Instant,
    report: &mut DetachReport,
) -> Result<(), Error> {
    let objects: Objects<Namespace> = Objects::all(options.lower.clone());
    let labels = Some(format!("{}={}", names::ORIGIN, options.owner.origin));
    let listed = match objects.list(&Selector { fields: None, labels }).await {
        Ok(listing) => listing.objects,
        // A process with permissions in some namespaces only has not created any.
        Err(error) if error.kind == Kind::Forbidden => return Ok(()),
        Err(error) => return Err(error),
    };
    let marks = RetirementMarks::new(Clock::system());
    let ours =
        |namespace: &&Namespace| names::annotation(&namespace.metadata, names::ORIGIN_NAMESPACE).is_some();
    for namespace in listed.iter().filter(ours) {
        let name = namespace.metadata.name.clone().unwrap_or_default();
        if options.namespaces.as_ref().is_some_and(|all| !all.contains(&name)) {
            continue;
        }
        let item = LowerObject { kind: "Namespace", namespace: None, name: name.clone() };
        let other = found.other_node(&options.owner, &name);
        let stays = match other {
            Some(other) => Some(format!("virtual node {other} has objects in it")),
            None if options.dry_run || namespace.metadata.deletion_timestamp.is_some() => {
                why_kept(options, &name, &report.removed).await?
            }
            None => remove_namespace(options, &namespace.metadata, &marks)
                .await
                .map_err(|error| Error { message: format!("delete {item}: {}", error.message), ..error })?,
        };
        if let Some(why) = stays {
            report.left.push((item, why));
            continue;
        }
        report.removed.push(item.clone());
        if options.dry_run {
            continue;
        }
        let uid = namespace.metadata.uid.clone();
        loop {
            match objects.get(&name).await {
                Ok(there) if there.metadata.uid == uid => {}
                Ok(_) => break,
                Err(error) if error.kind == Kind::NotFound => break,
                Err(error) => return Err(error),
            }
            if Instant::now() >= deadline {
                return Err(overdue(options.timeout, &[item]));
            }
            tokio::time::sleep(POLL).await;
        }
    }
    Ok(())
}

/// Why a namespace stays, as far as it can be told without a mark. Objects that are `known` to be removed do not count.
async fn why_kept(
    options: &DetachOptions,
    namespace: &str,
    known: &[LowerObject],
) -> Result<Option<String>, Error> {
    if let Some(why) = why_in_use(&options.lower, namespace, known).await {
        return Ok(Some(why));
    }
    let all = owner_config_map::list(&options.lower, namespace).await?;
    let other = all.iter().find(|map| !options.owner.owns(&map.metadata));
    Ok(other.map(|map| format!("virtual node {} uses it", owner_config_map::node_of(map))))
}

/// Deletes a namespace in which the virtual node has nothing any more, or returns why it stays. Until that is decided the node has an owner
/// ConfigMap in it again: without its mark, a virtual node that begins to use the namespace after the search would lose its pods.
async fn remove_namespace(
    options: &DetachOptions,
    namespace: &ObjectMeta,
    marks: &RetirementMarks,
) -> Result<Option<String>, Error> {
    let (lower, owner) = (&options.lower, &options.owner);
    let name = namespace.name.as_deref().unwrap_or_default();
    let map = owner_config_map::ensure(lower, name, owner).await?;
    let stays = match namespace_removal::remove_unless_used(lower, namespace, owner, &map.uid, marks).await? {
        Removal::Deleted => return Ok(None),
        Removal::Left(why) | Removal::Stays(why) => Ok(Some(why)),
        Removal::Forbidden(error) => Err(error),
    };
    let maps: Objects<ConfigMap> = Objects::namespaced(lower.clone(), name);
    match maps.delete(&map.name, &map.uid).await {
        Err(error) if !matches!(error.kind, Kind::NotFound | Kind::Conflict) => Err(error),
        _ => stays,
    }
}

impl fmt::Display for LowerObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

#[cfg(test)]
mod tests;
