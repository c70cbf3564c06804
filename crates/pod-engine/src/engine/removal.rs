//! Removal of exited containers and old sandboxes.

use vk_provider::{Result, error::Kind};

use super::context::EngineContext;
use crate::{
    plan::{Garbage, MIN_GRACE},
    snapshot::Snapshot,
};

/// Removes garbage. Returns whether there was any.
pub(super) async fn remove_garbage(
    context: &EngineContext,
    snapshot: &Snapshot,
    garbage: &Garbage,
) -> Result<bool> {
    let backend = &context.backend;
    for stop in &garbage.stop {
        ignore_missing(backend.stop_container(&stop.id, MIN_GRACE).await)?;
    }
    for remove in &garbage.containers {
        remove_container(context, snapshot, &remove.id, remove.keep_log).await?;
    }
    for id in &garbage.sandboxes {
        ignore_missing(backend.stop_sandbox(id).await)?;
        ignore_missing(backend.remove_sandbox(id).await)?;
    }
    Ok(!garbage.stop.is_empty() || !garbage.containers.is_empty() || !garbage.sandboxes.is_empty())
}

/// Removes a container, and its log unless that is kept.
pub(super) async fn remove_container(
    context: &EngineContext,
    snapshot: &Snapshot,
    id: &str,
    keep_log: bool,
) -> Result<()> {
    let log = snapshot.container(id).map(|container| container.log_path.clone());
    ignore_missing(context.backend.remove_container(id).await)?;
    if let Some(log) = log.filter(|log| !keep_log && !log.is_empty()) {
        // If this fails, the log is removed with the pod.
        let _ = tokio::fs::remove_file(log).await;
    }
    Ok(())
}

/// An object that does not exist needs no stop and no removal.
pub(super) fn ignore_missing(answer: Result<()>) -> Result<()> {
    answer.or_else(|error| if *error.kind() == Kind::NotFound { Ok(()) } else { Err(error) })
}
