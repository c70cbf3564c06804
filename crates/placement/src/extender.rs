//! An HTTP extender of kube-scheduler: it gives the scheduler the same answers that gates get, for pods that have no gate.
//!
//! The scheduler asks about one pod at a time and binds it a moment later, in the order that it likes. So the extender remembers on which node
//! a pod will probably be until a watch shows where it is. All is in memory: every replica can answer.
//!
//! A node that does not answer in time passes: the scheduler goes on as without the extender. In `preempt` it does not, because pods would be
//! deleted for nothing.
//!
//! Each call changes what is expected, so only kube-scheduler may call: clients need a certificate with one of the names in [`CLIENT_NAMES`].

mod call_record;
mod connections;
mod protocol;
mod routes;
mod state;
mod watches;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use vk_kube::{Client, Partial};
use vk_supervisor::{Clock, Now, Supervisor, task};

pub use self::routes::router;
use self::{
    connections::Connections,
    protocol::{ExtenderArgs, FilterResult, HostPriority, MetaVictims, PreemptionArgs, PreemptionResult},
    state::{ExtenderState, PATIENCE, PreemptionCheck, Question},
};
use crate::{
    ask::FitClient, certificate, choose::Preference, fit_answers::verdicts, metrics::Metrics, pod_state,
    request_body::BodyReader, watched_pod::WatchedPod,
};

/// The largest request: a pod, and the names of all nodes or the UIDs of victims.
const MAX_BODY: usize = 8 << 20;
/// The time to receive a request. kube-scheduler has it ready, and schedules no other pod meanwhile.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The common names in the certificates of clients that may call the extender: of one that placement has [issued](certificate::client_certificate),
/// and of one that kube-scheduler has from elsewhere.
pub const CLIENT_NAMES: [&str; 2] = [certificate::SCHEDULER, "system:kube-scheduler"];

/// Answers kube-scheduler. Clones share what they know.
#[derive(Clone, Debug)]
pub struct Extender(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    fit_client: FitClient,
    metrics: Metrics,
    supervisor: Supervisor,
    bodies: BodyReader,
    clock: Clock,
    state: Mutex<ExtenderState>,
    /// A question was answered.
    answered: watch::Sender<()>,
    connections: Connections,
    /// A scheduler has called.
    called: watch::Sender<()>,
    /// The nodes and the pods on their way were listed once.
    is_ready: watch::Sender<bool>,
    start: Instant,
}

/// Why a call cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ExtenderError {
    #[error(
        "the nodes are not listed yet; kube-scheduler goes on without the extender if it is `ignorable: true`"
    )]
    NotReady,
    #[error("{0} is missing: set `nodeCacheCapable: true` in the scheduler's configuration of this extender")]
    NoNodeNames(&'static str),
    #[error("{0}")]
    TooLarge(String),
}

// === impl Extender ===

impl Extender {
    /// Starts to watch the cluster. The namespace has the ConfigMap of placement. The clock is the wall clock.
    pub fn start(
        client: Client,
        fit_client: FitClient,
        preference: Preference,
        namespace: &str,
        metrics: Metrics,
        clock: Clock,
        supervisor: &Supervisor,
    ) -> Self {
        let extender = Self::new(fit_client, preference, metrics, clock, supervisor.clone());
        let watching = watches::run(extender.clone(), client, namespace.to_owned(), supervisor.clone());
        supervisor.spawn("extender watches", task::Kind::Critical, watching);
        let connecting = connections::keep_open(extender.clone(), supervisor.clone());
        supervisor.spawn("extender connections", task::Kind::Critical, connecting);
        extender
    }

    fn new(
        fit_client: FitClient,
        preference: Preference,
        metrics: Metrics,
        clock: Clock,
        supervisor: Supervisor,
    ) -> Self {
        let state = Mutex::new(ExtenderState::new(preference));
        let (answered, called) = (watch::Sender::new(()), watch::Sender::new(()));
        let is_ready = watch::Sender::new(false);
        Self(Arc::new(Inner {
            fit_client,
            metrics,
            supervisor,
            bodies: BodyReader::new(MAX_BODY, REQUEST_TIMEOUT),
            clock,
            state,
            answered,
            connections: Connections::default(),
            called,
            is_ready,
            start: Instant::now(),
        }))
    }

    /// Whether calls can be answered.
    pub fn is_ready(&self) -> bool {
        *self.0.is_ready.borrow()
    }

    fn elapsed(&self) -> Duration {
        self.0.start.elapsed()
    }

    fn now(&self) -> Now {
        Now { elapsed: self.elapsed(), wall: self.0.clock.now() }
    }

