//! The sync of a pod that is meant to run, in the order of a kubelet: status, volumes, stops, sandbox, starts.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use vk_provider::{Error, EventKind, PodBundle, Result, error::Kind};

use super::{
    actor::{Lifecycle, Next, PodActor, RETRY_AFTER_FAILURE, jittered},
    context::blocking,
    health::network_problem,
    observer::{Depth, EXIT_REASON_POLL},
    removal::{ignore_missing, remove_container, remove_garbage},
    starter::StartTarget,
};
use crate::{
    backend::{RuntimeInfo, SandboxConfig, full_message},
    plan::{self, PlanInput, PodPlan, SandboxPlan},
    snapshot::SandboxState,
    spec::{self, CgroupDriver, SandboxBuilder},
    status::FailureReason,
};

/// The delay before the next pass of a pod that waits for the runtime's network.
const NETWORK_RETRY: Duration = Duration::from_secs(1);

/// The result of executing a plan.
#[derive(Clone, Copy, Debug, Default)]
struct Execution {
    /// Something was done.
    acted: bool,
    /// Something could not be done.
    failed: bool,
}

impl PodActor {
    pub(super) async fn sync(&mut self, bundle: &PodBundle) -> Result<Next> {
        let runtime = self.observer.runtime().await?;
        if self.lifecycle == Lifecycle::New {
            self.starter.adopt(&bundle.pod, self.observer.snapshot());
            self.admit(&bundle.pod);
            self.lifecycle = Lifecycle::Active;
            if self.observer.snapshot().is_live()
                && let Err(error) = self.ensure_cgroup(bundle, &runtime).await
            {
                self.scope.warn("cannot set the limits of a running pod", &error);
            }
        }
        if self.lifecycle.is_terminated() {
            return self.stay_terminated(bundle).await;
        }
        let computed = self.report(bundle);
        let pod = with_status(bundle, &computed);
        if is_final(&computed) {
            if self.observer.awaits_oom_reason() {
                // A runtime that stops the sandbox does not learn of it any more.
                self.scope.handle.mark_stale();
                return Ok(Next::After(EXIT_REASON_POLL));
            }
            self.finish(Some(&pod), &bundle.pod, None).await?;
            return Ok(Next::After(self.resync_delay()));
        }
        let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or_default();
        if let Some(problem) = network_problem(&runtime)
            && !host_network
        {
            self.scope.record_event(EventKind::Warning, "NetworkNotReady", problem);
            return Ok(Next::After(jittered(NETWORK_RETRY)));
        }
        if let Err((failures, retry)) = self.mounts.set_up(bundle).await {
            for failure in failures.iter().filter(|failure| !failure.reported) {
                self.scope.record_event(EventKind::Warning, "FailedMount", failure.message());
            }
            return Ok(Next::After(retry));
        }
        let now = self.scope.now();
        self.starter.prune_backoffs(now);
        let plan = plan::compute_plan(&PlanInput {
            pod: &pod,
            snapshot: self.observer.snapshot(),
            probe_results: &self.probes.results(),
            backoffs: self.starter.backoffs(),
            now,
        });
        let execution = self.execute(bundle, &pod, &runtime, &plan).await?;
        if execution.acted {
            self.refresh(Depth::Full).await?;
        }
        self.report(bundle);
        if execution.acted && !execution.failed {
            // The next action may be due already.
            return Ok(Next::After(Duration::ZERO));
        }
        self.collect_garbage().await;
        Ok(Next::After(self.next_delay(&plan, execution)))
    }

    /// Rejects a pod that a kubelet would reject, unless something of it was created already.
    fn admit(&mut self, pod: &Pod) {
        let finished = pod.status.as_ref().is_some_and(is_final);
        if finished || !self.observer.snapshot().sandboxes.is_empty() {
            return;
        }
        if let Err(FailureReason { reason, message }) = spec::admit(pod, &self.scope.context.features) {
            self.scope.record_event(EventKind::Warning, &reason, message.clone());
            self.reporter.reject(FailureReason { reason, message: format!("Pod was rejected: {message}") });
        }
    }

