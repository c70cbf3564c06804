//! Whether the cloud answers.

use vk_provider::node::{Condition, ConditionStatus};

use crate::backend::{CallError, Class};

/// The node condition that says whether we can see our groups.
pub const CLOUD_REACHABLE: &str = "CloudReachable";

/// How often the cloud has to fail in a row before the node is not ready.
const FAILURES: u32 = 3;

/// What the last calls said about the cloud.
#[derive(Debug, Default)]
pub(super) struct CloudHealth {
    failures: u32,
    error: Option<CallError>,
    /// Why we may not see our groups.
    blind: Option<String>,
}

// === impl CloudHealth ===

impl CloudHealth {
    /// A poll has ended. Returns whether that changes the node.
    pub(super) fn record(&mut self, result: Result<(), CallError>) -> bool {
        let before = self.is_down();
        match result {
            Ok(()) => {
                self.failures = 0;
                self.error = None;
            }
            Err(error) => {
                self.failures += 1;
                self.error = Some(error);
            }
        }
        before != self.is_down()
    }

    pub(super) fn set_blind(&mut self, why: Option<String>) {
        self.blind = why;
    }

    /// The error, if the cloud does not answer.
    pub(super) fn outage(&self) -> Option<&CallError> {
        self.error.as_ref().filter(|_| self.is_down())
    }

    pub(super) fn last_error(&self) -> Option<&str> {
        self.error.as_ref().map(|error| &*error.message)
    }

    fn is_down(&self) -> bool {
        self.failures >= FAILURES
    }

    pub(super) fn condition(&self) -> Condition {
        let (status, reason, message) = match (self.outage(), &self.blind) {
            (Some(error), _) => {
                let reason = if error.class == Class::Denied { "CredentialsRefused" } else { "NoAnswer" };
                (ConditionStatus::False, reason, error.message.to_string())
            }
            (None, Some(why)) => (ConditionStatus::False, "GroupsMissing", why.clone()),
            (None, None) => (ConditionStatus::True, "CloudAnswers", "the cloud answers".to_owned()),
        };
        Condition { kind: CLOUD_REACHABLE.to_owned(), status, reason: reason.to_owned(), message }
    }
}
