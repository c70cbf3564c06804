//! LowerState namespaces: that there are such, each with our anchor.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use vk_kube::Error;
use vk_supervisor::Backoff;

use super::{
    super::{Kind, diff::CopyKey},
    Action, CopyStateMachine,
};

/// A lower namespace.
#[derive(Debug)]
pub(super) struct LowerNamespace {
    pub(super) upper: String,
    pub(super) anchor: Option<OwnerReference>,
    in_flight: bool,
    /// It was lost while it was looked for.
    lost: bool,
    pub(super) not_before: Duration,
    backoff: Backoff,
    pub(super) last_error: Option<Error>,
}

impl CopyStateMachine {
    /// Sees to it that there is a namespace.
    pub(super) fn ensure_namespace(
        &mut self,
        now: Duration,
        lower: &str,
        upper: &str,
        actions: &mut Vec<Action>,
    ) {
        let namespace_state =
            self.lower_namespaces.entry(lower.to_owned()).or_insert_with(|| LowerNamespace::new(upper));
        if namespace_state.is_waiting() && now >= namespace_state.not_before {
            namespace_state.in_flight = true;
            actions.push(Action::EnsureNamespace {
                lower: lower.to_owned(),
                upper: namespace_state.upper.clone(),
            });
        }
    }

    /// Without the anchor all that hangs on it goes, and what would hang on it too.
    pub(super) fn handle_owner_deleted(&mut self, now: Duration, key: &CopyKey, actions: &mut Vec<Action>) {
        if key.kind != Kind::ConfigMap || key.name != self.anchor {
            return;
        }
        let Some(namespace_state) = self.lower_namespaces.get_mut(&key.namespace) else { return };
        namespace_state.mark_lost(now);
        let upper = namespace_state.upper.clone();
        self.ensure_namespace(now, &key.namespace, &upper, actions);
    }

    pub(super) fn retry_namespaces(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let waiting = self.lower_namespaces.iter().filter(|(_, it)| it.is_waiting() && now >= it.not_before);
        let waiting: Vec<(String, String)> =
            waiting.map(|(lower, namespace_state)| (lower.clone(), namespace_state.upper.clone())).collect();
        for (lower, upper) in waiting {
            self.ensure_namespace(now, &lower, &upper, actions);
        }
    }

    pub(super) fn handle_namespace_result(
        &mut self,
        now: Duration,
        lower: &str,
        answer: Result<OwnerReference, Error>,
        actions: &mut Vec<Action>,
    ) {
        let Some(namespace_state) = self.lower_namespaces.get_mut(lower) else { return };
        namespace_state.in_flight = false;
        match answer {
            // It was there when it was looked for, and has gone since.
            Ok(_) if std::mem::take(&mut namespace_state.lost) => {
                let upper = namespace_state.upper.clone();
                self.ensure_namespace(now, lower, &upper, actions);
            }
            Ok(anchor) => {
                namespace_state.anchor = Some(anchor);
                namespace_state.last_error = None;
                namespace_state.backoff.reset();
                self.advance_all(now, |key| key.namespace == lower, actions);
            }
            Err(error) => {
                namespace_state.not_before =
                    now + namespace_state.backoff.next(error.retry_after, &mut self.rng);
                namespace_state.last_error = Some(error);
            }
        }
    }
}

// === impl LowerNamespace ===

impl LowerNamespace {
    fn new(upper: &str) -> Self {
        Self {
            upper: upper.to_owned(),
            anchor: None,
            in_flight: false,
            lost: false,
            not_before: Duration::ZERO,
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(30)),
            last_error: None,
        }
    }

    /// The anchor is gone, or the whole namespace.
    pub(super) fn mark_lost(&mut self, now: Duration) {
        self.anchor = None;
        self.lost = self.in_flight;
        self.not_before = self.not_before.min(now);
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.anchor.is_none() && !self.in_flight
    }
}
