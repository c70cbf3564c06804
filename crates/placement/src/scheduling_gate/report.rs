//! Says why pods wait.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use vk_kube::{Error, Kind, event::Severity};

use super::{SchedulingGate, Stage, wait_queue::WaitMessage};
use crate::{
    context::PlacementContext,
    effect::{Answer, ApiCall, CallId, Effect},
    explain::{NOT_SELECTED, summary_of},
    names, pod_state,
};

/// The reason of the event and of the condition if no node has room.
pub(super) const NO_FEASIBLE_NODE: &str = "NoFeasibleNode";
/// A pod's message changes at most this often.
const PERIOD: Duration = Duration::from_mins(1);
/// The least time between two reports of a pod.
const SOON: Duration = Duration::from_secs(1);
/// And after failures at least this often.
const LONGEST_PERIOD: Duration = Duration::from_hours(1);
const MAX_DOUBLINGS: u32 = 10;
const AFTER_CONFLICT: Duration = Duration::from_secs(1);
/// Messages that are written at the same time.
const CONCURRENT: usize = 16;
/// The length of what a message says about one node.
const REASON_CHARS: usize = 300;
/// Nodes that a message names.
const NAMED: usize = 20;

/// What a pod says about why it waits.
#[derive(Debug, Default)]
pub(super) struct Report {
    message: Option<Arc<str>>,
    /// What the last event said.
    announced: Option<Arc<str>>,
    /// When the next one may be written.
    due: Duration,
    /// The call in flight.
    call: Option<CallId>,
    failures: u32,
}

// === impl Report ===

impl Report {
    /// What the pod says already.
    pub(super) fn of(pod: &Pod) -> Self {
        let placed = pod_state::condition(pod, names::PLACED).filter(|condition| condition.status == "False");
        let message = placed.and_then(|condition| condition.message.as_deref()).map(Arc::from);
        Self { announced: message.clone(), message, ..Self::default() }
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.call.is_some()
    }

    /// A call was answered. Returns whether it was this one.
    pub(super) fn answered(&mut self, now: Duration, id: CallId, answer: &Result<Answer, Error>) -> bool {
        if self.call.take_if(|call| *call == id).is_none() {
            return false;
        }
        let Err(error) = answer else {
            self.failures = 0;
            return true;
        };
        self.message = None;
        if error.kind == Kind::Conflict {
            // The pod has changed, which the watch will show.
            self.due = now + AFTER_CONFLICT;
        } else {
            self.due = now + (PERIOD * 2u32.saturating_pow(self.failures)).min(LONGEST_PERIOD);
            self.failures = self.failures.saturating_add(1).min(MAX_DOUBLINGS);
        }
        true
    }
}

/// The message of a pod that waits. Nodes that it does not select are named after those that it does.
pub(super) fn waiting_message(reasons: &[(Arc<str>, String)]) -> String {
    if reasons.is_empty() {
        return "no node can be asked whether pods fit".to_owned();
    }
    // The text comes from nodes.
    let short = |why: &str| why.chars().take(REASON_CHARS).collect::<String>();
    let (others, selected): (Vec<_>, Vec<_>) = reasons.iter().partition(|(_, why)| why == NOT_SELECTED);
    let named: Vec<String> = selected
        .into_iter()
        .chain(others)
        .take(NAMED)
        .map(|(node, why)| format!("{node}: {}", short(why)))
        .collect();
    let more = reasons.len().saturating_sub(NAMED);
    let more = (more > 0).then(|| format!("and {more} more nodes"));
    summary_of(0, reasons.len(), named.into_iter().chain(more))
}

impl SchedulingGate {
    /// Says of pods why they wait, where that has changed.
    pub(super) fn report(&mut self, now: Duration, context: &mut PlacementContext) {
        let mut in_flight = self.pods.values().filter(|pod| pod.report.call.is_some()).count();
        let messages: HashMap<&Arc<str>, &WaitMessage> =
            self.queues.iter().filter_map(|(shape, queue)| Some((shape, queue.message.as_ref()?))).collect();
        let mut due = Duration::MAX;
        for (uid, tracked) in &mut self.pods {
            let (is_behind, version) = (tracked.is_behind(), tracked.version());
            let Stage::Waiting { queue, .. } = &tracked.stage else { continue };
            let (report, message) = (&mut tracked.report, messages.get(queue).copied());
            // A nomination that an earlier process, or a trial, has left keeps room for nobody.
            let is_nominated = pod_state::nominated_node(&tracked.pod).is_some();
            let is_on_trial = pod_state::condition(&tracked.pod, names::PLACED)
                .is_some_and(|condition| condition.reason.as_deref() == Some(names::ON_TRIAL));
            let is_due = |message: &&WaitMessage| {
                is_nominated || is_on_trial || report.message.as_ref() != Some(&message.text)
            };
            let Some(message) = message.filter(is_due) else { continue };
            if report.is_in_flight() || in_flight >= CONCURRENT || is_behind {
                continue;
            }
            // What a nomination says is believed by the next process, so it is not kept for the sake of the message.
            let due_at = if is_nominated { (report.due + SOON).saturating_sub(PERIOD) } else { report.due };
            if due_at > now {
                due = due.min(due_at);
                continue;
            }
            let (id, reason, message) = (context.ids.next(), message.reason, &message.text);
            (report.message, report.call) = (Some(Arc::clone(message)), Some(id));
            report.due = now + PERIOD;
            let is_news = report.announced.as_ref() != Some(message);
            report.announced = Some(Arc::clone(message));
            in_flight += 1;
            self.calls.insert(id, Arc::clone(uid));
            let (pod, message) = (tracked.identity.clone(), Arc::clone(message));
            let is_first =
                pod_state::condition(&tracked.pod, names::PLACED).is_none_or(|it| it.status != "False");
            if is_news {
                let text = message.to_string();
                context.effects.push(Effect::RecordEvent(pod.clone(), Severity::Warning, reason, text));
            }
            context
                .effects
                .push(Effect::Call(id, ApiCall::ReportWaiting { pod, version, reason, message, is_first }));
        }
        self.pods_due_at(due);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_nodes_those_that_a_pod_selects_are_named() {
        let other = |index| (format!("vk-{index}").into(), NOT_SELECTED.to_owned());
        let mut reasons: Vec<(Arc<str>, String)> = (10..40).map(other).collect();
        reasons.push(("vk-z".into(), "cordoned".to_owned()));
        let message = waiting_message(&reasons);
        assert!(message.starts_with("0 of 31 nodes: vk-z: cordoned; vk-10: "), "{message}");
        assert!(message.ends_with("; vk-28: node selector or affinity does not match; and 11 more nodes"));
    }
}
