//! How many images are pulled at the same time.
//!
//! The limit of a registry keeps a slow one from delaying others. It does not limit a tenant, who can have any number of registries, for
//! instance by a wildcard in DNS: so there is a limit for a namespace, and one for all pulls, of which a single namespace gets only a part.

use std::{collections::HashMap, fmt, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The limit of a namespace, as a multiple of that of a registry.
const NAMESPACE_FACTOR: usize = 2;
/// The limit of all pulls, as a multiple of that of a registry.
const TOTAL_FACTOR: usize = 8;

/// Permits for pulls. All limits are checked at once, so that a pull which waits for one of them takes nothing from the others.
#[derive(Clone, Debug)]
pub(super) struct PullPermits {
    /// `None` means no limit.
    queue: Option<Arc<Mutex<PullQueue>>>,
}

/// A permit, until it is dropped.
#[derive(Debug)]
pub(super) struct PullPermit {
    queue: Arc<Mutex<PullQueue>>,
    owner: PermitOwner,
}

/// What a permit counts for.
#[derive(Clone, Debug)]
struct PermitOwner {
    registry: Arc<str>,
    namespace: Arc<str>,
}

#[derive(Debug)]
struct PullQueue {
    /// The limit of a registry.
    most: usize,
    total: usize,
    /// Active pulls; without those that have none.
    registries: HashMap<Arc<str>, usize>,
    namespaces: HashMap<Arc<str>, usize>,
    /// In the order of their requests.
    waiting: Vec<WaitingPull>,
}

struct WaitingPull {
    owner: PermitOwner,
    granted: oneshot::Sender<PullPermit>,
}

// === impl PullPermits ===

impl PullPermits {
    /// At most `most` pulls from one registry.
    pub(super) fn new(most: Option<usize>) -> Self {
        let queue = most.map(|most| PullQueue {
            most: most.max(1),
            total: 0,
            registries: HashMap::new(),
            namespaces: HashMap::new(),
            waiting: Vec::new(),
        });
        Self { queue: queue.map(|queue| Arc::new(Mutex::new(queue))) }
    }

    /// Waits for a permit; `None` if there is no limit.
    pub(super) async fn acquire(&self, registry: &str, namespace: &str) -> Option<PullPermit> {
        let queue = self.queue.as_ref()?;
        let owner = PermitOwner { registry: registry.into(), namespace: namespace.into() };
        let (granted, permit) = oneshot::channel();
        queue.lock().waiting.push(WaitingPull { owner, granted });
        grant(queue);
        permit.await.ok()
    }
}

/// Gives permits to all who can have one.
fn grant(queue: &Arc<Mutex<PullQueue>>) {
    loop {
        let next = queue.lock().next();
        let Some(WaitingPull { owner, granted }) = next else { return };
        // Not locked here: a permit that nobody takes is given back.
        drop(granted.send(PullPermit { queue: Arc::clone(queue), owner }));
    }
}

// === impl PullQueue ===

impl PullQueue {
    /// Takes the next pull that may begin: of the namespace with the fewest active pulls, the oldest.
    fn next(&mut self) -> Option<WaitingPull> {
        self.waiting.retain(|waiting| !waiting.granted.is_closed());
        if self.total >= self.most.saturating_mul(TOTAL_FACTOR) {
            return None;
        }
        let active =
            |counts: &HashMap<Arc<str>, usize>, name: &Arc<str>| counts.get(name).copied().unwrap_or(0);
        let in_namespace = |owner: &PermitOwner| active(&self.namespaces, &owner.namespace);
        let allowed = self.waiting.iter().enumerate().filter(|(_, WaitingPull { owner, .. })| {
            active(&self.registries, &owner.registry) < self.most
                && in_namespace(owner) < self.most.saturating_mul(NAMESPACE_FACTOR)
        });
        let (index, _) = allowed.min_by_key(|(_, waiting)| in_namespace(&waiting.owner))?;
        let next = self.waiting.remove(index);
        self.total += 1;
        *self.registries.entry(Arc::clone(&next.owner.registry)).or_default() += 1;
        *self.namespaces.entry(Arc::clone(&next.owner.namespace)).or_default() += 1;
        Some(next)
    }

    fn release(&mut self, owner: &PermitOwner) {
        self.total -= 1;
        for (counts, name) in
            [(&mut self.registries, &owner.registry), (&mut self.namespaces, &owner.namespace)]
        {
            if let Some(count) = counts.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(name);
                }
            }
        }
    }
}

