//! Watches nodes and leases, independently of the candidates.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Node},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{Api, Client, runtime::watcher};
use tokio::{task::JoinHandle, time::Instant};

use crate::candidate::is_ready;

/// A lease of 40 s is renewed every 10 to 10.4 s, as in a kubelet. More than 12 s is late.
const IN_TIME: Duration = Duration::from_secs(12);

pub(super) struct LeaseObserver {
    seen: Arc<Mutex<ObservedNodes>>,
    tasks: [JoinHandle<()>; 2],
    begun: Instant,
}

#[derive(Default)]
struct ObservedNodes {
    ready: HashSet<String>,
    /// Nodes that were once not Ready since [`LeaseObserver::begin`].
    lost: HashSet<String>,
    leases: HashMap<String, LeaseRenewals>,
}

/// The renewals of one lease.
#[derive(Default)]
struct LeaseRenewals {
    time: Option<MicroTime>,
    at: Vec<Instant>,
}

/// The renewals of all leases in the measured interval.
pub(super) struct LeaseSummary {
    /// The share of renewals in time, including overdue ones at the end.
    pub(super) in_time: f64,
    pub(super) longest: Duration,
    /// The share of the nodes that were Ready throughout.
    pub(super) steady: f64,
}

impl LeaseObserver {
    pub(super) fn start(client: Client) -> Self {
        let seen = Arc::new(Mutex::new(ObservedNodes::default()));
        let nodes = follow(Api::all(client.clone()), Arc::clone(&seen), observe_node);
        let leases = follow(Api::namespaced(client, "kube-node-lease"), Arc::clone(&seen), observe_lease);
        Self { seen, tasks: [nodes, leases], begun: Instant::now() }
    }

    fn seen(&self) -> MutexGuard<'_, ObservedNodes> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many nodes are Ready.
    pub(super) fn ready(&self) -> usize {
        self.seen().ready.len()
    }

    /// Starts the measured interval.
    pub(super) fn begin(&mut self) {
        self.begun = Instant::now();
        self.seen().lost.clear();
    }

    /// The summary since [`Self::begin`] for this number of nodes.
    pub(super) fn end(&self, count: usize) -> LeaseSummary {
        self.seen().between(self.begun, Instant::now(), count)
    }
}

impl ObservedNodes {
    fn between(&self, begun: Instant, now: Instant, count: usize) -> LeaseSummary {
        let (mut all, mut good, mut longest) = (0_u32, 0_u32, Duration::ZERO);
        for lease in self.leases.values() {
            let last = lease.at.last().copied().unwrap_or(begun);
            let closed =
                lease.at.windows(2).filter(|pair| pair[1] > begun).map(|pair| (pair[1] - pair[0], true));
            // The interval that is still open counts only if it is already too long.
            for (gap, closed) in closed.chain([(now - last, false)]) {
                longest = longest.max(gap);
                all += u32::from(closed || gap > IN_TIME);
                good += u32::from(closed && gap <= IN_TIME);
            }
        }
        // A node without a lease counts as a missed renewal.
        let missing = u32::try_from(count.saturating_sub(self.leases.len())).unwrap_or(u32::MAX);
        let steady = self.ready.difference(&self.lost).count().min(count);
        LeaseSummary {
            in_time: f64::from(good) / f64::from((all + missing).max(1)),
            longest,
            #[expect(clippy::cast_precision_loss, reason = "a figure to print")]
            steady: steady as f64 / count.max(1) as f64,
        }
    }
}

impl Drop for LeaseObserver {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

fn observe_node(seen: &mut ObservedNodes, node: &Node) {
    let name = node.metadata.name.clone().unwrap_or_default();
    if is_ready(node) {
        seen.ready.insert(name);
    } else {
        seen.ready.remove(&name);
        seen.lost.insert(name);
    }
}

fn observe_lease(seen: &mut ObservedNodes, lease: &Lease) {
    let renewed = seen.leases.entry(lease.metadata.name.clone().unwrap_or_default()).or_default();
    let time = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
    // Other changes, such as a new owner reference, are not renewals.
    if time.is_some() && time != renewed.time {
        renewed.time = time;
        renewed.at.push(Instant::now());
    }
}

fn follow<K>(api: Api<K>, seen: Arc<Mutex<ObservedNodes>>, saw: fn(&mut ObservedNodes, &K)) -> JoinHandle<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    #[expect(clippy::disallowed_methods, reason = "ended by its owner")]
    tokio::spawn(async move {
        let mut events = watcher(api, watcher::Config::default()).boxed();
        while let Some(event) = events.next().await {
            if let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event {
                saw(&mut seen.lock().unwrap_or_else(PoisonError::into_inner), &object);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_renewals_and_missing_ones_count_against_the_share() {
        let begun = Instant::now();
        let second = |second: u64| begun + Duration::from_secs(second);
        let at =
            |seconds: &[u64]| LeaseRenewals { time: None, at: seconds.iter().copied().map(second).collect() };
        let leases = [at(&[1, 11, 21, 31, 41, 51]), at(&[1, 11, 36, 46, 56]), at(&[1, 11])];
        let names = ["good", "late", "stopped"].map(str::to_owned);
        let leases = names.clone().into_iter().zip(leases).collect();
        let seen = ObservedNodes { ready: names.into(), lost: HashSet::new(), leases };
        let leases = seen.between(begun, second(60), 4);
        // Closed gaps: 5 + 4 + 1, of which one is late; one that is open too long; one lease that is not there.
        assert!((leases.in_time - 9.0 / 12.0).abs() < 1e-9, "{}", leases.in_time);
        assert_eq!(leases.longest, Duration::from_secs(49));
        assert!((leases.steady - 0.75).abs() < 1e-9, "{}", leases.steady);
    }
}
