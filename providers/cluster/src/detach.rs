//! Takes a virtual node out of its lower cluster: all that was made there for it goes, and nothing else.
//!
//! What is ours is found by what is written on it, so neither the upper cluster nor a process of ours is needed. What pods of another
//! virtual node of the same upper cluster need as well is handovers over to it.

mod inventory;
mod namespace_contents;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use serde_json::json;
use tokio::time::Instant;
use vk_kube::{Client, Error, Kind, Objects, Patch, Selector};

use self::inventory::{DetachPlan, Handover, Inventory, OwnedObject};
use crate::{
    lower_cluster,
    names::{self, Owner},
};

/// How often is looked whether all is gone.
const POLL: Duration = Duration::from_millis(500);
/// How many calls are made at a time.
const AT_ONCE: usize = 16;
/// How many objects_listed are named in a message.
const NAMED: usize = 5;

/// What is to be detached, and how.
#[derive(Clone)]
pub struct DetachOptions {
    /// The lower cluster.
    pub lower: Client,
    /// The upper cluster and the virtual node.
    pub owner: Owner,
    /// The lower namespaces to look in; `None` for all, which needs the right to list in all of them.
    pub namespaces: Option<Vec<String>>,
    /// Leaves claims where they are, with what is in their volumes.
    pub keep_claims: bool,
    /// Only tells what would go.
    pub dry_run: bool,
    /// How long all of it may take.
    pub timeout: Duration,
}

/// An object in the lower cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LowerObject {
    /// Its kind.
    pub kind: &'static str,
    /// Its namespace, if it has one.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DetachReport {
    /// What is gone, or would go.
    pub removed: Vec<LowerObject>,
    /// What was looked at and stays, and why.
    pub left: Vec<(LowerObject, String)>,
}

/// The name by which a lower cluster knows an upper one: the UID of its namespace `kube-system`.
pub async fn origin(upper: &Client) -> Result<String, Error> {
    lower_cluster::cluster_id(upper).await
}

/// Removes all that a virtual node has in the lower cluster, and waits until it is gone. To ask again is harmless.
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
        // What was asked to go may be ours no more to see, and still be on its way.
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
            // Nothing goes before that is known to have succeeded: it would take these with it.
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

/// It is a part of a selector, and nobody means all upper clusters.
fn check_origin(origin: &str) -> Result<(), Error> {
    let good = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    if origin.is_empty() || origin.len() > 63 || !origin.chars().all(good) {
        let message = format!(
            "{origin:?} is not what an upper cluster can be called: give the UID of its namespace kube-system, or the `origin` that was configured"
        );
        return Err(Error::new(Kind::Invalid, message));
    }
    Ok(())
}

fn overdue(timeout: Duration, remaining: &[LowerObject]) -> Error {
    let named: Vec<String> = remaining.iter().take(NAMED).map(ToString::to_string).collect();
    let more = remaining.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let message = format!(
        "still there after {timeout:?}: {}{more}; look for what holds them (finalizers, a node that does not answer), and do it again",
        named.join(", ")
    );
    Error::new(Kind::Timeout, message)
}

/// Deletes objects_listed of any kind, those with these UIDs and no namesakes.
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
            inventory::CLAIM => {
                Objects::<PersistentVolumeClaim>::namespaced(lower, namespace).delete(name, uid).await
            }
            _ => Objects::<Namespace>::cluster(lower).delete(name, uid).await,
        };
        match answer {
            // Somebody was faster.
            Err(error) if matches!(error.kind, Kind::NotFound | Kind::Conflict) => Ok(()),
            Err(error) => {
                Err(Error { message: format!("delete {}: {}", object.item, error.message), ..error })
            }
            Ok(()) => Ok(()),
        }
    });
    stream::iter(calls).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await.map(drop)
}

/// What another virtual node needs hangs on that one's owner_name from now on, so that it does not go with ours.
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
            // It is looked at again.
            Err(error) if matches!(error.kind, Kind::NotFound | Kind::Conflict) => {}
            answer => answer?,
        }
    }
    Ok(())
}

/// Removes the namespaces that we made, where nothing but ours was in them.
async fn namespaces(
    options: &DetachOptions,
    found: &Inventory,
    deadline: Instant,
    report: &mut DetachReport,
) -> Result<(), Error> {
    let objects: Objects<Namespace> = Objects::cluster(options.lower.clone());
    let labels = Some(format!("{}={}", names::ORIGIN, options.owner.origin));
    let listed = match objects.list(&Selector { fields: None, labels }).await {
        Ok(listing) => listing.objects,
        // Who has rights in some namespaces alone did not make any.
        Err(error) if error.kind == Kind::Forbidden => return Ok(()),
        Err(error) => return Err(error),
    };
    let ours =
        |namespace: &&Namespace| names::annotation(&namespace.metadata, names::ORIGIN_NAMESPACE).is_some();
    for namespace in listed.iter().filter(ours) {
        let name = namespace.metadata.name.clone().unwrap_or_default();
        if options.namespaces.as_ref().is_some_and(|all| !all.contains(&name)) {
            continue;
        }
        let item = LowerObject { kind: "Namespace", namespace: None, name: name.clone() };
        let other = found.other_node(&options.owner, &name);
        let stays = if let Some(other) = other {
            Some(format!("the virtual node {other} has objects in it"))
        } else {
            let known = if options.dry_run { report.removed.as_slice() } else { &[] };
            namespace_contents::why_in_use(&options.lower, &name, known).await
        };
        if let Some(why) = stays {
            report.left.push((item, why));
            continue;
        }
        report.removed.push(item.clone());
        if options.dry_run {
            continue;
        }
        let uid = namespace.metadata.uid.clone().unwrap_or_default();
        let going = namespace.metadata.deletion_timestamp.is_some();
        remove(options, &[OwnedObject { item: item.clone(), uid: uid.clone(), going }]).await?;
        loop {
            match objects.get(&name).await {
                Ok(there) if there.metadata.uid.as_ref() == Some(&uid) => {}
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
