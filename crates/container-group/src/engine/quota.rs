//! The quota of the account: no creates while it is used up, and a node that offers no more than what is left.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use vk_provider::Quantity;

use super::context::EngineContext;
use crate::{
    GroupBackend,
    backend::{Action, CallError, Class, Usage},
    reconciler::Reconciler,
};

/// How often the quota is read while it is used up, and otherwise.
const READ_EXHAUSTED: Duration = Duration::from_mins(1);
const READ: Duration = Duration::from_mins(5);

/// What is known of the quota.
#[derive(Debug, Default)]
pub(super) struct Quota {
    usage: Vec<Usage>,
    /// What our groups used when the quota was read.
    ours: BTreeMap<String, Quantity>,
    /// When it was last tried to read the quota.
    tried: Option<Duration>,
    /// The cloud's refusal of a create, until the quota was read again.
    refused: Option<RefusedCreate>,
}

/// A create that the cloud has refused.
#[derive(Debug)]
struct RefusedCreate {
    error: CallError,
    since: Duration,
}

// === impl Quota ===

impl Quota {
    /// The cloud has refused a create. Returns whether it is the first one since the quota was read.
    fn exhausted(&mut self, now: Duration, error: &CallError) -> bool {
        let is_first = self.refused.is_none();
        self.refused.get_or_insert_with(|| RefusedCreate { error: error.clone(), since: now });
        is_first
    }

    /// Why no create is tried now: the cloud's words.
    fn refusal(&self) -> Option<CallError> {
        self.refused.as_ref().map(|refused| refused.error.clone())
    }

    /// The refusal with limit and usage of what is used up; of everything, if nothing is: a pod may need more than what is left.
    fn described(&self, error: &CallError) -> CallError {
        let limited = || self.usage.iter().filter_map(|usage| Some((usage, usage.limit?)));
        let is_full = limited().any(|(usage, limit)| usage.used >= limit);
        let shown = limited().filter(|(usage, limit)| !is_full || usage.used >= *limit);
        let texts: Vec<String> = shown
            .map(|(usage, limit)| format!("{}: {} of {limit} used", usage.resource, usage.used))
            .collect();
        let details = if texts.is_empty() { String::new() } else { format!(" ({})", texts.join(", ")) };
        CallError::new(Class::QuotaExceeded, format!("{}{details}", error.message))
    }

    /// The quota was read. Returns whether that changes the node.
    fn read(&mut self, usage: Vec<Usage>, ours: BTreeMap<String, Quantity>) -> bool {
        let changed = self.usage != usage || self.ours != ours;
        self.usage = usage;
        self.ours = ours;
        changed
    }

    /// The quota was read, or could not be read, since this time: creates that were refused before are tried again. Returns whether there
    /// are any.
    fn admit(&mut self, begun: Duration) -> bool {
        self.refused.take_if(|refused| refused.since < begun).is_some()
    }

    /// When the quota is read next.
    fn read_at(&self) -> Duration {
        let Some(tried) = self.tried else { return Duration::ZERO };
        let regular = tried + READ;
        self.refused.as_ref().map_or(regular, |refused| regular.min(refused.since + READ_EXHAUSTED))
    }

    /// What pods can use: what nobody else uses, up to the capacity.
    pub(super) fn allocatable(&self, capacity: &BTreeMap<String, Quantity>) -> BTreeMap<String, Quantity> {
        let none = Quantity::units(0);
        let remaining = self.usage.iter().filter_map(|usage| {
            let most = *capacity.get(&usage.resource)?;
            // Not what we use now: the usage is as old as the last read.
            let ours = self.ours.get(&usage.resource).copied().unwrap_or(none);
            let left = usage.limit? - usage.used;
            let left = if left.is_negative() { none } else { left };
            Some((usage.resource.clone(), most.min(left + ours)))
        });
        remaining.collect()
    }
}

impl<B: GroupBackend> EngineContext<B> {
    /// Why no create is tried now, with limit and usage.
    pub(super) async fn quota_refusal(&self) -> Option<CallError> {
        let refusal = self.state.lock().quota.refusal()?;
        // The quota may just be read.
        let _reading = self.quota_read.lock().await;
        Some(self.state.lock().quota.described(&refusal))
    }

    /// The cloud has refused a create. Reads the quota, once for all creates that were refused at the same time, and returns the refusal with
    /// limit and usage.
    pub(super) async fn quota_refused(&self, error: &CallError) -> CallError {
        let is_first = self.state.lock().quota.exhausted(self.now(), error);
        let _reading = self.quota_read.lock().await;
        if is_first {
            self.read_quota().await;
            self.node_has_changed();
        }
        self.quota_changed.notify_one();
        self.state.lock().quota.described(error)
    }

