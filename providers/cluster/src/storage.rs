//! Volumes for claims that wait until a node is chosen.
//!
//! A claim whose class has the provisioner [`PROVISIONER`] gets its volume in the lower cluster of the node that the scheduler chose for
//! its first pod. The upper cluster gets a placeholder volume. It is never mounted, and its node affinity keeps all pods that use the
//! claim in the same lower cluster. [`copies`](crate::copies) copies the claim itself together with the pod, and later a larger request.
//!
//! Claims of users are never modified. Everything there is to say about them is recorded as events.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
    time::Instant,
};
use tracing::{error, info};
use vk_kube::{Client, Error, Kind as ErrorKind, Objects, Recorder};
use vk_supervisor::{Supervisor, task};

use self::{
    claim_tracker::{Action, ClaimKey, ClaimTracker, Event, ProvisionOutcome},
    volume::Decision,
};
use crate::names::{NamespaceMapping, OwnerId};

mod claim_copy;
mod claim_tracker;
mod reclaim;
mod volume;
mod watches;

/// The provisioner of classes whose volumes come from the lower cluster of the chosen node.
pub const PROVISIONER: &str = "multicluster.virtual-kubelet.io/storage";

/// Capacity of the event channel.
const CHANNEL_CAPACITY: usize = 256;

/// What is needed to serve claims.
pub struct StorageOptions {
    /// A client of the upper cluster that may list and watch claims, read classes, list, create and delete volumes and write events.
    pub upper: Client,
    /// A client of the lower cluster.
    pub lower: Client,
    /// The owner of the copies.
    pub owner: OwnerId,
    /// Maps upper namespaces to lower ones. Claims in other namespaces are ignored.
    pub namespaces: NamespaceMapping,
    /// The name of the lower cluster: the label [`CLUSTER`](crate::names::CLUSTER) of its virtual nodes.
    pub cluster: String,
    /// Owns the task.
    pub supervisor: Supervisor,
}

/// Starts serving claims, until the supervisor stops.
pub fn start(options: StorageOptions) {
    let (supervisor, stopping) = (options.supervisor.clone(), options.supervisor.clone());
    // Not critical: pods without claims do not need it.
    supervisor.spawn("claims", task::Kind::Work, async move {
        tokio::select! {
            () = run(Arc::new(options)) => {}
            () = stopping.stopping() => {}
        }
    });
}

async fn run(options: Arc<StorageOptions>) {
    let (inbox, mut events) = mpsc::channel(CHANNEL_CAPACITY);
    let mut tasks = JoinSet::new();
    let (above, below) = scopes(&options.namespaces);
    for namespace in above {
        tasks.spawn(watches::watch_upper(Arc::clone(&options), namespace, inbox.clone()));
    }
    for namespace in below {
        tasks.spawn(watches::watch_lower(Arc::clone(&options), namespace, inbox.clone()));
    }
    let recorder = Recorder::new(options.upper.clone(), "virtual-kubelet", &options.owner.node);
    let begun = Instant::now();
    let mut tracker = ClaimTracker::new(StdRng::from_rng(&mut rand::rng()));
    let claim_gone = Arc::new(Notify::new());
    let (reclaimed, gone) = (Arc::clone(&options), Arc::clone(&claim_gone));
    tasks.spawn(async move { reclaim::run(&reclaimed, &gone).await });
    loop {
        let due = async {
            match tracker.deadline() {
                Some(deadline) => tokio::time::sleep_until(begun + deadline).await,
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            Some(event) = events.recv() => event,
            () = due => Event::Tick,
            Some(ended) = tasks.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    error!(%error, "a task for claims panicked");
                }
                continue;
            }
        };
        if matches!(event, Event::UpperGone(_)) {
            claim_gone.notify_one();
        }
        for action in tracker.handle(begun.elapsed(), event) {
            match action {
                Action::Provision(claim) => {
                    tasks.spawn(provision(Arc::clone(&options), claim, inbox.clone()));
                }
                Action::RecordEvent { claim, severity, reason, message } => {
                    let recorder = recorder.clone();
                    tasks.spawn(async move {
                        recorder.publish(&reference(&claim), severity, &reason, &message).await;
                    });
                }
            }
        }
    }
}

/// The watched namespaces in the upper and the lower cluster; `None` for all.
fn scopes(namespaces: &NamespaceMapping) -> (Vec<Option<String>>, Vec<Option<String>>) {
    match namespaces {
        NamespaceMapping::Map(map) => (map.keys().cloned().map(Some).collect(), namespaces.scopes()),
        NamespaceMapping::Same | NamespaceMapping::Suffix(_) => (vec![None], namespaces.scopes()),
    }
}

/// Provisions a claim and reports the outcome.
async fn provision(
    options: Arc<StorageOptions>,
    claim: Arc<PersistentVolumeClaim>,
    inbox: mpsc::Sender<Event>,
) {
    let outcome = try_provision(&options, &claim).await;
    if let Some(key) = ClaimKey::of(&claim) {
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        // The receiver is gone only at shutdown.
        drop(inbox.send(Event::ProvisionFinished(key, uid, outcome)).await);
    }
}

async fn try_provision(
    options: &StorageOptions,
    claim: &PersistentVolumeClaim,
) -> Result<ProvisionOutcome, Error> {
    let Some(class) = volume::class(claim) else { return Ok(ProvisionOutcome::Nothing) };
    let classes: Objects<StorageClass> = Objects::all(options.upper.clone());
    let class = classes.get(class).await?;
    let volume = match volume::decide(claim, &class, &options.owner.node, &options.cluster) {
        Decision::Nothing => return Ok(ProvisionOutcome::Nothing),
        Decision::Mistake(message) => return Ok(ProvisionOutcome::Mistake(message)),
        Decision::Make(volume) => volume,
    };
    let volumes: Objects<PersistentVolume> = Objects::all(options.upper.clone());
    let name = volume.metadata.name.clone().unwrap_or_default();
    match volumes.create(&volume).await {
        Ok(_) => {
            info!(
                volume = name,
                claim = claim.metadata.name,
                "created a placeholder for a volume of the lower cluster"
            );
            Ok(ProvisionOutcome::Made(name))
        }
        Err(error) if error.kind == ErrorKind::AlreadyExists => {
            let found = volumes.get(&name).await?;
            Ok(if volume::is_placeholder_of(&found, claim) {
                ProvisionOutcome::There
            } else {
                ProvisionOutcome::Taken(name)
            })
        }
        Err(error) => Err(error),
    }
}

fn reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    let metadata = &claim.metadata;
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        resource_version: metadata.resource_version.clone(),
        field_path: None,
    }
}

impl std::fmt::Debug for StorageOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StorageOptions")
            .field("owner", &self.owner)
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}
