//! Whether the pods of a copy can be created.

use vk_kube::Error;
use vk_provider::PodRef;

use super::{
    super::{Kind, diff::Difference},
    CopyState, LowerCall, LowerState, UpperState, Usage,
};

/// Whether the copies that a pod needs are in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Every name that the pod refers to is a copy of ours that is up to date.
    Ready,
    /// Some copies are missing.
    Waiting,
    /// An object that the pod cannot run without does not exist in the upper cluster.
    Missing,
    /// Some copies are missing and the last attempt failed.
    Failed(Error),
    /// An object of somebody else has the name of a copy.
    Conflict,
}

impl CopyState {
    /// Whether a pod that refers to the copy can be created.
    pub(in super::super) fn readiness(&self, pod: &PodRef) -> Readiness {
        let is_unsettled = self.stale
            || match self.in_flight {
                Some(LowerCall::Read | LowerCall::Delete(_)) => true,
                // It may empty the copy of an object that came back. A claim is never emptied, and to change it may take long.
                Some(LowerCall::Patch(..)) => self.kind != Kind::Claim,
                Some(LowerCall::Create(..) | LowerCall::CheckUse(_)) | None => false,
            };
        if self.upper == UpperState::Unknown || self.lower == LowerState::Unknown || is_unsettled {
            return self.unready();
        }
        // A service account is the one that the operator named, whoever created it.
        if self.is_foreign() {
            return if self.kind == Kind::ServiceAccount { Readiness::Ready } else { Readiness::Conflict };
        }
        let exists = match &self.upper {
            UpperState::Present(_) => true,
            UpperState::Skipped(_) => self.own_copy().is_some_and(|found| !self.is_source_gone(found)),
            UpperState::Unknown | UpperState::Absent(_) => false,
        };
        if !exists && self.required_by.contains(pod) {
            return Readiness::Missing;
        }
        if self.emptied().is_some() && self.usage != Usage::Used {
            return self.unready();
        }
        let ready = match (self.desired(), self.own_copy()) {
            (_, None) => false,
            (_, Some(found)) if found.deleting => false,
            (None, Some(_)) => true,
            // A claim only has to be that of the upper claim: to change it may take long.
            (Some(desired), Some(found)) if self.kind == Kind::Claim => {
                found.compare(desired) != Difference::Replace
            }
            (Some(desired), Some(found)) => found.compare(desired) == Difference::None,
        };
        if ready { Readiness::Ready } else { self.unready() }
    }

    fn unready(&self) -> Readiness {
        self.last_error.clone().map_or(Readiness::Waiting, Readiness::Failed)
    }
}
