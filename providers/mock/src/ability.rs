//! Logs, exec, attach, port-forward, stats and fit of the mock. All but fit are derived from the statuses of pods, so they work the same way
//! for pods in this process and in another.

mod archive;
mod attach;
mod command;
mod console;
mod exec;
pub(crate) mod files;
pub(crate) mod fit;
mod logs;
mod port_forward;
pub(crate) mod stats;

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use vk_provider::{ContainerRef, Error, PodRef, Result};

use crate::connection::HostConnection;

/// The status of a container of any kind.
async fn container_status(connection: &HostConnection, container: &ContainerRef) -> Result<ContainerStatus> {
    let status = connection.status(&container.pod).await?;
    let found = statuses(&status).find(|status| status.name == container.container).cloned();
    found.ok_or_else(|| Error::not_found(format!("no {container}")))
}

/// The status of a running container.
async fn running(connection: &HostConnection, container: &ContainerRef) -> Result<ContainerStatus> {
    let status = container_status(connection, container).await?;
    match status.state.as_ref().and_then(|state| state.running.as_ref()) {
        Some(_) => Ok(status),
        None => Err(Error::unavailable(format!("{container} is not running"))),
    }
}

/// Returns when this instance of a container has ended, within a second.
async fn ended(connection: &HostConnection, container: &ContainerRef, restarts: i32) {
    loop {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        if !running(connection, container).await.is_ok_and(|status| status.restart_count == restarts) {
            return;
        }
    }
}

/// Checks that a pod has a running container.
async fn pod_runs(connection: &HostConnection, pod: &PodRef) -> Result<()> {
    let status = connection.status(pod).await?;
    let mut states = statuses(&status).filter_map(|status| status.state.as_ref());
    if states.any(|state| state.running.is_some()) {
        return Ok(());
    }
    Err(Error::unavailable(format!("pod {pod} is not running")))
}

fn statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let groups =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    groups.into_iter().flatten().flatten()
}
