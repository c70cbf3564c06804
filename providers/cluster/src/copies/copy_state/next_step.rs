//! What to do next for a copy.

use std::{sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::{
    super::diff::{Difference, ObservedCopy},
    CopyState, Deletion, LowerCall, LowerState, Usage, UseCheck,
};
use crate::lower_cluster::ObjectUse;

/// The next step for a copy.
#[derive(Debug, PartialEq)]
pub(in super::super) enum NextStep {
    /// Nothing to do before this time.
    Wait(Option<Duration>),
    Call(LowerCall),
    /// The lower namespace has to exist before the object can be created.
    EnsureNamespace,
    /// The entry is no longer needed.
    Forget,
}

impl CopyState {
    /// The next step. `is_left` tells whether a copy that this node does not need is left to the virtual node that owns it.
    pub(in super::super) fn next_step(
        &self,
        now: Duration,
        owner_reference: Option<&OwnerReference>,
        is_left: impl Fn(&ObservedCopy) -> bool,
    ) -> NextStep {
        if self.in_flight.is_some() {
            return NextStep::Wait(None);
        }
        if self.pods.is_empty() && !self.may_exist() {
            return NextStep::Forget;
        }
        if now < self.not_before {
            return NextStep::Wait(Some(self.not_before));
        }
        match &self.lower {
            _ if self.stale => return NextStep::Call(LowerCall::Read),
            LowerState::Unknown => return NextStep::Call(LowerCall::Read),
            // Deletion takes as long as the finalizers do.
            LowerState::Present(found) if found.deleting && self.own_copy().is_some() => {
                return NextStep::Call(LowerCall::Read);
            }
            _ => {}
        }
        if !self.is_maintained() {
            let Some(found) = self.own_copy() else { return NextStep::Forget };
            if is_left(found) {
                return NextStep::Wait(None);
            }
            let delete =
                Deletion { uid: found.uid.clone(), unused_version: Some(found.version).filter(|it| *it > 0) };
            let delete = LowerCall::Delete(delete);
            return self.next_step_if_unused(now, found, ObjectUse::Optional, delete);
        }
        if let Some((found, empty)) = self.emptied() {
            let patch = LowerCall::Patch(Box::new(found.clone()), Arc::clone(empty));
            return self.next_step_if_unused(now, found, ObjectUse::Required, patch);
        }
        match (self.desired(), self.own_copy()) {
            (Some(desired), Some(found)) => match found.compare(desired) {
                Difference::None => NextStep::Wait(None),
                Difference::Change => {
                    NextStep::Call(LowerCall::Patch(Box::new(found.clone()), Arc::clone(desired)))
                }
                Difference::Replace => NextStep::Call(LowerCall::Delete(Deletion::in_any_case(found))),
            },
            (Some(desired), None) => match owner_reference {
                Some(owner_reference) => {
                    let owner_reference = OwnerReference { controller: None, ..owner_reference.clone() };
                    let owner_reference = Some(owner_reference).filter(|_| self.kind.has_owner());
                    NextStep::Call(LowerCall::Create(Arc::clone(desired), owner_reference))
                }
                None => NextStep::EnsureNamespace,
            },
            // The lower API server keeps a claim that pods use, whoever deletes it.
            (None, Some(found)) if self.is_source_gone(found) && !self.kind.is_removed_with_pods() => {
                NextStep::Call(LowerCall::Delete(Deletion::in_any_case(found)))
            }
            (None, _) => NextStep::Wait(None),
        }
    }

    /// The step for a call that needs a copy without users: first the question, then the call.
    fn next_step_if_unused(
        &self,
        now: Duration,
        found: &ObservedCopy,
        by: ObjectUse,
        call: LowerCall,
    ) -> NextStep {
        if now < self.check_use_at {
            return NextStep::Wait(Some(self.check_use_at));
        }
        let check = UseCheck { uid: found.uid.clone(), version: found.version, by };
        let is_unused = matches!(&self.usage, Usage::Unused(answered) if *answered == check);
        NextStep::Call(if is_unused { call } else { LowerCall::CheckUse(check) })
    }
}
