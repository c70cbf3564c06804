//! The one task that works on a pod: everything for it happens here, one after the other.

use std::{collections::HashSet, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use rand::RngExt as _;
use tokio::time::Instant;
use tracing::{debug, error, warn};
use vk_provider::{PodBundle, Resolver, Result, resolve::Reference};
use vk_supervisor::Backoff;

use super::{
    look::{Depth, SETTLING},
    shared::Shared,
    slot::{Order, Slot},
    stray,
};
use crate::{
    backend::{Runtime, told},
    decide::Backoffs,
    probe::Probes,
    snapshot::{Container, Snapshot},
    status::{self, Trouble, Troubles},
    volume::Volumes,
};

/// How soon a pod is looked at again after something failed, as by a kubelet's pod worker.
pub(super) const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// How soon a runtime that could not be asked is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How many passes may follow each other without a pause: more than a pod with many init containers needs.
const AT_ONCE: u32 = 100;

/// A pod's actor.
pub(super) struct Actor {
    pub(super) shared: Arc<Shared>,
    pub(super) slot: Arc<Slot>,
    /// What the runtime said last.
    pub(super) snapshot: Arc<Snapshot>,
    /// Ids of what is in the snapshot only because it is listed.
    pub(super) partial: HashSet<String>,
    /// When a runtime is asked again that could not be asked.
    pub(super) asking: Backoff,
    pub(super) probes: Probes,
    pub(super) volumes: Volumes,
    pub(super) backoffs: Backoffs,
    pub(super) troubles: Troubles,
    /// The status that was computed last.
    pub(super) status: Option<Arc<PodStatus>>,
    /// The pod was looked at with its spec.
    pub(super) adopted: bool,
    /// The pod as an earlier process noted it, while nobody has asked for it.
    stray: Option<Arc<Pod>>,
    /// The status that is noted for the next process.
    pub(super) noted: Option<Arc<PodStatus>>,
    /// Why the pod must fail before anything is made of it.
    pub(super) failed: Option<Trouble>,
    /// Volumes could not be made.
    pub(super) unmounted: bool,
    pub(super) mounting: Backoff,
    /// What a container needs and is not there.
    pub(super) awaiting: Option<(Arc<dyn Resolver>, Reference)>,
    /// Containers of which was told that they are stopped, and those whose preStop hook had its chance.
    pub(super) stopped: Arc<Mutex<Stopped>>,
    /// Everything was stopped and nothing starts again.
    pub(super) over: bool,
    /// When what is left of a deleted pod is removed.
    pub(super) forget_at: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Stopped {
    pub(super) told: HashSet<String>,
    pub(super) hooked: HashSet<String>,
}

/// What comes after a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Look again after so long, if nothing happens before.
    In(Duration),
    /// All is done: nobody needs the actor any more.
    Done,
}

/// Works on a pod until nothing is left to do, or the engine ends. Whatever it does may be dropped at any await: what counts is in the
/// runtime and on the disk.
pub(super) async fn run(shared: Arc<Shared>, slot: Arc<Slot>) {
    let supervisor = shared.supervisor.clone();
    let work = async {
        loop {
            // Boxed, both: whatever a future is made of it holds more than once, and most of the time there is one for each pod.
            let actor = Box::new(Actor::new(Arc::clone(&shared), Arc::clone(&slot)));
            if AssertUnwindSafe(Box::pin(actor.live())).catch_unwind().await.is_ok() {
                return;
            }
            // All that it needs to know it finds again; a pod that nobody works on would be lost.
            error!(pod = %slot.pod, "the work on a pod has panicked: it begins anew");
            slot.outdate();
            tokio::time::sleep(AFTER_FAILURE).await;
        }
    };
    tokio::select! {
        biased;
        () = supervisor.stopping() => {}
        () = work => {}
    }
}

// === impl Actor ===

impl Actor {
    fn new(shared: Arc<Shared>, slot: Arc<Slot>) -> Self {
        let probes = unprobed(&shared, &slot);
        let volumes = Volumes::new(&shared.place, &slot.pod.uid, shared.clock.clone());
        let backoffs = Backoffs::new(shared.settings.max_crash_backoff);
        Self {
            shared,
            slot,
            snapshot: Arc::default(),
            partial: HashSet::new(),
            asking: Backoff::new(ASK_AGAIN, AFTER_FAILURE),
            probes,
            volumes,
            backoffs,
            troubles: Troubles::new(),
            status: None,
            adopted: false,
            stray: None,
            noted: None,
            failed: None,
            unmounted: false,
            mounting: Backoff::new(Duration::from_millis(500), Duration::from_secs(122)),
            awaiting: None,
            stopped: Arc::default(),
            over: false,
            forget_at: None,
        }
    }

    async fn live(mut self: Box<Self>) {
        let slot = Arc::clone(&self.slot);
        let mut orders = slot.stop.subscribe();
        let mut volumes = self.volumes.changes();
        let mut verdicts = self.probes.changes();
        let mut wait = Duration::ZERO;
        let mut at_once = 0;
        loop {
            tokio::select! {
                biased;
                Ok(()) = orders.changed() => {}
                () = slot.woken() => {}
                Ok(()) = verdicts.changed() => {}
                () = self.volumes.changed(&mut volumes), if self.unmounted => {}
                () = appeared(self.awaiting.as_ref()) => self.awaiting = None,
                () = tokio::time::sleep(wait) => {}
            }
            let order = orders.borrow_and_update().clone();
            let next = tokio::select! {
                biased;
                // Something is to be stopped, or sooner: whatever is under way is dropped.
                Ok(()) = orders.changed() => {
                    orders.mark_changed();
                    slot.touch();
                    Ok(Next::In(Duration::ZERO))
                }
                // Boxed: most pods wait most of the time, and need no room for work then.
                next = Box::pin(self.work(order.as_ref())) => next,
            };
            wait = match next {
                Ok(Next::In(wait)) => wait,
                Ok(Next::Done) => return,
                Err(error) => {
                    debug!(pod = %slot.pod, error = told(&error), "the pod is looked at again later");
                    let known = slot.view.borrow().trouble.is_none();
                    if known {
                        AFTER_FAILURE.mul_f64(rand::rng().random_range(1.0..1.5))
                    } else {
                        // All pods are woken when the runtime is back.
                        self.asking.next(None, &mut rand::rng())
                    }
                }
            };
            if wait > SETTLING && self.snapshot.containers.iter().any(|container| self.unsettled(container)) {
                wait = SETTLING;
                self.slot.outdate();
            }
            // What has always something to do does not get anywhere: others shall have their turn.
            at_once = if wait.is_zero() { at_once + 1 } else { 0 };
            if at_once > AT_ONCE {
                wait = ASK_AGAIN;
            }
        }
    }

    async fn work(&mut self, order: Option<&Order>) -> Result<Next> {
        let bundle = self.slot.bundle.lock().clone();
        if self.slot.take_stale() {
            // Only who starts something must know everything.
            let depth = if order.is_none() && bundle.is_some() { Depth::Full } else { Depth::Listed };
            self.refresh(depth).await?;
        }
        match (order, bundle) {
            (Some(order), bundle) => self.stop(order, bundle.as_ref()).await,
            (None, Some(bundle)) => {
                let next = self.sync(&bundle).await;
                self.note(&bundle.pod).await;
                next
            }
            (None, None) => Ok(self.observe().await),
        }
    }

    /// Looks at a pod that nobody has asked for.
    async fn observe(&mut self) -> Next {
        if self.snapshot.sandboxes.is_empty() && self.snapshot.containers.is_empty() {
            if self.shared.release(&self.slot, false) {
                return Next::Done;
            }
            return Next::In(Duration::ZERO);
        }
        let pod = self.stray().await;
        self.publish(&pod, false);
        Next::In(if self.partial.is_empty() { self.resync() } else { AFTER_FAILURE })
    }

    /// The pod as far as it is known without the core: as an earlier process noted it, or by the marks on its containers.
    pub(super) async fn stray(&mut self) -> Arc<Pod> {
        let noted = self.as_noted().await;
        noted.unwrap_or_else(|| Arc::new(stray::pod(&self.slot.pod, &self.snapshot)))
    }

    /// The pod as an earlier process noted it.
    pub(super) async fn as_noted(&mut self) -> Option<Arc<Pod>> {
        if self.stray.is_none() {
            self.stray = self.noted_pod().await.map(Arc::new);
        }
        self.stray.clone()
    }

    /// When to look without a reason.
    pub(super) fn resync(&self) -> Duration {
        self.shared.settings.resync.mul_f64(rand::rng().random_range(1.0..1.5))
    }

    /// Computes the status and tells it where it is another. `over`: everything was stopped and nothing starts again.
    pub(super) fn publish(&mut self, pod: &Pod, over: bool) -> Arc<PodStatus> {
        let shared = Arc::clone(&self.shared);
        let runtime = shared.health.runtime().unwrap_or_default();
        let verdicts = self.probes.verdicts();
        let computed = status::status(&status::Situation {
            pod,
            snapshot: &self.snapshot,
            verdicts: &verdicts,
            troubles: &self.troubles,
            previous: self.status.as_deref(),
            node_ips: &shared.settings.node_ips,
            runtime: &runtime.name,
            recursive_read_only: self.recursive_read_only(&runtime),
            failed: self.failed.as_ref(),
            over,
            since: Some(shared.since),
            now: shared.clock.now(),
        });
        let computed = match &self.failed {
            // Of what was refused on sight a kubelet says why, and nothing else.
            Some(why) if self.snapshot.is_empty() => status::refused(pod, &computed, why),
            _ if over => status::settled(pod, &computed),
            _ => computed,
        };
        let computed = Arc::new(computed);
        self.status = Some(Arc::clone(&computed));
        let before = self.slot.view.borrow().status.clone();
        // That all containers have ended counts as the end of a pod that is stopped: it is told when sandbox and volumes are gone too.
        let stopping = !over && before.is_some() && self.slot.stop.borrow().is_some();
        if stopping && !self.snapshot.containers.iter().any(Container::may_run) {
            return computed;
        }
        let live = !over && self.snapshot.is_live();
        let told = status::told(&computed, before.as_deref(), live);
        if before.as_deref() != Some(&told) {
            // Most of the time all that is known is told: then it is kept once.
            let kept = if told == *computed { Arc::clone(&computed) } else { Arc::new(told.clone()) };
            shared.outbox.status(&self.slot.pod, told);
            self.slot.view.send_modify(|view| view.status = Some(kept));
        }
        computed
    }

    /// Whether the pod's handler can mount read-only with all below.
    pub(super) fn recursive_read_only(&self, runtime: &Runtime) -> bool {
        let handler = self.snapshot.sandboxes.first().map_or("", |sandbox| &sandbox.handler);
        runtime.handlers.iter().any(|known| known.name == handler && known.recursive_read_only)
    }

    pub(super) fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }
}

/// The probes of a pod, none of which runs yet.
pub(super) fn unprobed(shared: &Shared, slot: &Slot) -> Probes {
    Probes::new(Arc::clone(&shared.prober), slot.pod.clone(), shared.teller())
}

// === impl Stopped ===

impl Stopped {
    /// Forgets containers that are no more.
    pub(super) fn retain(&mut self, snapshot: &Snapshot) {
        let there = |id: &String| snapshot.container(id).is_some();
        self.told.retain(there);
        self.hooked.retain(there);
    }
}

async fn appeared(awaiting: Option<&(Arc<dyn Resolver>, Reference)>) {
    match awaiting {
        Some((resolver, reference)) => resolver.appeared(reference).await,
        None => std::future::pending().await,
    }
}

/// The pod with the status that was computed last, which those who decide go by.
pub(super) fn with_status(bundle: &PodBundle, status: &PodStatus) -> Pod {
    Pod { metadata: bundle.pod.metadata.clone(), spec: bundle.pod.spec.clone(), status: Some(status.clone()) }
}

/// Says that something could not be done, where nothing else comes of it.
pub(super) fn complain(pod: &vk_provider::PodRef, what: &str, error: &vk_provider::Error) {
    warn!(%pod, error = told(error), "{what}");
}