    async fn read_quota(&self) {
        let result = self.call(Action::Probe, self.backend.probe()).await;
        let mut state = self.state.lock();
        state.quota.tried = Some(self.now());
        let Ok(health) = result else { return };
        let ours = used(&state.reconciler);
        if state.quota.read(health.quota, ours) {
            drop(state);
            self.node_has_changed();
        }
    }
}

/// What our groups use of the quota.
fn used(reconciler: &Reconciler) -> BTreeMap<String, Quantity> {
    let none = Quantity::units(0);
    let live = || reconciler.groups().filter(|(_, group)| !group.has_ended());
    let sizes = live().filter_map(|(_, group)| group.observed().size.as_ref());
    let (cpu, memory) =
        sizes.fold((none, none), |(cpu, memory), size| (cpu + size.cpu, memory + size.memory));
    let pods = Quantity::units(i64::try_from(live().count()).unwrap_or(i64::MAX));
    [("cpu".to_owned(), cpu), ("memory".to_owned(), memory), ("pods".to_owned(), pods)].into()
}

/// Reads the quota now and then, until the supervisor stops.
pub(super) async fn run<B: GroupBackend>(context: Arc<EngineContext<B>>) {
    let reads = async {
        loop {
            let wait = context.state.lock().quota.read_at().saturating_sub(context.now());
            if !wait.is_zero() {
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = context.quota_changed.notified() => {}
                }
                continue;
            }
            let _reading = context.quota_read.lock().await;
            let begun = context.now();
            context.read_quota().await;
            // Also if it cannot be read, for want of a permission: then the next create shows whether there is quota again.
            let was_refused = context.state.lock().quota.admit(begun);
            if was_refused {
                context.node_has_changed();
            }
        }
    };
    tokio::select! {
        () = reads => {}
        () = context.supervisor.stopping() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(used: i64, limit: i64) -> Usage {
        let limit = Some(Quantity::units(limit));
        Usage { resource: "cpu".to_owned(), used: Quantity::units(used), limit }
    }

    fn cpu(count: i64) -> BTreeMap<String, Quantity> {
        [("cpu".to_owned(), Quantity::units(count))].into()
    }

    #[test]
    fn the_node_offers_what_nobody_else_uses_of_the_quota() {
        let mut quota = Quota::default();
        let capacity = cpu(100);
        assert!(quota.allocatable(&capacity).is_empty(), "the quota is not known");
        let offered = |quota: &Quota| quota.allocatable(&capacity)["cpu"];
        assert!(quota.read(vec![usage(40, 60)], cpu(10)));
        assert_eq!(offered(&quota), Quantity::units(30));
        assert!(!quota.read(vec![usage(40, 60)], cpu(10)));
        quota.read(vec![usage(40, 600)], cpu(10));
        assert_eq!(offered(&quota), Quantity::units(100), "not more than the capacity");
        quota.read(vec![usage(70, 60)], cpu(10));
        assert_eq!(offered(&quota), Quantity::units(10));
    }

    #[test]
    fn creates_are_refused_with_limit_and_usage_until_the_quota_was_read() {
        let mut quota = Quota::default();
        quota.read(vec![usage(60, 60)], cpu(0));
        assert_eq!(quota.refusal(), None);
        quota.exhausted(Duration::ZERO, &CallError::new(Class::QuotaExceeded, "QuotaExceeded"));
        let refusal = quota.refusal().unwrap();
        assert_eq!(quota.described(&refusal).message, "QuotaExceeded (cpu: 60 of 60 used)");
        assert!(!quota.admit(Duration::ZERO), "it was read before the refusal");
        assert!(quota.admit(READ_EXHAUSTED));
        assert_eq!(quota.refusal(), None);
    }

    #[test]
    fn a_refused_create_makes_the_quota_be_read_a_minute_later() {
        let mut quota = Quota::default();
        assert_eq!(quota.read_at(), Duration::ZERO);
        let now = Duration::from_secs(100);
        quota.tried = Some(now);
        assert_eq!(quota.read_at(), now + READ);
        quota.exhausted(now, &CallError::new(Class::QuotaExceeded, "QuotaExceeded"));
        assert_eq!(quota.read_at(), now + READ_EXHAUSTED);
    }
}
