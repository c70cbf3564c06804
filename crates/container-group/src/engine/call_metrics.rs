//! Figures about calls and groups, for `/metrics`. No label names a pod.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use vk_provider::MetricFamily;

use super::context::{EngineContext, State};
use crate::{
    GroupBackend,
    backend::{Action, CallResult, Class, GroupState, Price},
    reconciler::Reconciler,
};

const HOUR: f64 = 3_600.0;

/// What calls were made, and how long they took.
#[derive(Debug, Default)]
pub(super) struct CallMetrics(Mutex<BTreeMap<Action, ActionFigures>>);

#[derive(Debug, Default)]
struct ActionFigures {
    /// By outcome.
    calls: BTreeMap<&'static str, u64>,
    throttled: u64,
    duration: Total,
    wait: Total,
}

/// A number of durations and their sum.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    count: u64,
    seconds: f64,
}

/// What groups have cost since the process began, by namespace and currency.
#[derive(Debug, Default)]
pub(super) struct Costs {
    total: BTreeMap<(Arc<str>, String), f64>,
    until: Option<Duration>,
}

// === impl CallMetrics ===

impl CallMetrics {
    pub(super) fn waited(&self, action: Action, wait: Duration) {
        self.0.lock().entry(action).or_default().wait.add(wait);
    }

    pub(super) fn called<T>(&self, action: Action, duration: Duration, result: &CallResult<T>) {
        let mut figures = self.0.lock();
        let figures = figures.entry(action).or_default();
        figures.duration.add(duration);
        let outcome = result.as_ref().map_or_else(|error| error.class.name(), |_| "Ok");
        *figures.calls.entry(outcome).or_default() += 1;
        let is_throttled = matches!(result, Err(error) if matches!(error.class, Class::Throttled { .. }));
        figures.throttled += u64::from(is_throttled);
    }

    fn families(&self) -> Vec<MetricFamily> {
        let mut calls = MetricFamily::counter("cloud_calls", "Calls of the cloud's API");
        let mut seconds = MetricFamily::summary("cloud_call_seconds", "Duration of calls of the cloud's API");
        let mut throttled = MetricFamily::counter(
            "cloud_throttled",
            "Calls that the cloud refused because of too many calls",
        );
        let mut waits =
            MetricFamily::summary("cloud_budget_wait_seconds", "Time that calls waited for their turn");
        for (action, figures) in &*self.0.lock() {
            let action = ("action", action.name());
            for (outcome, count) in &figures.calls {
                calls = calls.sample(&[action, ("outcome", outcome)], float(*count));
            }
            throttled = throttled.sample(&[action], float(figures.throttled));
            seconds = figures.duration.into_sample(seconds, action);
            waits = figures.wait.into_sample(waits, action);
        }
        vec![calls, seconds, throttled, waits]
    }
}

impl Total {
    fn add(&mut self, duration: Duration) {
        self.count += 1;
        self.seconds += duration.as_secs_f64();
    }

    fn into_sample(self, family: MetricFamily, action: (&str, &str)) -> MetricFamily {
        if self.count == 0 { family } else { family.observations(&[action], self.seconds, self.count) }
    }
}

// === impl Costs ===

impl Costs {
    /// Adds what the groups have cost since the last time. `rates` are prices per hour.
    fn add(&mut self, now: Duration, rates: &BTreeMap<(Arc<str>, String), f64>) {
        let hours = now.saturating_sub(self.until.unwrap_or(now)).as_secs_f64() / HOUR;
        self.until = Some(now);
        for (key, rate) in rates {
            *self.total.entry(key.clone()).or_default() += rate * hours;
        }
    }
}

/// What the groups that run cost per hour, by namespace and currency.
fn rates<'a>(
    reconciler: &Reconciler,
    price: impl Fn(&str) -> Option<&'a Price>,
) -> BTreeMap<(Arc<str>, String), f64> {
    let mut rates = BTreeMap::new();
    for (pod, group) in reconciler.groups().filter(|(_, group)| !group.has_ended()) {
        if let Some(price) = group.observed().size.as_ref().and_then(|size| price(&size.to_string())) {
            let key = (Arc::clone(&pod.namespace), price.currency.clone());
            *rates.entry(key).or_default() += price.per_hour;
        }
    }
    rates
}

// === impl EngineContext ===

impl<B: GroupBackend> EngineContext<B> {
    /// Adds the cost of the time since the last poll.
    pub(super) fn add_costs(&self, state: &mut State<B::Request>) {
        let rates = rates(&state.reconciler, |size| state.prices.get(size)?.as_ref());
        state.costs.add(self.now(), &rates);
    }

    /// All figures, now.
    pub(super) fn metrics(&self) -> Vec<MetricFamily> {
        let mut families = self.call_metrics.families();
        let mut state = self.state.lock();
        self.add_costs(&mut state);
        let reconciler = &state.reconciler;
        let mut age =
            MetricFamily::gauge("cloud_look_age_seconds", "Time since the groups were last read completely");
        if let Some(followed) = reconciler.followed() {
            age = age.sample(&[], self.now().saturating_sub(followed).as_secs_f64());
        }
        let mut states: BTreeMap<&str, u64> = BTreeMap::new();
        let mut orphaned = 0;
        for (pod, group) in reconciler.groups() {
            *states.entry(group.observed().state.map_or("Unknown", GroupState::name)).or_default() += 1;
            let is_known = state.records.get(&pod.uid).is_some_and(|record| record.pod.is_some());
            orphaned += u64::from(!is_known && !group.has_ended());
        }
        let mut groups = MetricFamily::gauge("cloud_groups", "Container groups of the node");
        for (name, count) in states {
            groups = groups.sample(&[("state", name)], float(count));
        }
        let help = "Groups that were deleted because their pod had another one";
        let duplicates = MetricFamily::counter("cloud_duplicates", help).sample(&[], float(state.duplicates));
        let help = "Groups that run although the core does not know their pod";
        let orphaned = MetricFamily::gauge("cloud_orphaned", help).sample(&[], float(orphaned));
        let mut price = MetricFamily::gauge("cloud_price_per_hour", "List price of the groups that run");
        for ((namespace, currency), rate) in rates(reconciler, |size| state.prices.get(size)?.as_ref()) {
            price = price.sample(&[("namespace", &namespace), ("currency", &currency)], rate);
        }
        let mut cost = MetricFamily::counter(
            "cloud_cost",
            "What groups have cost since the process began, from the list price",
        );
        for ((namespace, currency), total) in &state.costs.total {
            cost = cost.sample(&[("namespace", namespace), ("currency", currency)], *total);
        }
        families.extend([age, groups, duplicates, orphaned, price, cost]);
        families
    }
}

#[expect(clippy::cast_precision_loss, reason = "a metric is a floating-point number")]
fn float(count: u64) -> f64 {
    count as f64
}
