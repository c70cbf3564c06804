//! The lower namespaces that copies need, each with its owner ConfigMap.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use vk_kube::Error;
use vk_supervisor::Backoff;

use super::{
    super::{Kind, diff::CopyKey},
    Action, CopyStateMachine,
};

/// The state of a lower namespace.
#[derive(Debug)]
pub(super) struct LowerNamespace {
    pub(super) upper: String,
    pub(super) owner_reference: Option<OwnerReference>,
    in_flight: bool,
    /// It was deleted while a call was in flight.
    lost: bool,
    pub(super) not_before: Duration,
    backoff: Backoff,
    pub(super) last_error: Option<Error>,
}

impl CopyStateMachine {
    /// Makes sure that a namespace exists.
    pub(super) fn ensure_namespace(
        &mut self,
        now: Duration,
        lower: &str,
        upper: &str,
        actions: &mut Vec<Action>,
    ) {
        let namespace =
            self.lower_namespaces.entry(lower.to_owned()).or_insert_with(|| LowerNamespace::new(upper));
        if namespace.is_waiting() && now >= namespace.not_before {
            namespace.in_flight = true;
            actions.push(Action::EnsureNamespace { lower: lower.to_owned(), upper: namespace.upper.clone() });
        }
    }

    /// Without the owner ConfigMap, the garbage collector deletes everything that it owns, so it has to be created again.
    pub(super) fn handle_owner_deleted(&mut self, now: Duration, key: &CopyKey, actions: &mut Vec<Action>) {
        if key.kind != Kind::ConfigMap || key.name != self.owner_map_name {
            return;
        }
        let Some(namespace) = self.lower_namespaces.get_mut(&key.namespace) else { return };
        namespace.mark_lost(now);
        let upper = namespace.upper.clone();
        self.ensure_namespace(now, &key.namespace, &upper, actions);
    }

    pub(super) fn retry_namespaces(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let waiting = self.lower_namespaces.iter().filter(|(_, it)| it.is_waiting() && now >= it.not_before);
        let waiting: Vec<(String, String)> =
            waiting.map(|(lower, namespace)| (lower.clone(), namespace.upper.clone())).collect();
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
        let Some(namespace) = self.lower_namespaces.get_mut(lower) else { return };
        namespace.in_flight = false;
        match answer {
            // It existed during the call and was deleted since.
            Ok(_) if std::mem::take(&mut namespace.lost) => {
                let upper = namespace.upper.clone();
                self.ensure_namespace(now, lower, &upper, actions);
            }
            Ok(owner_reference) => {
                namespace.owner_reference = Some(owner_reference);
                namespace.last_error = None;
                namespace.backoff.reset();
                self.advance_all(now, |key| key.namespace == lower, actions);
            }
            Err(error) => {
                namespace.not_before = now + namespace.backoff.next(error.retry_after, &mut self.rng);
                namespace.last_error = Some(error);
            }
        }
    }
}

// === impl LowerNamespace ===

impl LowerNamespace {
    fn new(upper: &str) -> Self {
        Self {
            upper: upper.to_owned(),
            owner_reference: None,
            in_flight: false,
            lost: false,
            not_before: Duration::ZERO,
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(30)),
            last_error: None,
        }
    }

    /// The owner ConfigMap or the whole namespace is gone.
    pub(super) fn mark_lost(&mut self, now: Duration) {
        self.owner_reference = None;
        self.lost = self.in_flight;
        self.not_before = self.not_before.min(now);
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.owner_reference.is_none() && !self.in_flight
    }
}
