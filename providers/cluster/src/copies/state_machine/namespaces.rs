//! The lower namespaces that copies need, each with its owner ConfigMap. What nobody needs for some time is retired.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use vk_kube::Error;
use vk_supervisor::Backoff;

use super::{
    super::{Kind, diff::CopyKey},
    Action, CopyStateMachine,
};

/// How many namespaces are retired at a time: each of them costs a list of every kind of objects.
const MAX_RETIREMENTS: usize = 4;

/// The state of a lower namespace.
#[derive(Debug)]
pub(super) struct LowerNamespace {
    pub(super) upper: String,
    /// A pod or a copy needed it since it was last retired.
    needed: bool,
    pub(super) owner_reference: Option<OwnerReference>,
    in_flight: bool,
    /// The call in flight retires it.
    retiring: bool,
    /// It was deleted while a call was in flight.
    lost: bool,
    pub(super) not_before: Duration,
    backoff: Backoff,
    pub(super) last_error: Option<Error>,
    /// When it is retired, if nothing uses it then.
    check_at: Option<Duration>,
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
        let check_at = self.next_check(now);
        let namespace =
            self.lower_namespaces.entry(lower.to_owned()).or_insert_with(|| LowerNamespace::new(upper));
        upper.clone_into(&mut namespace.upper);
        (namespace.needed, namespace.check_at) = (true, Some(check_at));
        if namespace.is_waiting() && now >= namespace.not_before {
            namespace.in_flight = true;
            actions.push(Action::EnsureNamespace { lower: lower.to_owned(), upper: namespace.upper.clone() });
        }
    }

    /// Without the owner ConfigMap, the garbage collector deletes everything that it owns, so it has to be created again. What the one of
    /// another virtual node owned and is still there is nobody's.
    pub(super) fn handle_owner_deleted(&mut self, now: Duration, key: &CopyKey, actions: &mut Vec<Action>) {
        if self.other_owners.remove(key).is_some() {
            self.advance_all(now, |copy| copy.namespace == key.namespace, actions);
        }
        if key.kind != Kind::ConfigMap || key.name != self.owner_map_name {
            return;
        }
        let Some(namespace) = self.lower_namespaces.get_mut(&key.namespace) else { return };
        if !namespace.needed {
            // It was retired, by us or by somebody else.
            if !namespace.in_flight {
                self.lower_namespaces.remove(&key.namespace);
            }
            return;
        }
        namespace.mark_lost(now);
        let upper = namespace.upper.clone();
        self.ensure_namespace(now, &key.namespace, &upper, actions);
    }

    /// An owner ConfigMap was observed. If it is that of this node, the namespace is retired some day, even if an earlier process used it.
    /// If it is another one than we know, copies with the old one as their owner would be deleted by the garbage collector.
    pub(super) fn handle_owner_seen(
        &mut self,
        now: Duration,
        key: &CopyKey,
        uid: String,
        actions: &mut Vec<Action>,
    ) {
        if key.kind != Kind::ConfigMap {
            return;
        }
        if key.name != self.owner_map_name {
            let before = self.other_owners.get(key).filter(|before| **before != uid).cloned();
            self.other_owners.insert(key.clone(), uid);
            if before.is_some() {
                // What the earlier one owned is nobody's.
                self.advance_all(now, |copy| copy.namespace == key.namespace, actions);
            }
            return;
        }
        let check_at = self.next_check(now);
        let namespace = self.lower_namespaces.entry(key.namespace.clone());
        let namespace = namespace.or_insert_with(|| LowerNamespace::new(""));
        namespace.check_at.get_or_insert(check_at);
        if namespace.owner_reference.as_ref().is_some_and(|known| known.uid != uid) {
            namespace.mark_lost(now);
            let upper = namespace.upper.clone();
            self.ensure_namespace(now, &key.namespace, &upper, actions);
        }
    }

    /// A pod does not need its namespace any more.
    pub(super) fn release_namespace(&mut self, now: Duration, upper: &str) {
        let check_at = self.next_check(now);
        let lower = self.namespaces.to_lower(upper);
        if let Some(namespace) = lower.and_then(|lower| self.lower_namespaces.get_mut(&lower)) {
            namespace.check_at = Some(check_at);
        }
    }

    /// When a namespace that is used now is looked at again.
    fn next_check(&mut self, now: Duration) -> Duration {
        self.jittered(now, self.retention)
    }

    /// How many more namespaces can be retired before the next answer.
    pub(super) fn free_retirements(&self) -> usize {
        let retiring = self.lower_namespaces.values().filter(|namespace| namespace.retiring).count();
        MAX_RETIREMENTS.saturating_sub(retiring)
    }

    /// Retires the namespaces that nothing used for a while. Each answer asks for it, and after a restart all namespaces are due at about
    /// the same time: nothing is searched before it is known that one of them can be retired, and pods only once.
    pub(super) fn retire_namespaces(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let mut free = self.free_retirements();
        if free == 0 {
            return;
        }
        let is_due = |namespace: &LowerNamespace| {
            !namespace.in_flight && namespace.check_at.is_some_and(|at| at <= now)
        };
        let due = self.lower_namespaces.iter().filter(|(_, namespace)| is_due(namespace));
        let due: Vec<String> = due.map(|(lower, _)| lower.clone()).collect();
        if due.is_empty() {
            return;
        }
        let with_pods = self.namespaces_with_pods();
        for lower in due {
            if free == 0 {
                return;
            }
            let is_used = with_pods.contains(&lower) || self.has_copies(&lower);
            let check_at = self.next_check(now);
            let Some(namespace) = self.lower_namespaces.get_mut(&lower) else { continue };
            if is_used {
                namespace.check_at = Some(check_at);
                continue;
            }
            free -= 1;
            (namespace.needed, namespace.owner_reference, namespace.check_at) = (false, None, None);
            (namespace.in_flight, namespace.retiring) = (true, true);
            actions.push(Action::RetireNamespace(lower));
        }
    }

    /// The lower namespaces of all pods, which are sorted by their upper one.
    fn namespaces_with_pods(&self) -> BTreeSet<String> {
        let mut last = None;
        let upper = self.pods.keys().map(|pod| &*pod.namespace);
        let upper = upper.filter(|upper| last.replace(*upper) != Some(*upper));
        upper.filter_map(|upper| self.namespaces.to_lower(upper)).collect()
    }

    /// Whether there are copies in a lower namespace, which are sorted by kind and namespace.
    fn has_copies(&self, lower: &str) -> bool {
        Kind::ALL.into_iter().any(|kind| {
            let first = CopyKey { kind, namespace: lower.to_owned(), name: String::new() };
            let found = self.entries.range(first..).next();
            found.is_some_and(|(key, _)| key.kind == kind && key.namespace == lower)
        })
    }

    pub(super) fn handle_retired(
        &mut self,
        now: Duration,
        lower: &str,
        answer: &Result<(), Error>,
        actions: &mut Vec<Action>,
    ) {
        let check_at = self.next_check(now);
        let Some(namespace) = self.lower_namespaces.get_mut(lower) else { return };
        (namespace.in_flight, namespace.retiring, namespace.lost) = (false, false, false);
        if namespace.needed {
            let upper = namespace.upper.clone();
            self.ensure_namespace(now, lower, &upper, actions);
        } else if answer.is_ok() {
            self.lower_namespaces.remove(lower);
        } else {
            namespace.check_at = Some(check_at);
        }
        self.retire_namespaces(now, actions);
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
            needed: false,
            owner_reference: None,
            in_flight: false,
            retiring: false,
            lost: false,
            not_before: Duration::ZERO,
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(30)),
            last_error: None,
            check_at: None,
        }
    }

    /// When something has to be done about it. While enough others are retired, nothing is before the next answer.
    pub(super) fn deadline(&self, may_retire: bool) -> Option<Duration> {
        let retry = self.is_waiting().then_some(self.not_before);
        retry.into_iter().chain(self.check_at.filter(|_| !self.in_flight && may_retire)).min()
    }

    /// The owner ConfigMap or the whole namespace is gone.
    pub(super) fn mark_lost(&mut self, now: Duration) {
        self.owner_reference = None;
        self.lost = self.in_flight;
        self.not_before = self.not_before.min(now);
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.needed && self.owner_reference.is_none() && !self.in_flight
    }
}
