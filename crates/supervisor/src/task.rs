//! Tasks with an owner. Nothing runs that nobody waits for: when the supervisor stops, everything it started has ended,
//! or was aborted because its time was up.

use std::{any::Any, fmt, future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument as _, error, info_span, warn};

/// What the end of a task means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The process cannot go on without it: when it ends before a stop was asked for, the supervisor stops everything
    /// and reports a [`Failure`].
    Critical,
    /// Work that ends when it is done. A panic in it is logged.
    Work,
}

/// A critical task that ended too early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The task's name.
    pub task: String,
    /// Why it ended.
    pub reason: String,
}

/// Owns tasks. Clones share them; [`Supervisor::child`] makes a part that can be stopped alone.
#[derive(Clone, Debug)]
pub struct Supervisor {
    token: CancellationToken,
    tracker: TaskTracker,
    aborts: CancellationToken,
    failure: Arc<watch::Sender<Option<Failure>>>,
}

// === impl Supervisor ===

impl Default for Supervisor {
    fn default() -> Self {
        Self::new()
    }
}

impl Supervisor {
    /// A supervisor without tasks.
    pub fn new() -> Self {
        Self {
            token: CancellationToken::new(),
            tracker: TaskTracker::new(),
            aborts: CancellationToken::new(),
            failure: Arc::new(watch::Sender::new(None)),
        }
    }

    /// A part of this one: stopping the parent stops it, stopping it leaves the parent alone. Failures reach the parent.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            token: self.token.child_token(),
            tracker: TaskTracker::new(),
            aborts: self.aborts.child_token(),
            failure: Arc::clone(&self.failure),
        }
    }

    /// Starts a task. It should end soon after [`Supervisor::stopping`] resolves.
    pub fn spawn<F, T>(&self, name: impl Into<String>, kind: Kind, task: F)
    where
        F: Future<Output = T> + Send + 'static,
        T: Outcome,
    {
        let name = name.into();
        // Boxed: each future around it would hold it twice.
        let task = Box::pin(task);
        // No parent: a task outlives whatever happened to start it.
        let span = info_span!(parent: None, "task", task = %name);
        let this = self.clone();
        self.spawn_tracked(
            async move {
                let caught = futures_catch(task).await;
                let reason = match caught {
                    Ok(outcome) => outcome.failure(),
                    Err(panic) => Some(format!("panic: {panic}")),
                };
                match (kind, reason) {
                    (Kind::Work, None) => {}
                    (Kind::Work, Some(reason)) => error!(%reason, "task failed"),
                    (Kind::Critical, None) if this.is_stopping() => {}
                    (Kind::Critical, Some(reason)) if this.is_stopping() => {
                        warn!(%reason, "task failed while stopping");
                    }
                    (Kind::Critical, reason) => {
                        let reason = reason.unwrap_or_else(|| "it ended before it was asked to".to_owned());
                        error!(%reason, "critical task ended: stopping");
                        this.fail(Failure { task: name, reason });
                    }
                }
            }
            .instrument(span),
        );
    }

    #[expect(clippy::disallowed_methods, reason = "the one place where tasks are spawned")]
    fn spawn_tracked(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let aborts = self.aborts.clone();
        let task = async move {
            tokio::select! {
                () = task => {}
                () = aborts.cancelled() => {}
            }
        };
        tokio::spawn(self.tracker.track_future(task))
    }

    fn fail(&self, failure: Failure) {
        self.failure.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(failure);
            is_first
        });
    }

    /// Asks all tasks to end, and returns at once.
    pub fn stop(&self) {
        self.token.cancel();
    }

    /// Whether the end was asked for.
    pub fn is_stopping(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Resolves when the end is asked for.
    pub async fn stopping(&self) {
        self.token.cancelled().await;
    }

    /// Resolves when a critical task ended too early.
    pub async fn failed(&self) -> Failure {
        let mut failures = self.failure.subscribe();
        // The sender lives in `self`, so this waits and cannot fail.
        match failures.wait_for(Option::is_some).await.map(|failure| failure.clone()) {
            Ok(Some(failure)) => failure,
            _ => std::future::pending().await,
        }
    }

    /// Asks all tasks to end and waits for them, but not longer than `limit`: then the rest are aborted. Tells whether
    /// all ended by themselves.
    pub async fn shut_down(&self, limit: Duration) -> bool {
        self.stop();
        self.tracker.close();
        if tokio::time::timeout(limit, self.tracker.wait()).await.is_ok() {
            return true;
        }
        warn!(tasks = self.tracker.len(), ?limit, "tasks did not end in time: aborting them");
        self.aborts.cancel();
        self.tracker.wait().await;
        false
    }
}

/// What a task may return.
pub trait Outcome: Send {
    /// Why it failed, if it did.
    fn failure(self) -> Option<String>;
}

impl Outcome for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<E: fmt::Display + Send> Outcome for Result<(), E> {
    fn failure(self) -> Option<String> {
        self.err().map(|error| error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.task, self.reason)
    }
}

async fn futures_catch<F: Future>(task: F) -> Result<F::Output, String> {
    use futures::FutureExt as _;
    AssertUnwindSafe(task).catch_unwind().await.map_err(|panic| panic_text(panic.as_ref()))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shutting_down_waits_for_tasks_that_end() {
        let supervisor = Supervisor::new();
        let (sender, mut receiver) = watch::channel(0);
        let inner = supervisor.clone();
        supervisor.spawn("slow", Kind::Work, async move {
            inner.stopping().await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            sender.send_replace(1);
        });
        assert!(supervisor.shut_down(Duration::from_secs(5)).await);
        assert_eq!(*receiver.borrow_and_update(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_end_is_aborted_when_its_time_is_up() {
        let supervisor = Supervisor::new();
        supervisor.spawn("stuck", Kind::Work, std::future::pending::<()>());
        assert!(!supervisor.shut_down(Duration::from_secs(5)).await);
    }

    #[tokio::test]
    async fn the_early_end_of_a_critical_task_is_a_failure_with_its_reason() {
        let supervisor = Supervisor::new();
        supervisor.child().spawn("watch", Kind::Critical, async { Err::<(), _>("no such resource") });
        assert_eq!(
            supervisor.failed().await,
            Failure { task: "watch".into(), reason: "no such resource".into() }
        );
    }

    #[tokio::test]
    async fn a_panic_in_a_critical_task_is_a_failure_and_not_silence() {
        let supervisor = Supervisor::new();
        supervisor.spawn("lease", Kind::Critical, async {
            assert!(std::env::args().count() == usize::MAX, "out of luck");
        });
        assert_eq!(supervisor.failed().await.reason, "panic: out of luck");
    }

    #[tokio::test]
    async fn stopping_a_child_leaves_the_parent_running() {
        let supervisor = Supervisor::new();
        let child = supervisor.child();
        assert!(child.shut_down(Duration::from_secs(1)).await);
        assert!(child.is_stopping() && !supervisor.is_stopping());
        let grandchild = supervisor.child().child();
        supervisor.stop();
        assert!(grandchild.is_stopping());
    }
}
