//! Claims that wait above for a node to be chosen: what the lower cluster has to do with them.
//!
//! A claim of a class whose provisioner is [`PROVISIONER`] gets its volume from the lower cluster of the node that the scheduler chose for
//! its first pod. Above there is a volume that stands for it: it is never mounted, and draws every pod that uses the claim to the same
//! lower cluster. The claim itself is copied down with the pod, by [`copies`](crate::copies), and so is a larger request.
//!
//! Users' claims are never written to: what there is to say about them is said by events.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::{sync::mpsc, task::JoinSet, time::Instant};
use tracing::{error, info};
use vk_kube::{Client, Error, Kind as ErrorKind, Objects, Recorder};
use vk_supervisor::{Supervisor, task};

use self::{
    claim_tracker::{Action, ClaimTracker, Event, Key, Outcome},
    volume::Decision,
};
use crate::names::{NamespaceMapping, Owner};

mod claim_copy;
mod claim_tracker;
mod volume;
mod watches;

/// The provisioner of classes whose claims get their volumes in the lower cluster of the node that is chosen.
pub const PROVISIONER: &str = "multicluster.virtual-kubelet.io/storage";

/// How many events may wait for whoever decides.
const LENGTH: usize = 256;

/// What is needed to serve claims.
pub struct StorageOptions {
    /// The upper cluster, as one who may list and watch claims, read classes, make volumes and write events.
    pub upper: Client,
    /// The lower cluster.
    pub lower: Client,
    /// Whose the copies below are.
    pub owner: Owner,
    /// What namespaces are called below. Claims in others are none of our business.
    pub namespaces: NamespaceMapping,
    /// What the lower cluster is called: the value of the label [`CLUSTER`](crate::names::CLUSTER) of its virtual nodes.
    pub cluster: String,
    /// Owns the task.
    pub supervisor: Supervisor,
}

/// Begins to serve claims, until the supervisor stops.
pub fn follow(options: StorageOptions) {
    let (supervisor, stopping) = (options.supervisor.clone(), options.supervisor.clone());
    // Pods without claims do well without it.
    supervisor.spawn("claims", task::Kind::Work, async move {
        tokio::select! {
            () = run(Arc::new(options)) => {}
            () = stopping.stopping() => {}
        }
    });
}

async fn run(options: Arc<StorageOptions>) {
    let (inbox, mut heard) = mpsc::channel(LENGTH);
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
    loop {
        let due = async {
            match tracker.deadline() {
                Some(deadline) => tokio::time::sleep_until(begun + deadline).await,
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            Some(event) = heard.recv() => event,
            () = due => Event::Tick,
            Some(ended) = tasks.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    error!(%error, "a task of the claims failed");
                }
                continue;
            }
        };
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

/// The namespaces above and below that are watched; `None` for all.
fn scopes(namespaces: &NamespaceMapping) -> (Vec<Option<String>>, Vec<Option<String>>) {
    match namespaces {
        NamespaceMapping::Map(map) => (map.keys().cloned().map(Some).collect(), namespaces.scopes()),
        NamespaceMapping::Same | NamespaceMapping::Suffix(_) => (vec![None], namespaces.scopes()),
    }
}

/// Looks what a claim needs, does it, and tells how that ended.
async fn provision(
    options: Arc<StorageOptions>,
    claim: Arc<PersistentVolumeClaim>,
    inbox: mpsc::Sender<Event>,
) {
    let outcome = try_provision(&options, &claim).await;
    if let Some(key) = Key::of(&claim) {
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        // Nobody is there to be reported when everything ends.
        drop(inbox.send(Event::ProvisionFinished(key, uid, outcome)).await);
    }
}

async fn try_provision(options: &StorageOptions, claim: &PersistentVolumeClaim) -> Result<Outcome, Error> {
    let Some(class) = volume::class(claim) else { return Ok(Outcome::Nothing) };
    let classes: Objects<StorageClass> = Objects::cluster(options.upper.clone());
    let class = classes.get(class).await?;
    let volume = match volume::decide(claim, &class, &options.owner.node, &options.cluster) {
        Decision::Nothing => return Ok(Outcome::Nothing),
        Decision::Mistake(message) => return Ok(Outcome::Mistake(message)),
        Decision::Make(volume) => volume,
    };
    let volumes: Objects<PersistentVolume> = Objects::cluster(options.upper.clone());
    let name = volume.metadata.name.clone().unwrap_or_default();
    match volumes.create(&volume).await {
        Ok(_) => {
            info!(volume = name, claim = claim.metadata.name, "a volume stands for one of the lower cluster");
            Ok(Outcome::Made(name))
        }
        Err(error) if error.kind == ErrorKind::AlreadyExists => {
            let found = volumes.get(&name).await?;
            Ok(if volume::is_of(&found, claim) { Outcome::There } else { Outcome::Taken(name) })
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
