//! One pass over a pod that shall run, in the order of a kubelet: status, volumes, what must stop, sandbox, what must start.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rand::RngExt as _;
use vk_provider::{Error, EventKind, PodBundle, Result, error::Kind};

use super::{
    actor::{AFTER_FAILURE, Actor, Next, complain, with_status},
    health::network_trouble,
    look::{Depth, SETTLING},
    stop::gone,
};
use crate::{
    backend::{Runtime, SandboxConfig},
    decide::{self, Garbage, Plan, SandboxPlan},
    make,
    snapshot::SandboxState,
    status::Trouble,
};

/// How soon a pod that waits for the runtime's network is looked at again.
const NETWORK_AGAIN: Duration = Duration::from_secs(1);

/// What came of the starts of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// Something was done.
    pub(super) did: bool,
    /// Something could not be done.
    pub(super) failed: bool,
}

impl Actor {
    pub(super) async fn sync(&mut self, bundle: &PodBundle) -> Result<Next> {
        if !self.adopted {
            let now = self.now();
            self.backoffs.adopt(&bundle.pod, &self.snapshot, now);
            self.admit(&bundle.pod);
            self.adopted = true;
        }
        if self.over {
            return self.stay_over(bundle).await;
        }
        let runtime = self.runtime().await?;
        let computed = self.show(bundle);
        let pod = with_status(bundle, &computed);
        if is_final(&computed) {
            if self.may_learn_more() {
                // A runtime that is told to stop the sandbox learns nothing any more.
                self.slot.outdate();
                return Ok(Next::In(SETTLING));
            }
            self.end(Some(&pod), &bundle.pod, None).await?;
            return Ok(Next::In(self.resync()));
        }
        let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or_default();
        if let Some(trouble) = network_trouble(&runtime)
            && !host_network
        {
            self.tell(EventKind::Warning, "NetworkNotReady", trouble);
            return Ok(Next::In(NETWORK_AGAIN.mul_f64(rand::rng().random_range(1.0..1.5))));
        }
        if let Err(failures) = self.volumes.ready(bundle).await {
            for failure in failures.iter().filter(|failure| !failure.told) {
                self.tell(EventKind::Warning, "FailedMount", failure.message());
            }
            self.unmounted = true;
            return Ok(Next::In(self.mounting.next(None, &mut rand::rng())));
        }
        self.unmounted = false;
        self.mounting.reset();
        let verdicts = self.probes.verdicts();
        let now = self.now();
        self.backoffs.sweep(now);
        let plan = decide::plan(&decide::Situation {
            pod: &pod,
            snapshot: &self.snapshot,
            verdicts: &verdicts,
            backoffs: &self.backoffs,
            now,
        });
        let outcome = self.carry_out(bundle, &pod, &runtime, &plan).await?;
        if outcome.did {
            self.refresh(Depth::Full).await?;
        }
        self.show(bundle);
        if outcome.did && !outcome.failed {
            // What comes next may be due already.
            return Ok(Next::In(Duration::ZERO));
        }
        self.collect().await;
        Ok(Next::In(self.wait(&plan, outcome)))
    }

    /// Refuses a pod of which nothing was made yet, where a kubelet would.
    fn admit(&mut self, pod: &Pod) {
        let ended = pod.status.as_ref().is_some_and(is_final);
        if ended || !self.snapshot.sandboxes.is_empty() {
            return;
        }
        if let Err(Trouble { reason, message }) = make::admit(pod, &self.shared.machine) {
            self.tell(EventKind::Warning, &reason, message.clone());
            self.failed = Some(Trouble { reason, message: format!("Pod was rejected: {message}") });
        }
    }

    /// A pod that has ended by itself stays so: only what came late is stopped.
    async fn stay_over(&mut self, bundle: &PodBundle) -> Result<Next> {
        if self.snapshot.is_live() {
            self.stop_all(Some(&bundle.pod), &bundle.pod, None).await?;
            self.refresh(Depth::Full).await?;
        }
        self.unmounted = false;
        self.publish(&bundle.pod, true);
        self.collect().await;
        Ok(Next::In(self.resync()))
    }

    /// Tells the status, and lets the probes follow it.
    fn show(&mut self, bundle: &PodBundle) -> Arc<PodStatus> {
        let computed = self.publish(&bundle.pod, false);
        self.probes.sync(&bundle.pod, &self.snapshot, &computed);
        computed
    }

