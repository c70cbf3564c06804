//! What nobody needs any more: directories and logs of pods that are gone, and images.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use tracing::{debug, info, warn};
use vk_provider::{NodeChange, PodRef, Result};

use super::shared::Shared;
use crate::{
    backend::told,
    image::{self, Census, Disk, Limits},
    log,
};

/// How often directories are looked through.
const PERIOD: Duration = Duration::from_mins(1);
/// How often images are.
const IMAGES: Duration = Duration::from_mins(5);
/// How long a directory must have been nobody's. The core tells of its pods one after the other after a start, and one whose containers
/// are lost is known by nothing but its directory until then.
const ORPHANED: Duration = Duration::from_mins(5);

/// Collects until the engine ends.
pub(super) async fn run(shared: Arc<Shared>) {
    tokio::select! {
        () = shared.supervisor.stopping() => {}
        () = directories(&shared) => {}
        () = images(&shared) => {}
    }
}

async fn directories(shared: &Arc<Shared>) {
    let mut orphans: HashMap<String, Instant> = HashMap::new();
    loop {
        tokio::time::sleep(PERIOD).await;
        // Without the runtime's list nobody knows what is whose.
        let Ok(listing) = shared.backend.list(&shared.mark()).await else { continue };
        shared.compare(listing, None);
        let logs = log::directory::list(&shared.settings.log_root).unwrap_or_default();
        let folders = shared.place.pods().unwrap_or_default();
        let logged = logs.iter().map(|pod| pod.uid.to_string());
        let found: BTreeSet<String> = folders.into_iter().chain(logged).collect();
        orphans.retain(|uid, _| found.contains(uid));
        for uid in found {
            if shared.slot(&uid).is_some() {
                orphans.remove(&uid);
                continue;
            }
            let since = *orphans.entry(uid.clone()).or_insert_with(Instant::now);
            if since.elapsed() < ORPHANED {
                continue;
            }
            info!(uid, "removing the directories of a pod that is gone");
            let of_pod: Vec<&PodRef> = logs.iter().filter(|pod| *pod.uid == *uid).collect();
            if let Err(error) = remove(shared, &uid, &of_pod).await {
                warn!(uid, error = told(&error), "cannot remove the directories of a pod that is gone");
            }
        }
    }
}

async fn remove(shared: &Shared, uid: &str, logs: &[&PodRef]) -> Result<()> {
    shared.place.tear_down(uid).await?;
    for pod in logs {
        log::directory::remove(&shared.settings.log_root, pod).await?;
    }
    Ok(())
}

async fn images(shared: &Arc<Shared>) {
    let mut census = Census::default();
    loop {
        tokio::time::sleep(IMAGES).await;
        if let Err(error) = collect(shared, &mut census).await {
            debug!(error = told(&error), "cannot look through the images");
        }
    }
}

/// Removes images that nobody uses, when their disk is nearly full.
async fn collect(shared: &Arc<Shared>, census: &mut Census) -> Result<()> {
    let began = shared.clock.now();
    let images = shared.backend.images().await?;
    let used = used(shared).await?;
    census.look(&images, &used, began);
    let stores = shared.backend.image_fs().await?;
    let Some(disk) = stores.first().and_then(|store| disk(&store.mount_point)) else { return Ok(()) };
    let limits = Limits::default();
    let Some(collection) = image::collection(census, &used, disk, &limits, began) else { return Ok(()) };
    let mut freed = 0;
    for (id, size) in &collection.candidates {
        if freed >= collection.bytes {
            break;
        }
        match shared.backend.remove_image(id).await {
            Ok(()) => {
                info!(image = id, size, "removed an image that nobody uses");
                freed += size;
            }
            Err(error) => warn!(image = id, error = told(&error), "cannot remove an image"),
        }
    }
    if freed < collection.bytes {
        let message = image::shortfall(disk, collection.percent, freed);
        shared.health.tell(NodeChange::Event {
            kind: vk_provider::EventKind::Warning,
            reason: "FreeDiskSpaceFailed".to_owned(),
            message,
        });
    }
    let left = shared.backend.images().await?;
    shared.puller.prune(&left, began).await;
    Ok(())
}

/// The images of all containers on the runtime, whoever started them.
async fn used(shared: &Shared) -> Result<BTreeSet<String>> {
    let listing = shared.backend.list(&BTreeMap::new()).await?;
    let mut used = BTreeSet::new();
    for entry in listing.containers {
        if let Ok(container) = shared.backend.container(&entry.id).await {
            used.extend([container.image_id, container.image_ref, container.image]);
        }
    }
    used.remove("");
    Ok(used)
}

/// How full the disk is that has this directory.
fn disk(mount_point: &str) -> Option<Disk> {
    let stat = rustix::fs::statvfs(mount_point).ok()?;
    Some(Disk {
        capacity: stat.f_blocks.saturating_mul(stat.f_frsize),
        available: stat.f_bavail.saturating_mul(stat.f_frsize),
    })
}
