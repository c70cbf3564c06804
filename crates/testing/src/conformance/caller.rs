//! Calls the provider as the core does: with a time limit, and with the core's reaction to errors.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use vk_provider::{
    Changes, Error, ObservedPod, PodBundle, PodChange, PodRef, Provider, Result, Supervisor,
    ability::{Attach, Exec, Fit, Logs, PortForward, Stats},
    error::{Kind, Reaction},
};

use super::{
    context::lacking,
    pod_builder::reference,
    pod_status,
    resolver::bundle,
    result::{Outcome, Stop},
    subject::{Feature, Subject},
};
use crate::eventually::within;

/// A provider that one process has opened.
pub(crate) struct Caller {
    provider: Arc<dyn Provider>,
    subject: Arc<dyn Subject>,
    limit: Duration,
    changes: Arc<Mutex<Vec<PodChange>>>,
    /// The polling period of a provider that does not push.
    period: Option<Duration>,
    _listener: JoinSet<()>,
    /// Owns the provider's tasks.
    supervisor: Supervisor,
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.supervisor.stop();
    }
}

// === impl Caller ===

impl Caller {
    /// Subscribes to changes, as the core does before it creates any pod, and keeps all of them.
    pub(super) fn new(
        provider: Arc<dyn Provider>,
        subject: Arc<dyn Subject>,
        supervisor: Supervisor,
    ) -> Self {
        let changes = Arc::<Mutex<Vec<PodChange>>>::default();
        let mut listener = JoinSet::new();
        let period = match provider.changes() {
            Changes::Push(mut stream) => {
                let changes = Arc::clone(&changes);
                listener.spawn(async move {
                    while let Some(change) = stream.next().await {
                        changes.lock().push(change);
                    }
                });
                None
            }
            Changes::Poll(period) => Some(period),
        };
        let limit = subject.limit();
        Self { provider, subject, limit, changes, period, _listener: listener, supervisor }
    }

    pub(crate) fn provider(&self) -> &dyn Provider {
        &*self.provider
    }

    /// The polling period; `None` for a provider that pushes.
    pub(crate) fn period(&self) -> Option<Duration> {
        self.period
    }

    /// Makes a call with the time limit.
    pub(crate) async fn call<T>(&self, name: &str, call: impl Future<Output = T>) -> Outcome<T> {
        tokio::time::timeout(self.limit, call).await.map_err(|_| {
            let seen = format!("{name} did not return within {:?}", self.limit);
            Stop::violated(seen, "start the work and return; the status shows the result later")
        })
    }

    /// Repeats a check until it succeeds.
    pub(crate) async fn until<T, F>(
        &self,
        what: &str,
        advice: &'static str,
        check: impl FnMut() -> F,
    ) -> Outcome<T>
    where
        F: Future<Output = Result<T, String>>,
    {
        within(self.limit, check).await.map_err(|seen| {
            Stop::violated(format!("not within {:?}: {what}; last seen: {seen}", self.limit), advice)
        })
    }

    pub(crate) async fn try_create(&self, pod: &Arc<Pod>) -> Outcome<Result<()>> {
        self.call("create_pod", self.provider.create_pod(bundle(pod, true))).await
    }

    pub(crate) async fn try_update(&self, pod: &Arc<Pod>) -> Outcome<Result<()>> {
        self.call("update_pod", self.provider.update_pod(bundle(pod, true))).await
    }

    pub(crate) async fn try_delete(
        &self,
        pod: &PodRef,
        last_known: Option<&Arc<Pod>>,
        grace: Duration,
    ) -> Outcome<Result<()>> {
        self.call("delete_pod", self.provider.delete_pod(pod, last_known.cloned(), grace)).await
    }

    pub(crate) async fn status(&self, pod: &PodRef) -> Outcome<Result<PodStatus>> {
        self.call("pod_status", self.provider.pod_status(pod)).await
    }

    pub(crate) async fn pods(&self) -> Outcome<Result<Vec<ObservedPod>>> {
        self.call("pods", self.provider.pods()).await
    }

