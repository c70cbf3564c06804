//! Deletes placeholder volumes with their claims, where their class says so, as a provisioner has to.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::sync::Notify;
use tracing::{debug, info, warn};
use vk_kube::{Client, Error, Kind as ErrorKind, Objects, Selector};

use super::{StorageOptions, volume};
use crate::names;

/// How often all volumes are looked at, for those whose claim went while nobody was looking.
const PERIOD: Duration = Duration::from_mins(30);
/// How long after the end of a claim: the volume controller marks the volume first.
const DELAYS: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(30)];

/// Deletes volumes periodically, and soon after `gone` says that a claim is gone. Never returns.
pub(super) async fn run(options: &StorageOptions, gone: &Notify) {
    let mut rng = StdRng::from_rng(&mut rand::rng());
    let mut warned = false;
    loop {
        for delay in DELAYS {
            tokio::time::sleep(delay).await;
            match reclaim(options).await {
                Ok(()) => warned = false,
                Err(error) if error.kind == ErrorKind::Forbidden => {
                    if !std::mem::replace(&mut warned, true) {
                        warn!(%error, "not allowed to list or delete volumes, so placeholders stay when their claims are deleted: allow list and delete on persistentvolumes");
                    }
                }
                Err(error) => debug!(%error, "cannot delete placeholder volumes: trying again later"),
            }
        }
        let period = PERIOD.mul_f64(rng.random_range(0.9..1.1));
        drop(tokio::time::timeout(period, gone.notified()).await);
    }
}

async fn reclaim(options: &StorageOptions) -> Result<(), Error> {
    let volumes: Objects<PersistentVolume> = Objects::all(options.upper.clone());
    let labels = Some(format!("{}={}", names::CLUSTER, options.cluster));
    for found in volumes.list(&Selector { fields: None, labels }).await?.objects {
        let Some(claim) = volume::reclaimed_claim(&found, &options.cluster) else { continue };
        if exists(&options.upper, claim).await? {
            continue;
        }
        let name = found.metadata.name.as_deref().unwrap_or_default();
        match volumes.delete(name, found.metadata.uid.as_deref().unwrap_or_default()).await {
            Ok(()) => {
                info!(volume = name, claim = claim.name, "deleted the placeholder volume of a deleted claim");
            }
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether a claim exists, and not another one of the same name.
async fn exists(upper: &Client, claim: &ObjectReference) -> Result<bool, Error> {
    let namespace = claim.namespace.as_deref().unwrap_or_default();
    let claims: Objects<PersistentVolumeClaim> = Objects::namespaced(upper.clone(), namespace);
    // A list, because that is permitted for the watch already.
    let fields = Some(format!("metadata.name={}", claim.name.as_deref().unwrap_or_default()));
    let found = claims.list(&Selector { fields, labels: None }).await?.objects;
    Ok(found.iter().any(|found| found.metadata.uid == claim.uid))
}
