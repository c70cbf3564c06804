//! The task of a pod. All work on a pod is done here, one step after the other.

use std::{any::Any, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt as _;
use rand::RngExt as _;
use tokio::time::Instant;
use tracing::{debug, error};
use vk_provider::Result;

use super::{
    checkpoint::PodCheckpoint,
    context::PodScope,
    image_pulls::ImagePulls,
    mounts::PodMounts,
    observer::{Depth, EXIT_REASON_POLL, PodObserver},
    pod_handle::StopRequest,
    reporter::StatusReporter,
    starter::ContainerStarter,
    stopper::ContainerStopper,
};
use crate::{backend::full_message, probe::PodProbes};

/// The delay before the next pass after a failure, as in a kubelet's pod worker.
pub(super) const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(10);

/// Maximum number of passes without a pause: more than a pod with many init containers needs.
const MAX_IMMEDIATE_PASSES: u32 = 100;
/// The pause after that many passes.
const PASS_PAUSE: Duration = Duration::from_secs(1);

/// The task of a pod. Each part owns its state; this type decides which part acts next.
pub(super) struct PodActor {
    pub(super) scope: PodScope,
    pub(super) lifecycle: Lifecycle,
    pub(super) observer: PodObserver,
    pub(super) reporter: StatusReporter,
    pub(super) checkpoint: PodCheckpoint,
    pub(super) probes: PodProbes,
    pub(super) mounts: PodMounts,
    pub(super) pulls: ImagePulls,
    pub(super) starter: ContainerStarter,
    pub(super) stopper: ContainerStopper,
}

/// The lifecycle of a pod in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifecycle {
    /// It was not synced yet.
    New,
    /// It was adopted and admitted.
    Active,
    /// Everything was stopped and nothing is restarted.
    Terminated,
    /// It is deleted, and everything that is left of it is removed at this time.
    Removing(Instant),
}

/// What follows a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another pass after this delay, or earlier if something changes.
    After(Duration),
    /// The task ends.
    Done,
}

/// Limits the number of passes without a pause, so that a pod that always finds work does not starve others.
#[derive(Default)]
struct PassLimiter {
    immediate: u32,
}