    /// Creates a pod, with the retries of the core.
    pub(crate) async fn create(&self, pod: &Arc<Pod>) -> Outcome<PodRef> {
        self.create_bundle(&bundle(pod, true)).await
    }

    /// Creates a pod with its own resolver, with the retries of the core.
    pub(crate) async fn create_bundle(&self, bundle: &PodBundle) -> Outcome<PodRef> {
        let made = self
            .until(
                "create_pod accepts the pod",
                "accept the pod, or let Subject::configure_pod make it one that the backend can run",
                || async {
                    let call = self.provider.create_pod(bundle.clone());
                    retry(self.call("create_pod", call).await, Reaction::Done)
                },
            )
            .await?;
        made.map_err(|error| {
            let seen = format!("create_pod returned {}: {}", error.kind(), error.report());
            Stop::violated(
                seen,
                "accept the pod, or let Subject::configure_pod make it one that the backend can run",
            )
        })?;
        Ok(reference(&bundle.pod))
    }

    /// Creates a pod and waits until it runs.
    pub(crate) async fn start(&self, pod: &Arc<Pod>) -> Outcome<(PodRef, PodStatus)> {
        let made = self.create(pod).await?;
        let status = self.running(&made).await?;
        Ok((made, status))
    }

    /// Waits until all regular containers of a pod run.
    pub(crate) async fn running(&self, pod: &PodRef) -> Outcome<PodStatus> {
        let advice = "report the phase Running and every container of the pod as running once they do";
        self.shows(pod, "the pod is Running and so are its containers", advice, pod_status::is_running).await
    }

    /// Waits until the status satisfies a condition.
    pub(crate) async fn shows(
        &self,
        pod: &PodRef,
        what: &str,
        advice: &'static str,
        wanted: impl Fn(&PodStatus) -> bool,
    ) -> Outcome<PodStatus> {
        self.until(what, advice, || async {
            match seen(self.status(pod).await)? {
                Ok(status) if wanted(&status) => Ok(status),
                Ok(status) => Err(pod_status::summary(&status)),
                Err(error) => Err(describe_error("pod_status", &error)),
            }
        })
        .await
    }

    /// Deletes a pod, with the retries of the core.
    pub(crate) async fn delete(&self, pod: &Arc<Pod>, grace: Duration) -> Outcome {
        let advice = "return Ok once stopping has begun, and NotFound when nothing of the pod runs";
        let id = reference(pod);
        let answer = self
            .until("delete_pod accepts the pod", advice, || async {
                retry(self.try_delete(&id, Some(pod), grace).await, Reaction::Gone)
            })
            .await?;
        answer.map_err(|error| Stop::violated(describe_error("delete_pod", &error), advice))
    }

    /// Waits until nothing of a pod runs. Returns its last status, or `None` when it is not found.
    pub(crate) async fn over(&self, pod: &PodRef) -> Outcome<Option<PodStatus>> {
        let advice = "after a delete, report every container as terminated or return NotFound as soon as nothing \
                      of the pod runs";
        self.until("nothing of the pod runs any more", advice, || async {
            match seen(self.status(pod).await)? {
                Ok(status) if pod_status::is_over(&status) => Ok(Some(status)),
                Ok(status) => Err(pod_status::summary(&status)),
                Err(error) if *error.kind() == Kind::NotFound => Ok(None),
                Err(error) => Err(describe_error("pod_status", &error)),
            }
        })
        .await
    }

    /// The list entries of this UID.
    pub(crate) async fn listed(&self, pod: &PodRef) -> Outcome<Vec<ObservedPod>> {
        let all = self
            .until("pods returns a list", "return every pod that the backend runs for the node", || async {
                seen(self.pods().await)?.map_err(|error| describe_error("pods", &error))
            })
            .await?;
        Ok(all.into_iter().filter(|observed| observed.pod.uid == pod.uid).collect())
    }

