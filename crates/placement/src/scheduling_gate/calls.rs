//! The calls for single pods, and their answers.

use std::{sync::Arc, time::Duration};

use vk_kube::Error;
use vk_supervisor::Now;

use super::{
    SchedulingGate, Stage,
    placement_step::Step,
    trial::{self, Trial},
    ungated::Eviction,
};
use crate::{
    context::PlacementContext,
    effect::{Answer, ApiCall, CallId, Effect},
    pod_state,
};

/// Calls in flight, of all kinds, above which pods of groups wait with theirs: a group may have hundreds of pods.
const MAX_CALLS: usize = 100;
/// How soon calls are made that had to wait for others.
const CALL_PERIOD: Duration = Duration::from_millis(10);
/// Reports are written in batches, this often.
const REPORT_PERIOD: Duration = Duration::from_millis(100);

impl SchedulingGate {
    /// The call with this id was answered. Returns whether it is one of ours.
    pub(crate) fn answered(
        &mut self,
        now: Duration,
        id: CallId,
        answer: &Result<Answer, Error>,
        context: &mut PlacementContext,
    ) -> bool {
        let Some(uid) = self.calls.remove(&id) else { return false };
        if let Some(tracked) = self.pods.get_mut(&uid) {
            tracked.wrote(answer);
            match &mut tracked.stage {
                Stage::Placing(placing) if placing.call == Some(id) => {
                    self.touch_group(&uid);
                    self.placing_answered(now, &uid, answer, context);
                }
                Stage::OnTrial(trial) if trial.call == Some(id) => {
                    self.touch_group(&uid);
                    self.trial_answered(now, &uid, answer, context);
                    self.pods_due_at(now);
                }
                Stage::Ungated(ungated)
                    if matches!(ungated.eviction, Eviction::InFlight | Eviction::EndingTrial) =>
                {
                    ungated.answered(now, answer, context);
                    self.pods_due_at(now);
                }
                _ => {}
            }
            if let Some(tracked) = self.pods.get_mut(&uid)
                && tracked.report.answered(now, id, answer)
            {
                // Not each time: there may be thousands.
                let is_placing = matches!(tracked.stage, Stage::Placing(_));
                self.pods_due_at(if is_placing { now } else { now + REPORT_PERIOD });
            }
        }
        true
    }

    /// Sends the call that is next for a pod for which a node was chosen.
    pub(super) fn call(&mut self, now: Duration, uid: &Arc<str>, context: &mut PlacementContext) {
        let Some(tracked) = self.pods.get_mut(uid) else { return };
        if tracked.report.is_in_flight() {
            // It writes the same condition. Its answer continues here.
            return;
        }
        let (pod, version) = (tracked.identity.clone(), tracked.version());
        let Stage::Placing(placing) = &mut tracked.stage else { return };
        let may_call = if placing.is_of_group() {
            self.calls.len() < MAX_CALLS
        } else {
            self.limits.may_call(&pod.namespace)
        };
        if !may_call {
            placing.due = now;
            self.pods_due = self.pods_due.min(now + CALL_PERIOD);
            return;
        }
        if !placing.is_of_group() {
            self.limits.sent(&pod.namespace);
        }
        let id = context.ids.next();
        let node = Arc::clone(&placing.node);
        let call = match placing.step {
            Step::ReadClaims => {
                let namespace = pod.namespace.to_string();
                ApiCall::ReadClaims { namespace, names: pod_state::claims(&tracked.pod) }
            }
            Step::StartTrial => {
                let now = Now { elapsed: now, wall: context.wall };
                let patience = self.settings.trial.unwrap_or_default();
                // The gates of a group are removed one after the other, perhaps by another process.
                let rest = if placing.is_of_group() { trial::UNTIL_BOUND } else { Duration::ZERO };
                let until = Trial::end(now, patience + rest);
                ApiCall::StartTrial { pod, version, node, until }
            }
            Step::Nominate => ApiCall::Nominate { pod, version, node },
            Step::Ungate => {
                let pin = placing.pin.clone().filter(|_| !pod_state::selects_host_name(&tracked.pod));
                ApiCall::Ungate { pod, version, pin, trial_until: None }
            }
        };
        placing.sent(now, id);
        self.calls.insert(id, Arc::clone(uid));
        context.effects.push(Effect::Call(id, call));
    }
}