/// Works on a pod until nothing is left to do or the engine stops. It can be cancelled at any await: the runtime and the disk have all the
/// state that matters.
///
/// A panic is an error of this pod: it shows in the pod's view, and the task starts again with fresh state.
pub(super) async fn run(scope: PodScope) {
    let supervisor = scope.context.supervisor.clone();
    let work = async {
        loop {
            // Boxed: the future would contain them several times, and there is one for each pod.
            let actor = Box::new(PodActor::new(scope.clone()));
            let Err(panic) = AssertUnwindSafe(Box::pin(actor.run())).catch_unwind().await else { return };
            let why = panic_message(&*panic);
            error!(pod = %scope.pod(), panic = why, "the task of a pod panicked; it is restarted");
            let message = format!("the task of the pod panicked: {why}");
            scope.handle.view.send_modify(|view| view.error = Some(message));
            scope.handle.mark_stale();
            tokio::time::sleep(RETRY_AFTER_FAILURE).await;
        }
    };
    tokio::select! {
        biased;
        () = supervisor.stopping() => {}
        () = work => {}
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown panic")
}

// === impl PodActor ===

impl PodActor {
    fn new(scope: PodScope) -> Self {
        Self {
            lifecycle: Lifecycle::New,
            observer: PodObserver::new(scope.clone()),
            reporter: StatusReporter::new(scope.clone()),
            checkpoint: PodCheckpoint::new(scope.clone()),
            probes: new_probes(&scope),
            mounts: PodMounts::new(&scope),
            pulls: ImagePulls::new(scope.clone()),
            starter: ContainerStarter::new(scope.clone()),
            stopper: ContainerStopper::new(scope.clone()),
            scope,
        }
    }

    async fn run(mut self: Box<Self>) {
        let handle = Arc::clone(&self.scope.handle);
        let mut stops = handle.stop.subscribe();
        let mut volumes = self.mounts.changes();
        let mut probe_results = self.probes.changes();
        let mut limiter = PassLimiter::default();
        let mut delay = Duration::ZERO;
        loop {
            tokio::select! {
                biased;
                Ok(()) = stops.changed() => {}
                () = handle.woken() => {}
                Ok(()) = probe_results.changed() => {}
                () = self.mounts.changed(&mut volumes) => {}
                () = self.pulls.finished() => {}
                () = self.starter.reference_appeared() => self.starter.clear_missing_reference(),
                () = tokio::time::sleep(delay) => {}
            }
            let stop = stops.borrow_and_update().clone();
            let next = tokio::select! {
                biased;
                // A new or earlier stop cancels the current pass.
                Ok(()) = stops.changed() => {
                    stops.mark_changed();
                    handle.invalidate();
                    Ok(Next::After(Duration::ZERO))
                }
                // Boxed: most pods are idle most of the time and need no memory for a pass.
                next = Box::pin(self.pass(stop.as_ref())) => next,
            };
            delay = match next {
                Ok(Next::After(delay)) => delay,
                Ok(Next::Done) => return,
                Err(error) => {
                    debug!(pod = %handle.pod, error = full_message(&error), "a pass failed and is retried");
                    self.observer.retry_delay().unwrap_or_else(|| jittered(RETRY_AFTER_FAILURE))
                }
            };
            if delay > EXIT_REASON_POLL && self.observer.has_changing_exit() {
                delay = EXIT_REASON_POLL;
                handle.mark_stale();
            }
            delay = limiter.limit(delay);
        }
    }

    /// One pass: refreshes the snapshot if needed, and syncs or terminates the pod.
    async fn pass(&mut self, stop: Option<&StopRequest>) -> Result<Next> {
        let bundle = self.scope.handle.bundle.lock().clone();
        if self.scope.handle.take_stale() {
            // Only starting containers needs all details.
            let depth = if stop.is_none() && bundle.is_some() { Depth::Full } else { Depth::Listed };
            self.refresh(depth).await?;
        }
        match (stop, bundle) {
            (Some(stop), bundle) => {
                self.pulls.clear();
                self.terminate(stop, bundle.as_ref()).await
            }
            (None, Some(bundle)) => {
                let next = self.sync(&bundle).await;
                self.checkpoint.save(&bundle.pod).await;
                next
            }
            (None, None) => Ok(self.show_orphan().await),
        }
    }

    /// Refreshes the snapshot.
    pub(super) async fn refresh(&mut self, depth: Depth) -> Result<()> {
        self.observer.refresh(depth, &mut self.checkpoint).await?;
        self.stopper.retain(self.observer.snapshot());
        Ok(())
    }

    /// Reports the status of a pod that was not created in this process.
    async fn show_orphan(&mut self) -> Next {
        let snapshot = Arc::clone(self.observer.snapshot());
        if snapshot.is_empty() {
            if self.scope.context.unregister(&self.scope.handle, false) {
                return Next::Done;
            }
            return Next::After(Duration::ZERO);
        }
        let pod = self.checkpoint.load_or_derive(&snapshot).await;
        self.reporter.publish(&pod, &snapshot, &self.probes.results(), false);
        Next::After(if self.observer.is_partial() { RETRY_AFTER_FAILURE } else { self.resync_delay() })
    }

    /// The delay before a pass without a change.
    pub(super) fn resync_delay(&self) -> Duration {
        jittered(self.scope.context.settings.resync)
    }
}

/// The probes of a pod; none is running yet.
pub(super) fn new_probes(scope: &PodScope) -> PodProbes {
    let context = &scope.context;
    PodProbes::new(Arc::clone(&context.prober), scope.pod().clone(), context.event_recorder())
}

/// Up to half longer, so that pods do not act at the same time.
pub(super) fn jittered(delay: Duration) -> Duration {
    delay.mul_f64(rand::rng().random_range(1.0..1.5))
}

// === impl Lifecycle ===

impl Lifecycle {
    pub(super) fn is_terminated(self) -> bool {
        matches!(self, Self::Terminated | Self::Removing(_))
    }
}

// === impl PassLimiter ===

impl PassLimiter {
    fn limit(&mut self, delay: Duration) -> Duration {
        self.immediate = if delay.is_zero() { self.immediate + 1 } else { 0 };
        if self.immediate > MAX_IMMEDIATE_PASSES { PASS_PAUSE } else { delay }
    }
}
