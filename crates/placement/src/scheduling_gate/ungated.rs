//! Pods that lost their gate and are not bound yet.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use vk_kube::{Error, event::Severity};
use vk_provider::placement::trial_until;
use vk_supervisor::{Backoff, Now};

use super::{
    SchedulingGate, Stage,
    group_step::place_of,
    tracked_pod::failure_key,
    trial::{UNTIL_BOUND, ends_within},
};
use crate::{
    context::PlacementContext,
    effect::{Answer, ApiCall, Effect, Outcome, is_gone, is_refused},
    eviction::AfterEviction,
    names, pod_state,
};

/// A pod without its gate is expected to be bound within this time.
const BOUND_WITHIN: Duration = Duration::from_mins(1);
/// How soon it is looked again whether kube-scheduler has tried.
const PERIOD: Duration = Duration::from_secs(10);
/// A call that failed is repeated after this time, and then after twice as long each time.
const FIRST_RETRY: Duration = Duration::from_secs(10);
const LONGEST_RETRY: Duration = Duration::from_mins(10);
/// The reason of events about pods that are not bound.
const NOT_BOUND: &str = "NotBound";

/// A pod that lost its gate and is not bound yet.
#[derive(Debug)]
pub(super) struct Ungated {
    /// The node that was chosen. kube-scheduler may remove the nomination.
    node: Option<Arc<str>>,
    /// When it should have been bound.
    deadline: Duration,
    pub(super) eviction: Eviction,
    /// An event has said that it is not bound.
    is_reported: bool,
    /// Why the API server does not permit to evict it.
    refusal: Option<String>,
    backoff: Backoff,
}

/// What is done about a pod that is not bound in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eviction {
    /// Nothing yet.
    None,
    /// The pod stays, and an event has said why.
    Left,
    InFlight,
    /// The pod stays, and the node is being told that its trial is over.
    EndingTrial,
    /// It is tried again then.
    Retry(Duration),
    Done,
}

// === impl Ungated ===

impl Ungated {
    /// The gate was just removed.
    pub(super) fn new(now: Duration, node: Option<Arc<str>>) -> Self {
        Self {
            node,
            deadline: now + BOUND_WITHIN,
            eviction: Eviction::None,
            is_reported: false,
            refusal: None,
            backoff: Backoff::new(FIRST_RETRY, LONGEST_RETRY),
        }
    }

