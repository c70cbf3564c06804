//! Stops containers: preStop hook, order, grace period.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    time::Duration,
};

use futures::future::{BoxFuture, join_all};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use vk_provider::{EventKind, Result};

use super::{context::PodScope, removal::ignore_missing};
use crate::{
    containers::find_container,
    hook,
    plan::{self, StopReason},
    snapshot::{Container, Snapshot},
};

/// Stops the containers of a pod.
pub(super) struct ContainerStopper {
    scope: PodScope,
    log: Mutex<StopLog>,
}

/// What was already done to stop containers, by their ids. A stop that was cancelled and is repeated does not do it again.
#[derive(Debug, Default)]
struct StopLog {
    /// The event `Killing` was recorded.
    announced: HashSet<String>,
    /// The preStop hook was run.
    hooked: HashSet<String>,
}

/// One container to stop.
struct Stop<'a> {
    pod: Option<&'a Pod>,
    snapshot: &'a Snapshot,
    container: &'a Container,
    message: String,
    reason: StopReason,
    /// The rest of the grace period of a deletion.
    remaining: Option<Duration>,
    /// The containers that must exit first.
    after: Vec<&'a watch::Sender<bool>>,
}

// === impl ContainerStopper ===

impl ContainerStopper {
    pub(super) fn new(scope: PodScope) -> Self {
        Self { scope, log: Mutex::default() }
    }

    /// Forgets containers that no longer exist.
    pub(super) fn retain(&self, snapshot: &Snapshot) {
        let mut log = self.log.lock();
        let exists = |id: &String| snapshot.container(id).is_some();
        log.announced.retain(exists);
        log.hooked.retain(exists);
    }

    /// Stops all containers in order, then all sandboxes.
    pub(super) async fn stop_all(
        &self,
        pod: Option<&Pod>,
        snapshot: &Snapshot,
        remaining: Option<Duration>,
    ) -> Result<()> {
        let steps = plan::stop_order(pod, snapshot);
        let stopped: HashMap<&str, watch::Sender<bool>> =
            steps.iter().map(|step| (step.id.as_str(), watch::Sender::new(false))).collect();
        let stops = steps.iter().filter_map(|step| {
            let container = snapshot.container(&step.id)?;
            let stop = Stop {
                pod,
                snapshot,
                container,
                message: plan::stop_message(&step.name),
                reason: StopReason::Ordinary,
                remaining,
                after: step.after.iter().filter_map(|id| stopped.get(id.as_str())).collect(),
            };
            let done = stopped.get(step.id.as_str());
            Some(async move {
                self.stop(stop).await?;
                if let Some(done) = done {
                    done.send_replace(true);
                }
                Ok(())
            })
        });
        let answers: Vec<Result<()>> = join_all(stops).await;
        answers.into_iter().collect::<Result<()>>()?;
        for sandbox in &snapshot.sandboxes {
            ignore_missing(self.scope.context.backend.stop_sandbox(&sandbox.id).await)?;
        }
        Ok(())
    }

    /// Stops one container. `message` is that of the event `Killing`.
    pub(super) async fn stop_one(
        &self,
        pod: &Pod,
        snapshot: &Snapshot,
        id: &str,
        message: String,
        reason: StopReason,
    ) -> Result<()> {
        // A container that was started in this pass is not in the snapshot.
        let container = match snapshot.container(id) {
            Some(container) => container.clone(),
            None => self.scope.context.backend.container(id).await?,
        };
        let stop = Stop {
            pod: Some(pod),
            snapshot,
            container: &container,
            message,
            reason,
            remaining: None,
            after: Vec::new(),
        };
        self.stop(stop).await
    }

    /// Runs the preStop hook, waits for the containers that exit first, and stops the container with the rest of the grace period.
    async fn stop(&self, stop: Stop<'_>) -> Result<()> {
        let PodScope { context, handle } = &self.scope;
        let container = stop.container;
        let grace = plan::grace_period(stop.pod, container, stop.reason, stop.remaining);
        if self.log.lock().announced.insert(container.id.clone()) {
            let name = container.name.as_str();
            self.scope.record_container_event(name, EventKind::Normal, "Killing", stop.message);
        }
        let (mut spent, mut unfinished): (Duration, Option<BoxFuture<'static, ()>>) = (Duration::ZERO, None);
        if !grace.is_zero()
            && let Some(spec) = pre_stop_spec(stop.pod, container)
            && self.log.lock().hooked.insert(container.id.clone())
        {
            let call = hook::HookCall {
                pod: handle.pod.clone(),
                container: spec,
                id: container.id.clone(),
                ip: self.pod_ip(stop.snapshot),
                record: context.event_recorder(),
            };
            let hook = hook::pre_stop(&context.prober, &call, grace).await;
            spent = hook.took;
            unfinished = hook.unfinished;
        }
        if spent < grace {
            let began = Instant::now();
            let others = stop.after.iter().map(|done| async move {
                let _ = done.subscribe().wait_for(|done| *done).await;
            });
            let _ = tokio::time::timeout(grace.saturating_sub(spent), join_all(others)).await;
            spent += began.elapsed();
        }
        let stopped = context.backend.stop_container(&container.id, plan::remaining_grace(grace, spent));
        let answer = match unfinished {
            // The hook continues until the container is stopped.
            Some(hook) => tokio::select! {
                answer = stopped => answer,
                answer = async { hook.await; std::future::pending().await } => answer,
            },
            None => stopped.await,
        };
        ignore_missing(answer)
    }

    /// The pod's address: the node's with host networking.
    fn pod_ip(&self, snapshot: &Snapshot) -> Option<IpAddr> {
        let sandbox = snapshot.sandboxes.first()?;
        let node_ips = &self.scope.context.settings.node_ips;
        let ips = if sandbox.host_network { node_ips } else { &sandbox.ips };
        ips.first().copied()
    }
}

/// The spec of a container with a preStop hook: from the pod, or from the annotations of the container.
fn pre_stop_spec(pod: Option<&Pod>, container: &Container) -> Option<k8s_openapi::api::core::v1::Container> {
    let spec = pod.and_then(|pod| find_container(pod, &container.name)).map(|found| found.spec.into_owned());
    let spec = spec.or_else(|| hook::spec_from_annotations(container))?;
    spec.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.pre_stop.is_some()).then_some(spec)
}