    /// Which of the nodes the pod may go to. Returns also how many of them have passed without an answer.
    async fn filter(&self, args: ExtenderArgs) -> Result<(FilterResult, usize), ExtenderError> {
        let (pod, names) = self.check(args)?;
        let deadline = Instant::now() + PATIENCE;
        let mut answered = self.0.answered.subscribe();
        let mut call = self.0.state.lock().begin(self.elapsed(), pod);
        loop {
            answered.mark_unchanged();
            let missing = self.0.state.lock().missing(self.elapsed(), &mut call, &names);
            for question in missing.questions {
                self.send(question);
            }
            let Some(until) = missing.until else { break };
            let until = deadline.min(self.0.start + until);
            tokio::select! {
                _ = answered.changed() => {}
                () = tokio::time::sleep_until(until) => if until == deadline { break },
            }
        }
        let filtered = self.0.state.lock().filter(self.now(), &call, names);
        Ok((filtered.result, filtered.unanswered))
    }

    /// How good the nodes are that have passed.
    fn prioritize(&self, args: ExtenderArgs) -> Result<Vec<HostPriority>, ExtenderError> {
        let (pod, names) = self.check(args)?;
        let scores = self.0.state.lock().prioritize(self.now(), &pod, &names);
        Ok(names.into_iter().zip(scores).map(|(host, score)| HostPriority { host, score }).collect())
    }

    /// On which of the nodes the pod fits once the victims are gone. Returns also how many have not answered.
    async fn preempt(&self, args: PreemptionArgs) -> Result<(PreemptionResult, usize), ExtenderError> {
        self.check_ready()?;
        let candidates = args.node_name_to_meta_victims;
        let candidates = candidates.ok_or(ExtenderError::NoNodeNames("NodeNameToMetaVictims"))?;
        let (pod, deadline) = (checked(args.pod)?, Instant::now() + PATIENCE);
        let checks = {
            let state = self.0.state.lock();
            candidates
                .iter()
                .map(|(name, victims)| state.preemption_check(&pod, name, uids(victims)))
                .collect::<Vec<_>>()
        };
        let answers = checks.into_iter().map(async |check| {
            let (node, query) = match check {
                PreemptionCheck::Passes => return Some(true),
                PreemptionCheck::NoSpace => return Some(false),
                PreemptionCheck::Ask(node, query) => (node, query),
            };
            let asking = self.0.metrics.observe_query(&self.0.fit_client, &node, &query);
            let answer = tokio::time::timeout_at(deadline, asking).await.ok()?.ok()?;
            Some(verdicts(answer).ok()?.first()?.fits())
        });
        let answers = futures::future::join_all(answers).await;
        let unanswered = answers.iter().filter(|answer| answer.is_none()).count();
        let fitting = candidates.into_iter().zip(answers).filter(|(_, answer)| *answer == Some(true));
        let node_name_to_meta_victims = fitting.map(|(candidate, _)| candidate).collect();
        Ok((PreemptionResult { node_name_to_meta_victims }, unanswered))
    }

    fn check(&self, args: ExtenderArgs) -> Result<(Arc<Pod>, Vec<String>), ExtenderError> {
        self.check_ready()?;
        let names = args.node_names.ok_or(ExtenderError::NoNodeNames("NodeNames"))?;
        Ok((checked(args.pod)?, names))
    }

    fn check_ready(&self) -> Result<(), ExtenderError> {
        if self.is_ready() { Ok(()) } else { Err(ExtenderError::NotReady) }
    }

    /// Sends a question. The answer also counts if nobody waits for it any more.
    fn send(&self, question: Question) {
        let Question { id, node, query } = question;
        let extender = self.clone();
        self.0.supervisor.spawn("extender query", task::Kind::Work, async move {
            let inner = &extender.0;
            let answer = inner.metrics.observe_query(&inner.fit_client, &node, &query).await;
            let answer = answer.map_err(|error| error.to_string());
            inner.state.lock().answered(extender.elapsed(), id, answer);
            inner.answered.send_replace(());
        });
    }
}

/// A pod about which nodes can be asked.
fn checked(Partial(pod): WatchedPod) -> Result<Arc<Pod>, ExtenderError> {
    match pod_state::too_large(&pod) {
        Some(why) => Err(ExtenderError::TooLarge(why.to_owned())),
        None => Ok(Arc::new(pod)),
    }
}

fn uids(victims: &MetaVictims) -> Vec<Arc<str>> {
    victims.pods.iter().flatten().map(|pod| pod.uid.as_str().into()).collect()
}

#[cfg(test)]
mod tests;
