//! Whether the node has admitted the pod, and what becomes of a pod that is not run.

use k8s_openapi::api::core::v1::Pod;

use crate::pods::reconciler::effect::{EffectId, EffectIds};

/// Whether the node has admitted the pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nobody asked.
    #[default]
    Undecided,
    /// The Node object is read before the decision.
    ReadingNode(EffectId),
    /// The pod has claimed its resources.
    Admitted,
    /// The pod was rejected or has released its resources.
    Released,
}

/// The admission of a pod.
#[derive(Debug, Default)]
pub(super) struct Admission(State);

/// Why a pod that is to run does not start.
#[derive(Clone, Debug)]
pub(super) struct StartFailure {
    /// The reason at the containers.
    pub(super) container_reason: String,
    /// The reason at the pod.
    pub(super) reason: Option<String>,
    pub(super) message: String,
    pub(super) remedy: Remedy,
}

/// What can make a pod start that does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Nothing but a change of the pod.
    PodChange,
    /// A change outside of this process: [`Reaction::RetrySlowly`](vk_provider::error::Reaction::RetrySlowly).
    OutsideChange,
    /// Another attempt.
    Retry,
}

/// Why a pod has failed by the controller's decision, which overrides what the provider reports.
#[derive(Clone, Debug)]
pub(super) struct PodFailure {
    pub(super) reason: String,
    pub(super) message: String,
    /// The node rejected the pod.
    pub(super) rejected: bool,
}

// === impl Admission ===

impl Admission {
    pub(super) fn is_admitted(&self) -> bool {
        self.0 == State::Admitted
    }

    pub(super) fn is_reading_node(&self) -> bool {
        matches!(self.0, State::ReadingNode(_))
    }

    pub(super) fn admit(&mut self) {
        self.0 = State::Admitted;
    }

    /// The pod was rejected, or needs nothing of the node any more.
    pub(super) fn release(&mut self) {
        self.0 = State::Released;
    }

    /// The pod has changed: the node decides anew.
    pub(super) fn reset(&mut self) {
        self.0 = State::Undecided;
    }

    pub(super) fn read_node(&mut self, ids: &mut EffectIds) -> EffectId {
        let id = ids.allocate();
        self.0 = State::ReadingNode(id);
        id
    }

    /// The Node was read. Returns whether the pod waits for just this answer.
    pub(super) fn complete(&mut self, id: EffectId) -> bool {
        let expected = self.0 == State::ReadingNode(id);
        if expected {
            self.0 = State::Undecided;
        }
        expected
    }
}

/// Whether the node has admitted the pod before, in this process or an earlier one.
pub(super) fn was_admitted(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(|status| status.start_time.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_read_of_the_node_decides() {
        let mut ids = EffectIds::default();
        let mut admission = Admission::default();
        let first = admission.read_node(&mut ids);
        admission.reset();
        let second = admission.read_node(&mut ids);
        assert!(!admission.complete(first) && admission.is_reading_node());
        assert!(admission.complete(second) && !admission.is_reading_node());
    }
}
