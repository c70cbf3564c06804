//! Termination of a pod: its containers, sandboxes and volumes are stopped, and everything is removed if it is deleted.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;
use vk_provider::{Error, EventKind, PodBundle, Result};

use super::{
    actor::{Lifecycle, Next, PodActor, new_probes},
    context::blocking,
    observer::Depth,
    pod_handle::StopRequest,
    removal::{ignore_missing, remove_garbage},
};
use crate::{backend::full_message, log, plan};

/// How long the status and the logs of a deleted pod are available before everything is removed.
const KEEP: Duration = Duration::from_secs(30);
/// The minimum grace period of a pod, as in a kubelet's pod worker.
const MIN_POD_GRACE: Duration = Duration::from_secs(1);

impl PodActor {
    /// Stops a pod, and removes it later if it is deleted. A pod that was only stopped is kept, so that its status can be read.
    pub(super) async fn terminate(&mut self, stop: &StopRequest, bundle: Option<&PodBundle>) -> Result<Next> {
        let is_live = self.observer.snapshot().is_live();
        if let Lifecycle::Removing(at) = self.lifecycle
            && !is_live
        {
            return match at.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                Some(left) => Ok(Next::After(left)),
                None => self.remove().await,
            };
        }
        self.mounts.cancel_setup();
        if !stop.remove && self.lifecycle.is_terminated() && !is_live {
            return Ok(Next::After(self.resync_delay()));
        }
        let known = stop.last_known.clone().or_else(|| bundle.map(|bundle| Arc::clone(&bundle.pod)));
        // The stop order of containers follows from the pod spec, which the checkpoint has too.
        let known = match known {
            Some(pod) => Some(pod),
            None => self.checkpoint.load().await,
        };
        let shown = match &known {
            Some(pod) => Arc::clone(pod),
            None => self.checkpoint.load_or_derive(self.observer.snapshot()).await,
        };
        if !self.lifecycle.is_terminated() {
            let snapshot = Arc::clone(self.observer.snapshot());
            self.reporter.publish(&shown, &snapshot, &self.probes.results(), false);
        }
        self.probes.begin_stopping();
        let left = stop.deadline.saturating_duration_since(Instant::now()).max(MIN_POD_GRACE);
        self.finish(known.as_deref(), &shown, Some(left)).await?;
        if !stop.remove {
            return Ok(Next::After(self.resync_delay()));
        }
        self.lifecycle = Lifecycle::Removing(Instant::now() + KEEP);
        Ok(Next::After(KEEP))
    }

    /// Stops everything that runs and reports the final status. `remaining` is the rest of the grace period of a deletion. `pod` is `None`
    /// if its spec is unknown; `shown` is the pod whose status is reported.
    pub(super) async fn finish(
        &mut self,
        pod: Option<&Pod>,
        shown: &Pod,
        remaining: Option<Duration>,
    ) -> Result<()> {
        if let Err(error) = self.stop_all(pod, shown, remaining).await {
            let message = format!("error killing pod: {}", full_message(&error));
            self.scope.record_event(EventKind::Warning, "FailedKillPod", message);
            return Err(error);
        }
        // A deletion does not wait for objects that cannot be inspected.
        let depth = if remaining.is_some() { Depth::Listed } else { Depth::Full };
        self.refresh(depth).await?;
        let snapshot = Arc::clone(self.observer.snapshot());
        if snapshot.is_live() {
            let pod = self.scope.pod();
            return Err(Error::internal(format!("stop pod {pod}: a container or sandbox still runs")));
        }
        self.probes = new_probes(&self.scope);
        // Volumes are unmounted before the end of the pod is reported.
        if let Err(error) = self.mounts.tear_down().await {
            self.scope.warn("cannot remove the pod's volumes; trying again later", &error);
        }
        self.lifecycle = Lifecycle::Terminated;
        if let Some(cgroups) = self.scope.context.cgroups.clone() {
            let uid = Arc::clone(&self.scope.pod().uid);
            blocking(move || cgroups.release(&uid)).await?;
        }
        self.reporter.publish(shown, &snapshot, &self.probes.results(), true);
        Ok(())
    }

    /// Stops all containers in order, then all sandboxes. Meanwhile changes of readiness are reported.
    pub(super) async fn stop_all(
        &mut self,
        pod: Option<&Pod>,
        shown: &Pod,
        remaining: Option<Duration>,
    ) -> Result<()> {
        let snapshot = Arc::clone(self.observer.snapshot());
        let is_terminated = self.lifecycle.is_terminated();
        let mut probe_results = self.probes.changes();
        let mut stop = std::pin::pin!(self.stopper.stop_all(pod, &snapshot, remaining));
        loop {
            tokio::select! {
                biased;
                answer = &mut stop => return answer,
                Ok(()) = probe_results.changed(), if !is_terminated => {
                    self.reporter.publish(shown, &snapshot, &self.probes.results(), false);
                }
            }
        }
    }

    /// Removes everything of a deleted pod, and ends its task.
    async fn remove(&mut self) -> Result<Next> {
        let (context, pod) = (Arc::clone(&self.scope.context), self.scope.pod().clone());
        let snapshot = Arc::clone(self.observer.snapshot());
        let garbage = plan::find_garbage(false, &snapshot, self.scope.now());
        remove_garbage(&context, &snapshot, &garbage).await?;
        // Removing a sandbox removes all its containers, including late ones.
        for sandbox in &snapshot.sandboxes {
            ignore_missing(context.backend.stop_sandbox(&sandbox.id).await)?;
            ignore_missing(context.backend.remove_sandbox(&sandbox.id).await)?;
        }
        for container in &snapshot.containers {
            ignore_missing(context.backend.remove_container(&container.id).await)?;
        }
        self.refresh(Depth::Listed).await?;
        if !self.observer.snapshot().is_empty() {
            return Ok(Next::After(Duration::ZERO));
        }
        if let Some(cgroups) = context.cgroups.clone() {
            let uid = Arc::clone(&pod.uid);
            let removed = blocking(move || cgroups.remove(&uid)).await?;
            removed.map_err(|error| {
                Error::internal(format!("remove the cgroup of pod {pod}: {error}")).caused_by(error)
            })?;
        }
        context.dirs.tear_down(&pod.uid).await?;
        log::directory::remove(&context.settings.log_root, &pod).await?;
        context.puller.forget(&pod.uid);
        context.unregister(&self.scope.handle, true);
        Ok(Next::Done)
    }
}