    /// The gate was removed by an earlier process, when the condition says.
    pub(super) fn since_placed(now: Now, pod: &Pod) -> Self {
        let placed = pod_state::condition(pod, names::PLACED);
        let since = placed.and_then(|condition| condition.last_transition_time.as_ref());
        let age = since.map(|since| Duration::try_from(now.wall.duration_since(since.0)).unwrap_or_default());
        let left = BOUND_WITHIN.saturating_sub(age.unwrap_or_default());
        Self { deadline: now.elapsed + left, ..Self::new(now.elapsed, None) }
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The call in flight was answered.
    pub(super) fn answered(
        &mut self,
        now: Duration,
        answer: &Result<Answer, Error>,
        context: &mut PlacementContext,
    ) {
        let is_eviction = self.eviction == Eviction::InFlight;
        self.eviction = match answer {
            Ok(_) if !is_eviction => Eviction::Left,
            Ok(_) => {
                context.effects.push(Effect::Count(Outcome::Evicted { dry_run: false }));
                Eviction::Done
            }
            Err(error) if is_gone(error) => Eviction::Done,
            Err(error) => {
                let mut wait = self.backoff.next(error.retry_after, &mut context.rng);
                if is_eviction {
                    context.effects.push(Effect::Count(Outcome::EvictionRefused));
                    if is_refused(error) {
                        (self.refusal, self.is_reported, wait) =
                            (Some(error.to_string()), false, Duration::ZERO);
                    }
                }
                Eviction::Retry(now + wait)
            }
        };
    }

    /// Whether the pod is being evicted: its controller creates another one.
    pub(super) fn is_evicted(&self) -> bool {
        matches!(self.eviction, Eviction::InFlight | Eviction::Done)
    }
}

impl SchedulingGate {
    /// Looks after pods that kube-scheduler did not bind in time: they are evicted, so that their controllers create others, which wait for
    /// a node that takes them. Pods of Jobs and of controllers that are not known stay, because an eviction may count as a failure, and so do
    /// pods without a controller.
    pub(super) fn check_ungated(&mut self, now: Duration, context: &mut PlacementContext) {
        let mut next = Duration::MAX;
        for uid in &self.stages.ungated {
            let Some(tracked) = self.pods.get_mut(uid) else { continue };
            let Stage::Ungated(ungated) = &mut tracked.stage else { continue };
            let due = match ungated.eviction {
                Eviction::None => ungated.deadline,
                Eviction::Retry(at) => at,
                Eviction::Left | Eviction::InFlight | Eviction::EndingTrial | Eviction::Done => continue,
            };
            if due > now {
                next = next.min(due);
                continue;
            }
            let Some(said) = scheduler_message(&tracked.pod) else {
                // kube-scheduler does not run, or has much to do: others would not be bound either.
                ungated.eviction = Eviction::Retry(now + PERIOD);
                next = next.min(now + PERIOD);
                if ends_within(context.wall, UNTIL_BOUND / 2, &tracked.pod)
                    && let Ok(until) = context.wall.saturating_add(UNTIL_BOUND)
                {
                    // What the node runs already goes on.
                    let (pod, version) = (tracked.identity.clone(), pod_state::version(&tracked.pod));
                    let call = ApiCall::ExtendTrial { pod, version, until };
                    context.effects.push(Effect::Call(context.ids.next(), call));
                }
                continue;
            };
            let node = pod_state::placed_node(&tracked.pod).or(ungated.node.as_deref());
            let refusal =
                ungated.refusal.as_ref().map(|why| format!("its eviction is refused: {why}").into());
            let stays = refusal.or_else(|| AfterEviction::of(&tracked.pod).obstacle());
            let end = stays
                .as_ref()
                .map_or_else(|| "evicting it".to_owned(), |why| format!("it stays, because {why}"));
            let seconds = BOUND_WITHIN.as_secs();
            let message = format!(
                "not bound within {seconds} s after it was placed on {}: {said}; {end}",
                node.unwrap_or("a node")
            );
            if !std::mem::replace(&mut ungated.is_reported, true) {
                if let Some(node) = node {
                    // The pod that replaces this one goes elsewhere, if it can.
                    let key = failure_key(&tracked.pod, tracked.group.as_deref());
                    let place = place_of(node, &context.cluster).into();
                    self.failures.record(now, key, &place, &format!("not bound: {said}"));
                }
                context.effects.push(Effect::Count(Outcome::NotBound));
                let pod = tracked.identity.clone();
                context.effects.push(Effect::RecordEvent(pod, Severity::Warning, NOT_BOUND, message));
            }
            let (pod, version) = (tracked.identity.clone(), pod_state::version(&tracked.pod));
            let call = if stays.is_none() {
                ungated.eviction = Eviction::InFlight;
                ApiCall::Evict { pod, version }
            } else if trial_until(&tracked.pod).is_some() {
                ungated.eviction = Eviction::EndingTrial;
                ApiCall::EndTrial { pod, version }
            } else {
                ungated.eviction = Eviction::Left;
                continue;
            };
            let id = context.ids.next();
            self.calls.insert(id, Arc::clone(uid));
            context.effects.push(Effect::Call(id, call));
        }
        self.pods_due_at(next);
    }
}

/// Why kube-scheduler does not bind the pod; `None` if it has not tried.
fn scheduler_message(pod: &Pod) -> Option<&str> {
    let scheduled = pod_state::condition(pod, "PodScheduled").filter(|one| one.status == "False")?;
    let tried = scheduled.reason.as_deref().is_some_and(|reason| reason != "SchedulingGated");
    tried.then(|| scheduled.message.as_deref().unwrap_or("no reason given"))
}