    /// Keeps a finished pod terminated: late containers are stopped.
    async fn stay_terminated(&mut self, bundle: &PodBundle) -> Result<Next> {
        if self.observer.snapshot().is_live() {
            self.stop_all(Some(&bundle.pod), &bundle.pod, None).await?;
            self.refresh(Depth::Full).await?;
        }
        self.mounts.cancel_setup();
        let snapshot = Arc::clone(self.observer.snapshot());
        self.reporter.publish(&bundle.pod, &snapshot, &self.probes.results(), true);
        self.collect_garbage().await;
        Ok(Next::After(self.resync_delay()))
    }

    /// Reports the status, and starts and stops probes accordingly.
    fn report(&mut self, bundle: &PodBundle) -> Arc<PodStatus> {
        let snapshot = self.observer.snapshot();
        let computed = self.reporter.publish(&bundle.pod, snapshot, &self.probes.results(), false);
        self.probes.sync(&bundle.pod, snapshot, &computed);
        computed
    }

    async fn execute(
        &mut self,
        bundle: &PodBundle,
        pod: &Pod,
        runtime: &RuntimeInfo,
        plan: &PodPlan,
    ) -> Result<Execution> {
        let mut execution = Execution::default();
        self.pulls.retain(|name| plan.start.iter().any(|start| start.name == name));
        if plan.start.is_empty() {
            self.pulls.clear();
        }
        if let SandboxPlan::Create { replaces: Some(_), .. } = &plan.sandbox {
            let message = "Pod sandbox changed, it will be killed and re-created.";
            self.scope.record_event(EventKind::Normal, "SandboxChanged", message.to_owned());
        }
        let snapshot = Arc::clone(self.observer.snapshot());
        if plan.stop_all {
            self.stop_all(Some(pod), &bundle.pod, None).await?;
            execution.acted = true;
        } else {
            for stop in &plan.stop {
                self.stopper.stop_one(pod, &snapshot, &stop.id, stop.message.clone(), stop.reason).await?;
                execution.acted = true;
            }
        }
        for remove in &plan.remove {
            match remove_container(&self.scope.context, &snapshot, &remove.id, remove.keep_log).await {
                Ok(()) => execution.acted = true,
                Err(error) => self.scope.warn("cannot remove a container", &error),
            }
        }
        let (sandbox, attempt) = match &plan.sandbox {
            SandboxPlan::None => {
                execution.acted |= self.stop_ready_sandboxes().await?;
                return Ok(execution);
            }
            SandboxPlan::Keep(id) => {
                let known = snapshot.sandboxes.iter().find(|sandbox| sandbox.id == *id);
                (Some(id.clone()), known.map_or(0, |sandbox| sandbox.attempt))
            }
            SandboxPlan::Create { attempt, .. } => (None, *attempt),
        };
        if sandbox.is_none() || !plan.start.is_empty() {
            let config = self.sandbox_config(bundle, runtime, attempt).await;
            let config = config.inspect_err(|error| self.record_sandbox_failure(error))?;
            self.ensure_cgroup(bundle, runtime).await.inspect_err(|error| {
                let message = format!("unable to ensure pod container exists: {}", full_message(error));
                self.scope.record_event(EventKind::Warning, "FailedToCreatePodContainer", message);
            })?;
            let sandbox = if let Some(id) = sandbox {
                id
            } else {
                execution.acted = true;
                self.run_sandbox(bundle, &config).await?
            };
            let target = StartTarget {
                bundle,
                pod,
                snapshot: self.observer.snapshot(),
                runtime,
                sandbox: &sandbox,
                config: &config,
                volumes: self.mounts.volumes(),
                stopper: &self.stopper,
            };
            for (name, started) in self.starter.start_all(&target, &plan.start, &mut self.pulls).await {
                execution.acted |= started.is_ok();
                execution.failed |= started.is_err();
                self.reporter.set_failure(&name, started.err());
            }
        }
        for deferred in &plan.deferred {
            let name = deferred.name.as_str();
            self.reporter.set_failure(name, Some(deferred.failure.clone()));
            let event = deferred.event.clone();
            self.scope.record_container_event(name, EventKind::Warning, "BackOff", event);
        }
        Ok(execution)
    }

    /// Stops the sandboxes of a pod that runs nothing any more. Returns whether one was ready.
    async fn stop_ready_sandboxes(&self) -> Result<bool> {
        let sandboxes = &self.observer.snapshot().sandboxes;
        let mut stopped = false;
        for sandbox in sandboxes.iter().filter(|sandbox| sandbox.state == SandboxState::Ready) {
            ignore_missing(self.scope.context.backend.stop_sandbox(&sandbox.id).await)?;
            stopped = true;
        }
        Ok(stopped)
    }