    /// Checks that a pod still runs with the same containers.
    pub(crate) async fn undisturbed(
        &self,
        pod: &PodRef,
        before: &PodStatus,
        advice: &'static str,
    ) -> Outcome {
        let now = self.status(pod).await?;
        let now = now.map_err(|error| Stop::violated(describe_error("pod_status", &error), advice))?;
        if !pod_status::is_running(&now) {
            return Err(Stop::violated(
                format!("the pod no longer runs: {}", pod_status::summary(&now)),
                advice,
            ));
        }
        match pod_status::disturbed(before, &now) {
            Some(difference) => Err(Stop::violated(difference, advice)),
            None => Ok(()),
        }
    }

    /// The number of changes until now.
    pub(crate) fn mark(&self) -> usize {
        self.changes.lock().len()
    }

    /// The changes of a pod since then: refreshes as `None`, statuses as they are.
    pub(crate) fn changes_since(&self, mark: usize, pod: &PodRef) -> Vec<Option<PodStatus>> {
        let changes = self.changes.lock();
        let about = changes[mark..].iter().filter_map(|change| match change {
            PodChange::Refresh(of) if of.uid == pod.uid => Some(None),
            PodChange::Status(of, status) if of.uid == pod.uid => Some(Some((**status).clone())),
            _ => None,
        });
        about.collect()
    }

    /// All changes until now, as text.
    pub(crate) fn all_changes(&self) -> String {
        format!("{:?}", self.changes.lock())
    }

    pub(crate) fn logs(&self) -> Outcome<&dyn Logs> {
        self.ability(self.provider.logs(), Feature::Logs)
    }

    pub(crate) fn exec(&self) -> Outcome<&dyn Exec> {
        self.ability(self.provider.exec(), Feature::Exec)
    }

    pub(crate) fn attach(&self) -> Outcome<&dyn Attach> {
        self.ability(self.provider.attach(), Feature::Attach)
    }

    pub(crate) fn port_forward(&self) -> Outcome<&dyn PortForward> {
        self.ability(self.provider.port_forward(), Feature::PortForward)
    }

    pub(crate) fn stats(&self) -> Outcome<&dyn Stats> {
        self.ability(self.provider.stats(), Feature::Stats)
    }

    pub(crate) fn fit(&self) -> Outcome<&dyn Fit> {
        self.ability(self.provider.fit(), Feature::Fit)
    }

    fn ability<T>(&self, found: Option<T>, feature: Feature) -> Outcome<T> {
        match (found, self.subject.lacks().contains(&feature)) {
            (Some(ability), false) => Ok(ability),
            (None, true) => Err(lacking(feature)),
            (Some(_), true) => Err(Stop::violated(
                format!("the subject declares no {feature} but the provider has them"),
                "remove the feature from Subject::lacks, so that its rules are checked",
            )),
            (None, false) => Err(Stop::violated(
                format!("the provider has no {feature}, and the subject does not declare it"),
                "return Some(self) from the accessor, or name the feature in Subject::lacks",
            )),
        }
    }
}

/// Converts a result for a loop that waits: only the text of a violation is kept.
fn seen<T>(answer: Outcome<T>) -> Result<T, String> {
    answer.map_err(|stop| match stop {
        Stop::Violated(violation) => violation.seen,
        Stop::DoesNotApply(why) => why,
    })
}

/// Decides by the core's reaction whether a call is repeated: errors that the core retries are, and one reaction counts as success.
fn retry(answer: Outcome<Result<()>>, success: Reaction) -> Result<Result<()>, String> {
    match seen(answer)? {
        Err(error) if error.kind().reaction() == success => Ok(Ok(())),
        Err(error) if matches!(error.kind().reaction(), Reaction::Retry | Reaction::RetrySlowly) => {
            Err(format!("{}: {}", error.kind(), error.report()))
        }
        answer => Ok(answer),
    }
}

/// An error as a text for messages.
pub(crate) fn describe_error(call: &str, error: &Error) -> String {
    format!("{call} returned {}: {}", error.kind(), error.report())
}
