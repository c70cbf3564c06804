//! Whether the node takes the pod, and what becomes of one that it or the provider refuses.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use vk_provider::EventKind;

use super::{Action, Held, Presence, Worker};
use crate::pods::{
    admission::{Checks, Refused, Verdict},
    status,
};

/// Whether the node has taken the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Nobody asked.
    Open,
    /// The answer is awaited.
    Asked,
    /// It has, and the pod has its claim.
    Given,
    /// It is over, and the pod claims nothing.
    Over,
}

impl Worker {
    /// Whether the pod needs something of the node, now or soon.
    pub fn claims(&self) -> bool {
        let wanted = !self.is_ending()
            && self.failed.is_none()
            && !self.is_over()
            && self.desired.as_ref().is_some_and(|pod| !status::has_ended(pod));
        wanted || self.may_run()
    }

    /// Sees to it that the node has taken the pod. Tells whether it has.
    pub(super) fn admitted(&mut self, pod: &Arc<Pod>, actions: &mut Vec<Action>) -> bool {
        let unchecked = self.policy.checks == Checks::Off && self.policy.daemon_sets.is_none();
        if unchecked || matches!(self.admission, Admission::Given) {
            return true;
        }
        if self.presence == Presence::Present {
            // It is there, whatever the node says.
            self.admission = Admission::Given;
            actions.push(Action::Claim(self.actual(pod)));
            return true;
        }
        if self.admission != Admission::Asked {
            self.admission = Admission::Asked;
            actions.push(Action::Admit { pod: self.actual(pod), before: has_place(pod) });
        }
        false
    }

    pub(super) fn judged(&mut self, verdict: Verdict, actions: &mut Vec<Action>) {
        if self.admission != Admission::Asked {
            return;
        }
        match verdict {
            Verdict::Admitted => self.admission = Admission::Given,
            Verdict::Rejected { reason, message, refused } => {
                self.admission = Admission::Over;
                self.rejected = refused == Refused::Fail;
                actions.push(Action::Announce(EventKind::Warning, reason.clone().into(), message.clone()));
                self.refuse(refused, reason, format!("Pod was rejected: {message}"));
            }
        }
    }

    /// The pod is not run: it fails, or waits to be changed.
    pub(super) fn refuse(&mut self, refused: Refused, reason: String, message: String) {
        match refused {
            Refused::Fail => {
                self.ended = true;
                self.failed = Some((reason, message));
            }
            Refused::Hold => {
                let state = "CreateContainerError".to_owned();
                self.held = Some(Held { state, reason: Some(reason), message, parked: true });
            }
        }
    }
}

/// Whether the node has taken the pod before, also when that was in the time of an earlier process.
pub(super) fn has_place(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(|status| status.start_time.is_some())
}
