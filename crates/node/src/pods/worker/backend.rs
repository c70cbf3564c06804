//! The pod as the provider has it.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerState, Pod, PodStatus};

use crate::pods::status;

/// Whether the provider has the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// Nobody asked yet.
    Unknown,
    /// It certainly does not.
    Absent,
    /// It has, or may have.
    Present {
        /// It accepted the pod from this process.
        accepted: bool,
    },
}

/// What is known of the pod in the backend.
#[derive(Debug)]
pub(super) struct BackendState {
    presence: Presence,
    reported: Option<Box<PodStatus>>,
    /// Nothing of it runs. Containers that have ended are not enough, because they may be restarted: the phase must be
    /// final, or the provider must have been told to stop the pod before the status was read.
    ended: bool,
    /// When the provider last said or did something about the pod.
    last_answer: Option<Duration>,
}

// === impl BackendState ===

impl BackendState {
    pub(super) fn new(known_absent: bool) -> Self {
        let presence = if known_absent { Presence::Absent } else { Presence::Unknown };
        Self { presence, reported: None, ended: false, last_answer: None }
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.presence == Presence::Unknown
    }

    pub(super) fn is_absent(&self) -> bool {
        self.presence == Presence::Absent
    }

    pub(super) fn is_present(&self) -> bool {
        matches!(self.presence, Presence::Present { .. })
    }

    /// Whether the provider accepted the pod from this process.
    pub(super) fn is_accepted(&self) -> bool {
        self.presence == Presence::Present { accepted: true }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The status that the provider reported last.
    pub(super) fn reported(&self) -> Option<&PodStatus> {
        self.reported.as_deref()
    }

    /// The provider has reported a final phase.
    pub(super) fn is_terminal(&self) -> bool {
        status::is_terminal(self.reported().and_then(|status| status.phase.as_deref()))
    }

    /// The provider has, or may have, the pod.
    pub(super) fn set_present(&mut self) {
        self.presence = Presence::Present { accepted: self.is_accepted() };
    }

    pub(super) fn set_accepted(&mut self) {
        self.presence = Presence::Present { accepted: true };
    }

    /// The provider certainly has nothing of the pod.
    pub(super) fn set_absent(&mut self) {
        self.presence = Presence::Absent;
    }

    pub(super) fn set_ended(&mut self) {
        self.ended = true;
    }

    /// A create or update call begins: what has ended may run again.
    pub(super) fn set_starting(&mut self) {
        self.ended = false;
    }

    /// The provider reported a status. Returns the one before.
    pub(super) fn report(&mut self, status: Box<PodStatus>) -> Option<Box<PodStatus>> {
        self.set_present();
        self.ended = status::all_ended(&status) && status::is_terminal(status.phase.as_deref());
        self.reported.replace(status)
    }

    /// Forgets the reported status.
    pub(super) fn take_reported(&mut self) -> Option<Box<PodStatus>> {
        self.reported.take()
    }

    /// The provider said or did something about the pod.
    pub(super) fn touch(&mut self, now: Duration) {
        self.last_answer = Some(now);
    }

    /// Whether a list of the provider's pods still says something about this pod. What the provider said after the list was
    /// requested counts more; and a list that was made during a call may lack the pod that the call creates.
    pub(super) fn accepts_list(&self, requested_at: Duration, calling: bool, listed: bool) -> bool {
        self.last_answer.is_none_or(|last| last < requested_at) && (listed || !calling)
    }
}

/// Whether a container of the pod has started, by the status in the API server.
pub(super) fn has_started(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(has_run)
}

/// Whether a container has started, by this status.
pub(super) fn has_run(status: &PodStatus) -> bool {
    status.container_statuses.iter().flatten().any(|one| {
        let started = |state: &ContainerState| state.running.is_some() || state.terminated.is_some();
        one.state.as_ref().is_some_and(started) || one.restart_count > 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_counts_only_if_it_is_newer_than_the_last_answer_and_is_not_made_during_a_call() {
        let at = Duration::from_secs;
        let mut backend = BackendState::new(false);
        assert!(backend.accepts_list(at(1), false, false));
        backend.touch(at(5));
        assert!(!backend.accepts_list(at(5), false, true) && backend.accepts_list(at(6), false, true));
        assert!(!backend.accepts_list(at(6), true, false) && backend.accepts_list(at(6), true, true));
    }

    #[test]
    fn a_pod_stays_accepted_while_it_is_present() {
        let mut backend = BackendState::new(true);
        assert!(backend.is_absent());
        backend.set_present();
        assert!(backend.is_present() && !backend.is_accepted());
        backend.set_accepted();
        backend.set_present();
        assert!(backend.is_accepted());
        backend.set_absent();
        backend.set_present();
        assert!(!backend.is_accepted());
    }
}