    async fn carry_out(
        &mut self,
        bundle: &PodBundle,
        pod: &Pod,
        runtime: &Runtime,
        plan: &Plan,
    ) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        if let SandboxPlan::Create { replaces: Some(_), .. } = &plan.sandbox {
            let message = "Pod sandbox changed, it will be killed and re-created.";
            self.tell(EventKind::Normal, "SandboxChanged", message.to_owned());
        }
        if plan.stop_all {
            self.stop_all(Some(pod), &bundle.pod, None).await?;
            outcome.did = true;
        } else {
            for stop in &plan.stop {
                self.stop_one(pod, &stop.id, stop.message.clone(), stop.why).await?;
                outcome.did = true;
            }
        }
        for remove in &plan.remove {
            match self.remove_container(&remove.id, remove.keep_log).await {
                Ok(()) => outcome.did = true,
                Err(error) => complain(&self.slot.pod, "cannot remove a container", &error),
            }
        }
        let (sandbox, attempt) = match &plan.sandbox {
            SandboxPlan::None => {
                outcome.did |= self.stop_sandboxes().await?;
                return Ok(outcome);
            }
            SandboxPlan::Keep(id) => {
                let known = self.snapshot.sandboxes.iter().find(|sandbox| sandbox.id == *id);
                (Some(id.clone()), known.map_or(0, |sandbox| sandbox.attempt))
            }
            SandboxPlan::Create { attempt, .. } => (None, *attempt),
        };
        if sandbox.is_none() || !plan.start.is_empty() {
            let config = self.sandbox_config(bundle, runtime, attempt).await;
            let config = config.inspect_err(|error| self.tell_sandbox_failure(error))?;
            let sandbox = if let Some(id) = sandbox {
                id
            } else {
                outcome.did = true;
                self.run_sandbox(bundle, &config).await?
            };
            let started = self.start_all(bundle, pod, runtime, &sandbox, &config, &plan.start).await;
            outcome.did |= started.did;
            outcome.failed |= started.failed;
        }
        for held in &plan.held {
            self.troubles.insert(held.name.clone(), held.trouble.clone());
            let (pod, name) = (&self.slot.pod, held.name.as_str());
            self.shared.tell(pod, Some(name), EventKind::Warning, "BackOff", held.event.clone());
        }
        Ok(outcome)
    }

    /// Stops the sandboxes of a pod that runs nothing any more. Tells whether one was ready.
    async fn stop_sandboxes(&self) -> Result<bool> {
        let ready = self.snapshot.sandboxes.iter().filter(|sandbox| sandbox.state == SandboxState::Ready);
        let mut stopped = false;
        for sandbox in ready {
            gone(self.shared.backend.stop_sandbox(&sandbox.id).await)?;
            stopped = true;
        }
        Ok(stopped)
    }

    async fn sandbox_config(
        &self,
        bundle: &PodBundle,
        runtime: &Runtime,
        attempt: u32,
    ) -> Result<SandboxConfig> {
        let name = bundle.pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref());
        let class = match (name, bundle.resolver.runtime_class().await) {
            (_, Ok(class)) => class,
            (Some(name), Err(error)) if matches!(error.kind(), Kind::Unresolved(_) | Kind::NotFound) => {
                return Err(make::no_runtime_class(name));
            }
            (_, Err(error)) => return Err(error),
        };
        let host_dns = make::host_dns(&self.shared.settings).await?;
        let order = make::SandboxOrder {
            pod: &bundle.pod,
            attempt,
            settings: &self.shared.settings,
            machine: &self.shared.machine,
            runtime,
            runtime_class: class.as_deref(),
            host_dns: &host_dns,
        };
        make::sandbox(&order, &|kind, reason, message| self.tell(kind, reason, message))
    }

    /// Makes a sandbox, and shows its addresses before anything is pulled.
    async fn run_sandbox(&mut self, bundle: &PodBundle, config: &SandboxConfig) -> Result<String> {
        let folder = &config.log_directory;
        let made = tokio::fs::create_dir_all(folder).await.map_err(|error| {
            Error::internal(format!("create the log directory {folder} of the pod")).caused_by(error)
        });
        let run = async {
            made?;
            self.shared.backend.run_sandbox(config).await
        };
        let id = run.await.inspect_err(|error| {
            self.tell_sandbox_failure(error);
            // It may be there all the same.
            self.slot.outdate();
        })?;
        self.refresh(Depth::Full).await?;
        self.show(bundle);
        Ok(id)
    }

    fn tell_sandbox_failure(&self, error: &Error) {
        let (kind, reason, message) = make::sandbox_failure(error);
        self.tell(kind, reason, message);
    }

    /// Removes dead containers and sandboxes of which newer ones are there.
    async fn collect(&mut self) {
        let garbage = decide::garbage(true, &self.snapshot, self.now());
        match self.remove(&garbage).await {
            Ok(true) => self.slot.outdate(),
            Ok(false) => {}
            Err(error) => complain(&self.slot.pod, "cannot remove what is dead of the pod", &error),
        }
    }

    /// Removes what is garbage. Tells whether there was any.
    pub(super) async fn remove(&self, garbage: &Garbage) -> Result<bool> {
        let backend = &self.shared.backend;
        for stop in &garbage.stop {
            gone(backend.stop_container(&stop.id, decide::LEAST_GRACE).await)?;
        }
        for remove in &garbage.containers {
            self.remove_container(&remove.id, remove.keep_log).await?;
        }
        for id in &garbage.sandboxes {
            gone(backend.stop_sandbox(id).await)?;
            gone(backend.remove_sandbox(id).await)?;
        }
        Ok(!garbage.stop.is_empty() || !garbage.containers.is_empty() || !garbage.sandboxes.is_empty())
    }

    async fn remove_container(&self, id: &str, keep_log: bool) -> Result<()> {
        let log = self.snapshot.container(id).map(|container| container.log_path.clone());
        gone(self.shared.backend.remove_container(id).await)?;
        if let Some(log) = log.filter(|log| !keep_log && !log.is_empty()) {
            // A log that nobody can find any more is removed with the pod at the latest.
            let _ = tokio::fs::remove_file(log).await;
        }
        Ok(())
    }

    /// When to look again: when a back-off is over, soon after a failure, and else as often as a pod is looked at without a reason.
    fn wait(&self, plan: &Plan, outcome: Outcome) -> Duration {
        let now = self.now();
        let due = plan.look_again.map(|due| Duration::try_from(due.duration_since(now)).unwrap_or_default());
        let failed = outcome.failed.then(|| AFTER_FAILURE.mul_f64(rand::rng().random_range(1.0..1.5)));
        [Some(self.resync()), due, failed].into_iter().flatten().min().unwrap_or(AFTER_FAILURE)
    }
}

/// Whether the phase is one that a pod never leaves.
fn is_final(status: &PodStatus) -> bool {
    vk_provider::pod::is_terminal_phase(status.phase.as_deref())
}
