//! What nobody needs any more: directories and logs of pods that are gone, and images.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use tracing::{debug, info, warn};
use vk_provider::{Error, NodeChange, Result};

use super::shared::{Shared, blocking};
use crate::{
    backend::told,
    image::{self, Census, Limits, Used},
    log::ledger::Entry,
    volume,
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
        // Only what was noted here: in the directory of logs are others' too.
        let (place, ledger) = (shared.place.clone(), shared.ledger.clone());
        let found = blocking(move || Ok::<_, Error>((place.pods()?, ledger.entries()?))).await;
        let (folders, logs) = match found.flatten() {
            Ok(found) => found,
            Err(error) => {
                warn!(error = told(&error), "cannot look through the directories of pods");
                continue;
            }
        };
        let found: BTreeSet<String> =
            folders.into_iter().chain(logs.iter().map(|entry| entry.uid.clone())).collect();
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
            debug!(uid, "removing the directories of a pod that is gone");
            let of_pod: Vec<Entry> = logs.iter().filter(|entry| entry.uid == uid).cloned().collect();
            if let Err(error) = remove(shared, &uid, of_pod).await {
                warn!(uid, error = told(&error), "cannot remove the directories of a pod that is gone");
            }
        }
    }
}

async fn remove(shared: &Shared, uid: &str, logs: Vec<Entry>) -> Result<()> {
    shared.place.tear_down(uid).await?;
    let ledger = shared.ledger.clone();
    blocking(move || logs.iter().try_for_each(|entry| ledger.strike(entry))).await?
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

/// Removes images that nobody uses, when their disk is nearly full. Where anything is not known for certain, it removes nothing.
async fn collect(shared: &Arc<Shared>, census: &mut Census) -> Result<()> {
    let began = shared.clock.now();
    let images = shared.backend.images().await?;
    shared.puller.prune(&images, began).await;
    let used = used(shared).await?;
    census.look(&images, &used, began);
    let stores = shared.backend.image_fs().await?;
    let Some(store) = stores.first() else { return Ok(()) };
    let Some(disk) = shared.backend.disk(&store.mount_point).await else { return Ok(()) };
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
    Ok(())
}

/// The images of all containers on the runtime, whoever started them, and those that pods of ours mount.
async fn used(shared: &Shared) -> Result<Used> {
    let containers = shared.backend.used_images().await?;
    let slots = shared.slots();
    let mounted = slots.iter().flat_map(|slot| {
        let bundle = slot.bundle.lock();
        bundle.as_ref().map(|bundle| volume::images(&bundle.pod)).unwrap_or_default()
    });
    Ok(containers.into_iter().chain(mounted.map(|volume| volume.reference)).collect())
}