impl Drop for PullPermit {
    fn drop(&mut self) {
        self.queue.lock().release(&self.owner);
        grant(&self.queue);
    }
}

impl fmt::Debug for WaitingPull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingPull").field("owner", &self.owner).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// The permit, if it is granted at once.
    fn granted(permits: &PullPermits, registry: &str, namespace: &str) -> Option<PullPermit> {
        permits.acquire(registry, namespace).now_or_never().flatten()
    }

    fn registry(number: usize) -> String {
        format!("r{number}.example")
    }

    #[test]
    fn registries_namespaces_and_all_pulls_have_limits() {
        let permits = PullPermits::new(Some(3));
        let take = |registry: &str, namespace: &str| {
            std::iter::from_fn(|| granted(&permits, registry, namespace)).collect::<Vec<_>>()
        };
        let one = take("a", "team");
        assert_eq!(one.len(), 3, "of one registry");
        let others: Vec<_> =
            (0..10).filter_map(|number| granted(&permits, &registry(number), "team")).collect();
        assert_eq!(one.len() + others.len(), 3 * NAMESPACE_FACTOR, "for one namespace");
        let all: Vec<_> = (0..100)
            .filter_map(|number| granted(&permits, &registry(number), &format!("n{number}")))
            .collect();
        assert_eq!(one.len() + others.len() + all.len(), 3 * TOTAL_FACTOR);
        drop((one, others, all));
        let queue = permits.queue.as_ref().unwrap().lock();
        assert_eq!((queue.total, queue.registries.len(), queue.namespaces.len()), (0, 0, 0), "{queue:?}");
    }

    #[tokio::test]
    async fn a_pull_that_waits_takes_nothing_from_others() {
        let permits = PullPermits::new(Some(1));
        let held: Vec<_> =
            (0..2).map(|number| granted(&permits, &registry(number), "evil").unwrap()).collect();
        // The namespace has its share: it waits, and does not hold the registry meanwhile.
        let mut waiting = Box::pin(permits.acquire("common.example", "evil"));
        assert!(futures::poll!(&mut waiting).is_pending());
        let other = granted(&permits, "common.example", "team");
        assert!(other.is_some());
        drop(held);
        assert!(futures::poll!(&mut waiting).is_pending(), "another one has the registry");
        drop(other);
        assert!(waiting.await.is_some());
    }

    #[tokio::test]
    async fn the_namespace_with_the_fewest_pulls_is_next_and_cancelled_requests_are_not_served() {
        let permits = PullPermits::new(Some(1));
        let mut held: Vec<_> = (0..TOTAL_FACTOR)
            .map(|number| granted(&permits, &registry(number), &format!("n{}", number / 2)).unwrap())
            .collect();
        let mut cancelled = Box::pin(permits.acquire("a", "first"));
        let mut busy = Box::pin(permits.acquire("b", "n0"));
        let mut idle = Box::pin(permits.acquire("c", "idle"));
        for waiting in [&mut cancelled, &mut busy, &mut idle] {
            assert!(futures::poll!(waiting).is_pending());
        }
        drop(cancelled);
        drop(held.remove(0));
        assert!(futures::poll!(&mut busy).is_pending());
        assert!(idle.await.is_some());
        assert!(busy.await.is_some());
    }

    #[test]
    fn without_a_limit_there_are_no_permits() {
        let permits = PullPermits::new(None);
        assert!(permits.acquire("a", "team").now_or_never().is_some_and(|permit| permit.is_none()));
    }
}