    async fn sandbox_config(
        &self,
        bundle: &PodBundle,
        runtime: &RuntimeInfo,
        attempt: u32,
    ) -> Result<SandboxConfig> {
        let name = bundle.pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref());
        let class = match (name, bundle.resolver.runtime_class().await) {
            (_, Ok(class)) => class,
            (Some(name), Err(error)) if matches!(error.kind(), Kind::Unresolved(_) | Kind::NotFound) => {
                return Err(spec::no_runtime_class(name));
            }
            (_, Err(error)) => return Err(error),
        };
        let context = &self.scope.context;
        let host_dns = spec::host_dns(&context.settings).await?;
        let builder = SandboxBuilder {
            pod: &bundle.pod,
            attempt,
            settings: &context.settings,
            features: &context.features,
            runtime,
            runtime_class: class.as_deref(),
            host_dns: &host_dns,
        };
        builder.build(&|kind, reason, message| self.scope.record_event(kind, reason, message))
    }

    /// Creates the pod's cgroup with its limits, if the engine does that on this host.
    async fn ensure_cgroup(&self, bundle: &PodBundle, runtime: &RuntimeInfo) -> Result<()> {
        let context = &self.scope.context;
        // systemd creates the slices that it is asked for, and overwrites what others write to them.
        let cgroups = context.cgroups.clone().filter(|_| CgroupDriver::of(runtime) == CgroupDriver::Cgroupfs);
        let Some(cgroups) = cgroups else { return Ok(()) };
        let (pod, reference) = (Arc::clone(&bundle.pod), self.scope.pod().clone());
        let features = context.features.clone();
        let ensured = blocking(move || cgroups.ensure(&pod, &reference, &features)).await?;
        ensured.map_err(|error| Error::internal(format!("create the pod's cgroup: {error}")).caused_by(error))
    }

    /// Creates a sandbox, and reports its addresses before images are pulled. Returns its id.
    async fn run_sandbox(&mut self, bundle: &PodBundle, config: &SandboxConfig) -> Result<String> {
        let folder = &config.log_directory;
        let created = tokio::fs::create_dir_all(folder).await.map_err(|error| {
            Error::internal(format!("create the log directory {folder} of the pod")).caused_by(error)
        });
        let run = async {
            created?;
            self.scope.context.backend.run_sandbox(config).await
        };
        let id = run.await.inspect_err(|error| {
            self.record_sandbox_failure(error);
            // The runtime may have created it.
            self.scope.handle.mark_stale();
        })?;
        self.refresh(Depth::Full).await?;
        self.report(bundle);
        Ok(id)
    }

    fn record_sandbox_failure(&self, error: &Error) {
        let (kind, reason, message) = spec::sandbox_failure(error);
        self.scope.record_event(kind, reason, message);
    }

    /// Removes exited containers and old sandboxes that newer ones replace.
    async fn collect_garbage(&self) {
        let snapshot = self.observer.snapshot();
        let garbage = plan::find_garbage(true, snapshot, self.scope.now());
        match remove_garbage(&self.scope.context, snapshot, &garbage).await {
            Ok(true) => self.scope.handle.mark_stale(),
            Ok(false) => {}
            Err(error) => self.scope.warn("cannot remove old containers or sandboxes of the pod", &error),
        }
    }

    /// The delay before the next pass: until the next deadline, shorter after a failure, at most until the resync.
    fn next_delay(&self, plan: &PodPlan, execution: Execution) -> Duration {
        let now = self.scope.now();
        let due =
            plan.next_deadline.map(|due| Duration::try_from(due.duration_since(now)).unwrap_or_default());
        let retry = execution.failed.then(|| jittered(RETRY_AFTER_FAILURE));
        [Some(self.resync_delay()), due, retry].into_iter().flatten().min().unwrap_or(RETRY_AFTER_FAILURE)
    }
}

/// The pod with the status that was computed last, on which plans are based.
fn with_status(bundle: &PodBundle, status: &PodStatus) -> Pod {
    Pod { metadata: bundle.pod.metadata.clone(), spec: bundle.pod.spec.clone(), status: Some(status.clone()) }
}

/// Whether the phase is final.
fn is_final(status: &PodStatus) -> bool {
    vk_provider::pod::is_terminal_phase(status.phase.as_deref())
}
