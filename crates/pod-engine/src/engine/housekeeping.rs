//! Periodic clean-up: directories and logs of pods that are gone, and unused images.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use tracing::{debug, info, warn};
use vk_provider::{Error, NodeChange, Result};

use super::context::{EngineContext, blocking};
use crate::{
    backend::full_message,
    image::{self, GcThresholds, ImageInventory, ImagesInUse},
    log::registry::LogDirectory,
    spec::CgroupDriver,
    volume,
};

/// How often directories and cgroups are checked.
const DIRECTORY_PERIOD: Duration = Duration::from_mins(1);
/// How often to look for the runtime's first answer.
const RUNTIME_PERIOD: Duration = Duration::from_secs(1);
/// How often images are checked.
const IMAGE_PERIOD: Duration = Duration::from_mins(5);
/// How long a directory must have been orphaned before it is removed. After a start the core creates its pods one after the other, and until
/// then a pod whose containers are lost is known only by its directory.
const ORPHAN_AGE: Duration = Duration::from_mins(5);

/// Cleans up until the engine stops.
pub(super) async fn run(context: Arc<EngineContext>) {
    tokio::select! {
        () = context.supervisor.stopping() => {}
        () = directories(&context) => {}
        () = images(&context) => {}
        () = cgroups(&context) => {}
    }
}

async fn directories(context: &Arc<EngineContext>) {
    let mut orphans: HashMap<String, Instant> = HashMap::new();
    loop {
        tokio::time::sleep(DIRECTORY_PERIOD).await;
        // Without the runtime's list orphans cannot be detected.
        let Ok(listing) = context.backend.list(&context.node_labels()).await else { continue };
        context.apply_listing(listing, None);
        // Only registered log directories: others may use the same log root.
        let (dirs, log_directories) = (context.dirs.clone(), context.log_directories.clone());
        let found = blocking(move || Ok::<_, Error>((dirs.pods()?, log_directories.entries()?))).await;
        let (folders, logs) = match found.flatten() {
            Ok(found) => found,
            Err(error) => {
                warn!(error = full_message(&error), "cannot list the directories of pods");
                continue;
            }
        };
        let found: BTreeSet<String> =
            folders.into_iter().chain(logs.iter().map(|entry| entry.uid.clone())).collect();
        orphans.retain(|uid, _| found.contains(uid));
        for uid in found {
            if context.pod(&uid).is_some() {
                orphans.remove(&uid);
                continue;
            }
            let since = *orphans.entry(uid.clone()).or_insert_with(Instant::now);
            if since.elapsed() < ORPHAN_AGE {
                continue;
            }
            debug!(uid, "removing the directories of a pod that is gone");
            let of_pod: Vec<LogDirectory> = logs.iter().filter(|entry| entry.uid == uid).cloned().collect();
            if let Err(error) = remove(context, &uid, of_pod).await {
                warn!(
                    uid,
                    error = full_message(&error),
                    "cannot remove the directories of a pod that is gone"
                );
            }
        }
    }
}

/// Keeps the cgroups of the node as they should be, whoever changes them. Never returns if they are the runtime's.
async fn cgroups(context: &Arc<EngineContext>) {
    let Some(cgroups) = &context.cgroups else { return std::future::pending().await };
    let mut has_failed = false;
    let runtime = loop {
        match context.health.runtime() {
            Some(runtime) => break runtime,
            None => tokio::time::sleep(RUNTIME_PERIOD).await,
        }
    };
    if CgroupDriver::of(&runtime) == CgroupDriver::Systemd {
        warn!("the runtime's cgroups are those of systemd: pod-level limits and `reserved` are not enforced");
        return std::future::pending().await;
    }
    loop {
        let (cgroups, all) = (Arc::clone(cgroups), Arc::clone(context));
        let outcome = blocking(move || {
            // Before the first list every pod is unknown.
            if all.is_listed() {
                cgroups.remove_unknown(|uid| all.pod(uid).is_some());
            }
            cgroups.set_up()
        });
        let error = match outcome.await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(full_message(&error)),
        };
        // Once, not every minute.
        if let Some(error) = &error
            && !has_failed
        {
            warn!(
                error,
                "cannot set up the cgroups of the node: `reserved` and the weights of pods are not enforced"
            );
        }
        has_failed = error.is_some();
        tokio::time::sleep(DIRECTORY_PERIOD).await;
    }
}

async fn remove(context: &EngineContext, uid: &str, logs: Vec<LogDirectory>) -> Result<()> {
    context.dirs.tear_down(uid).await?;
    let log_directories = context.log_directories.clone();
    blocking(move || logs.iter().try_for_each(|entry| log_directories.remove(entry))).await?
}

async fn images(context: &Arc<EngineContext>) {
    let mut inventory = ImageInventory::default();
    loop {
        tokio::time::sleep(IMAGE_PERIOD).await;
        if let Err(error) = collect(context, &mut inventory).await {
            debug!(error = full_message(&error), "cannot check the images");
        }
    }
}

/// Removes unused images when their disk is nearly full. If anything is uncertain, nothing is removed.
async fn collect(context: &Arc<EngineContext>, inventory: &mut ImageInventory) -> Result<()> {
    let began = context.clock.now();
    let images = context.backend.images().await?;
    context.puller.prune(&images).await;
    let used = used(context).await?;
    inventory.update(&images, &used, began);
    let stores = context.backend.image_fs().await?;
    let Some(store) = stores.first() else { return Ok(()) };
    let Some(disk) = context.backend.disk(&store.mount_point).await else { return Ok(()) };
    let thresholds = GcThresholds::default();
    let Some(removal) = image::plan_removal(inventory, &used, disk, &thresholds, began) else {
        return Ok(());
    };
    let mut freed = 0;
    for (id, size) in &removal.candidates {
        if freed >= removal.bytes {
            break;
        }
        match context.backend.remove_image(id).await {
            Ok(()) => {
                info!(image = id, size, "removed an unused image");
                freed += size;
            }
            Err(error) => warn!(image = id, error = full_message(&error), "cannot remove an image"),
        }
    }
    if freed < removal.bytes {
        let message = image::shortfall_message(disk, removal.percent, freed);
        context.health.record_event(NodeChange::Event {
            kind: vk_provider::EventKind::Warning,
            reason: "FreeDiskSpaceFailed".to_owned(),
            message,
        });
    }
    Ok(())
}

/// The images of all containers on the runtime, whoever started them, and those that our pods mount.
async fn used(context: &EngineContext) -> Result<ImagesInUse> {
    let containers = context.backend.used_images().await?;
    let pods = context.pods().into_iter().filter_map(|handle| handle.desired_pod());
    let mounted = pods.flat_map(|pod| volume::images(&pod));
    Ok(containers.into_iter().chain(mounted.map(|volume| volume.reference)).collect())
}
