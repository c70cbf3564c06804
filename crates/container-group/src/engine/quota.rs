//! The quota of the account: no creates while it is used up, and a node that offers no more than what is left.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use vk_provider::Quantity;

use super::context::EngineContext;
use crate::{
    GroupBackend,
    backend::{Action, CallError, Class, Usage},
};

/// How often the quota is read while it is used up, and otherwise.
const READ_EXHAUSTED: Duration = Duration::from_mins(1);
const READ: Duration = Duration::from_mins(5);

/// What is known of the quota.
#[derive(Debug, Default)]
pub(super) struct Quota {
    usage: Vec<Usage>,
    /// The cloud's refusal of the last create, until the quota was read again.
    refused: Option<CallError>,
}

// === impl Quota ===

impl Quota {
    /// The cloud has refused a create.
    pub(super) fn exhausted(&mut self, error: CallError) {
        self.refused = Some(error);
    }

    /// Why no create is tried now.
    pub(super) fn refusal(&self) -> Option<CallError> {
        let refused = self.refused.as_ref()?;
        let full = self.usage.iter().filter_map(|usage| {
            let limit = usage.limit.filter(|limit| usage.used >= *limit)?;
            Some(format!("{}: {} of {limit} used", usage.resource, usage.used))
        });
        let full: Vec<String> = full.collect();
        let details = if full.is_empty() { String::new() } else { format!(" ({})", full.join(", ")) };
        Some(CallError::new(Class::QuotaExceeded, format!("{}{details}", refused.message)))
    }

    fn read(&mut self, usage: Vec<Usage>) -> bool {
        let changed = self.usage != usage || self.refused.is_some();
        self.usage = usage;
        self.refused = None;
        changed
    }

    /// What pods can use: what we have, and what nobody has, up to the capacity.
    pub(super) fn allocatable(
        &self,
        capacity: &BTreeMap<String, Quantity>,
        ours: &BTreeMap<String, Quantity>,
    ) -> BTreeMap<String, Quantity> {
        let none = Quantity::units(0);
        let remaining = self.usage.iter().filter_map(|usage| {
            let most = *capacity.get(&usage.resource)?;
            let left = usage.limit? - usage.used;
            let left = if left.is_negative() { none } else { left };
            let ours = ours.get(&usage.resource).copied().unwrap_or(none);
            Some((usage.resource.clone(), most.min(left + ours)))
        });
        remaining.collect()
    }
}

/// Reads the quota now and then, until the supervisor stops.
pub(super) async fn run<B: GroupBackend>(context: Arc<EngineContext<B>>) {
    loop {
        let read = async {
            let result = context.call(Action::Probe, context.backend.probe()).await;
            let wait = match result {
                Ok(health) => {
                    if context.state.lock().quota.read(health.quota) {
                        context.node_has_changed();
                    }
                    READ
                }
                Err(_) => READ_EXHAUSTED,
            };
            let mut left = wait;
            while !left.is_zero() {
                let step = left.min(READ_EXHAUSTED);
                tokio::time::sleep(step).await;
                left = left.saturating_sub(step);
                if context.state.lock().quota.refused.is_some() {
                    break;
                }
            }
        };
        tokio::select! {
            () = read => {}
            () = context.supervisor.stopping() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(used: i64, limit: i64) -> Usage {
        let limit = Some(Quantity::units(limit));
        Usage { resource: "cpu".to_owned(), used: Quantity::units(used), limit }
    }

    #[test]
    fn the_node_offers_what_is_left_of_the_quota_and_what_it_has() {
        let mut quota = Quota::default();
        let capacity = [("cpu".to_owned(), Quantity::units(100))].into();
        let ours = [("cpu".to_owned(), Quantity::units(10))].into();
        assert!(quota.allocatable(&capacity, &ours).is_empty(), "the quota is not known");
        let cpu = |quota: &Quota| quota.allocatable(&capacity, &ours)["cpu"];
        assert!(quota.read(vec![usage(40, 60)]));
        assert_eq!(cpu(&quota), Quantity::units(30));
        assert!(!quota.read(vec![usage(40, 60)]));
        quota.read(vec![usage(40, 600)]);
        assert_eq!(cpu(&quota), Quantity::units(100), "not more than the capacity");
        quota.read(vec![usage(70, 60)]);
        assert_eq!(cpu(&quota), Quantity::units(10));
    }

    #[test]
    fn creates_are_refused_with_limit_and_usage_until_the_quota_was_read() {
        let mut quota = Quota::default();
        quota.read(vec![usage(60, 60)]);
        assert_eq!(quota.refusal(), None);
        quota.exhausted(CallError::new(Class::QuotaExceeded, "QuotaExceeded"));
        let refusal = quota.refusal().unwrap();
        assert_eq!(refusal.message, "QuotaExceeded (cpu: 60 of 60 used)");
        quota.read(vec![usage(50, 60)]);
        assert_eq!(quota.refusal(), None);
    }
}
