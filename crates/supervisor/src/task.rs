//! Tasks with an owner. When [`Supervisor::shut_down`] returns, every task of the supervisor and of its children has
//! ended, or was aborted because it took too long.

use std::{any::Any, fmt, future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinHandle};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use tracing::{Instrument as _, error, info_span, warn};

/// How long aborted tasks may take to end.
const ABORT_LIMIT: Duration = Duration::from_secs(10);

/// What the end of a task means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The process cannot go on without the task. If it ends before the supervisor is stopped, the whole tree of
    /// supervisors reports a [`Failure`], and the process stops.
    Critical,
    /// The task ends when its work is done. Errors and panics are logged.
    Work,
}

/// The unexpected end of a critical task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The task's name.
    pub task: String,
    /// Why it ended.
    pub reason: String,
}

/// Owns tasks. Clones share the tasks; [`Supervisor::child`] opens a scope that can be stopped on its own.
#[derive(Clone, Debug)]
pub struct Supervisor {
    stop: CancellationToken,
    abort: CancellationToken,
    tasks: TaskTracker,
    /// The trackers of all supervisors above: they count our tasks too, so that a parent waits for its children.
    ancestors: Arc<[TaskTracker]>,
    failure: Arc<watch::Sender<Option<Failure>>>,
    /// Whose tasks end before ours begin.
    predecessor: Option<Arc<Predecessor>>,
}

#[derive(Debug)]
struct Predecessor {
    supervisor: Supervisor,
    limit: Duration,
}

/// Counts a future as a task of a supervisor and of its ancestors until it is dropped.
struct Tracked {
    _tokens: Vec<TaskTrackerToken>,
}

// === impl Supervisor ===

impl Default for Supervisor {
    fn default() -> Self {
        Self::new()
    }
}

impl Supervisor {
    /// Creates a root supervisor without tasks.
    pub fn new() -> Self {
        Self {
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
            tasks: TaskTracker::new(),
            ancestors: Arc::default(),
            failure: Arc::new(watch::Sender::new(None)),
            predecessor: None,
        }
    }

    /// Creates a child. Stopping the parent stops the child, and shutting down the parent waits for the child's tasks;
    /// stopping the child does not affect the parent. Failures are reported by all supervisors of the tree.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            stop: self.stop.child_token(),
            abort: self.abort.child_token(),
            tasks: TaskTracker::new(),
            ancestors: self.ancestors.iter().chain([&self.tasks]).cloned().collect(),
            failure: Arc::clone(&self.failure),
            predecessor: self.predecessor.clone(),
        }
    }

    /// Creates a child that takes over from `earlier`: stops `earlier`, and starts no task before all tasks of `earlier`
    /// have ended. Those that take longer than `limit` are aborted.
    #[must_use]
    pub fn child_after(&self, earlier: &Self, limit: Duration) -> Self {
        earlier.stop();
        // Without its own predecessor: a chain of all earlier ones would grow for ever.
        let supervisor = Self { predecessor: None, ..earlier.clone() };
        Self { predecessor: Some(Arc::new(Predecessor { supervisor, limit })), ..self.child() }
    }

    /// Starts a task. It must end soon after [`Supervisor::stopping`] resolves.
    pub fn spawn<F, T>(&self, name: impl Into<String>, kind: Kind, task: F)
    where
        F: Future<Output = T> + Send + 'static,
        T: Outcome,
    {
        let name = name.into();
        // Boxed: otherwise each wrapping future would hold it twice.
        let task = Box::pin(task);
        // No parent span: the task outlives the caller.
        let span = info_span!(parent: None, "task", task = %name);
        let this = self.clone();
        self.spawn_tracked(
            async move {
                if !this.predecessor_ended().await {
                    return;
                }
                let caught = catch_panic(task).await;
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
                        let reason =
                            reason.unwrap_or_else(|| "it ended although nothing asked it to stop".to_owned());
                        error!(%reason, "critical task ended: stopping the process");
                        this.fail(Failure { task: name, reason });
                    }
                }
            }
            .instrument(span),
        );
    }

    /// Waits until the predecessor's tasks have ended. Returns false if this supervisor was stopped first.
    async fn predecessor_ended(&self) -> bool {
        let Some(Predecessor { supervisor, limit }) = self.predecessor.as_deref() else { return true };
        supervisor.shut_down(*limit).await;
        !self.is_stopping()
    }

    #[expect(clippy::disallowed_methods, reason = "the one place where tasks are spawned")]
    fn spawn_tracked(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let abort = self.abort.clone();
        tokio::spawn(self.track(async move {
            tokio::select! {
                () = task => {}
                () = abort.cancelled() => {}
            }
        }))
    }

    /// Makes a future count as a task of this supervisor until it is dropped: for tasks that are started and aborted by
    /// other means, such as a `JoinSet`, whose aborted tasks end a little later.
    pub fn track<F: Future>(&self, task: F) -> impl Future<Output = F::Output> + use<F> {
        let trackers = self.ancestors.iter().chain([&self.tasks]);
        let tracked = Tracked { _tokens: trackers.map(TaskTracker::token).collect() };
        async move {
            // Moved into the future, and dropped after the task.
            let _tracked = tracked;
            task.await
        }
    }

    fn fail(&self, failure: Failure) {
        self.failure.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(failure);
            is_first
        });
    }

    /// Asks all tasks to end, and returns immediately.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Whether [`Supervisor::stop`] was called, here or on a parent.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Whether no task is left, neither here nor in a child.
    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Resolves when the supervisor is stopped.
    pub async fn stopping(&self) {
        self.stop.cancelled().await;
    }

    /// Resolves when a critical task of any supervisor of the tree ended unexpectedly.
    pub async fn failed(&self) -> Failure {
        let mut failures = self.failure.subscribe();
        // The sender is in `self`, so the channel stays open.
        match failures.wait_for(Option::is_some).await.map(|failure| failure.clone()) {
            Ok(Some(failure)) => failure,
            _ => std::future::pending().await,
        }
    }

    /// Stops the supervisor and waits for its tasks and those of its children. After `limit` the remaining tasks are
    /// aborted. Returns whether all ended without that.
    pub async fn shut_down(&self, limit: Duration) -> bool {
        self.stop();
        self.tasks.close();
        if tokio::time::timeout(limit, self.tasks.wait()).await.is_ok() {
            return true;
        }
        warn!(tasks = self.tasks.len(), ?limit, "tasks did not end in time: aborting them");
        self.abort.cancel();
        if tokio::time::timeout(ABORT_LIMIT, self.tasks.wait()).await.is_err() {
            // Blocked in synchronous code: there is no way to end them.
            error!(tasks = self.tasks.len(), "aborted tasks do not end: going on without them");
        }
        false
    }
}

/// A value that a task may return.
pub trait Outcome: Send {
    /// The reason of the failure, if the task failed.
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

async fn catch_panic<F: Future>(task: F) -> Result<F::Output, String> {
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
    async fn shut_down_waits_for_tasks_that_end() {
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
    async fn a_task_that_does_not_end_is_aborted_after_the_limit() {
        let supervisor = Supervisor::new();
        supervisor.spawn("stuck", Kind::Work, std::future::pending::<()>());
        assert!(!supervisor.shut_down(Duration::from_secs(5)).await);
    }

    #[tokio::test]
    async fn the_unexpected_end_of_a_critical_task_is_reported_with_its_reason() {
        let supervisor = Supervisor::new();
        supervisor.child().spawn("watch", Kind::Critical, async { Err::<(), _>("no such resource") });
        assert_eq!(
            supervisor.failed().await,
            Failure { task: "watch".into(), reason: "no such resource".into() }
        );
    }

    #[tokio::test]
    async fn a_panic_in_a_critical_task_is_reported() {
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

    /// A task that ends this long after its supervisor is stopped, and then sets the flag.
    fn linger(supervisor: &Supervisor, time: Duration) -> watch::Receiver<bool> {
        let (ended, receiver) = watch::channel(false);
        let stopping = supervisor.clone();
        supervisor.spawn("lingering", Kind::Work, async move {
            stopping.stopping().await;
            tokio::time::sleep(time).await;
            ended.send_replace(true);
        });
        receiver
    }

    #[tokio::test(start_paused = true)]
    async fn a_parent_waits_for_the_tasks_of_its_children_and_grandchildren() {
        let supervisor = Supervisor::new();
        let child = linger(&supervisor.child(), Duration::from_secs(2));
        let grandchild = linger(&supervisor.child().child(), Duration::from_secs(4));
        assert!(supervisor.shut_down(Duration::from_secs(5)).await);
        assert!(*child.borrow() && *grandchild.borrow());
    }

    #[tokio::test(start_paused = true)]
    async fn a_parent_aborts_the_tasks_of_its_children_after_the_limit() {
        let supervisor = Supervisor::new();
        supervisor.child().spawn("stuck", Kind::Work, std::future::pending::<()>());
        assert!(!supervisor.shut_down(Duration::from_secs(5)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_child_does_not_wait_for_the_tasks_of_its_parent() {
        let supervisor = Supervisor::new();
        supervisor.spawn("stuck", Kind::Work, std::future::pending::<()>());
        assert!(supervisor.child().shut_down(Duration::from_secs(1)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_aborted_task_of_a_join_set_is_waited_for_when_it_is_tracked() {
        let supervisor = Supervisor::new();
        let mut tasks = tokio::task::JoinSet::new();
        let (sender, ended) = watch::channel(());
        tasks.spawn(supervisor.track(async move {
            sender.closed().await;
            std::future::pending::<()>().await;
        }));
        drop(tasks);
        assert!(supervisor.shut_down(Duration::from_secs(1)).await);
        assert!(ended.has_changed().is_err(), "the task was dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn a_successor_starts_no_task_before_those_of_its_predecessor_have_ended() {
        let supervisor = Supervisor::new();
        let first = supervisor.child();
        let ended = linger(&first, Duration::from_secs(3));
        let second = supervisor.child_after(&first, Duration::from_secs(5));
        let (sender, mut begun) = watch::channel(None);
        second.spawn("next", Kind::Work, async move {
            sender.send_replace(Some(*ended.borrow()));
        });
        begun.wait_for(Option::is_some).await.unwrap();
        assert_eq!(*begun.borrow(), Some(true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_child_of_a_successor_waits_for_the_children_of_the_predecessor() {
        let supervisor = Supervisor::new();
        let first = supervisor.child();
        let ended = linger(&first.child().child(), Duration::from_secs(3));
        let second = supervisor.child_after(&first, Duration::from_secs(5));
        let (sender, mut begun) = watch::channel(None);
        second.child().spawn("next", Kind::Work, async move {
            sender.send_replace(Some(*ended.borrow()));
        });
        begun.wait_for(Option::is_some).await.unwrap();
        assert_eq!(*begun.borrow(), Some(true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_cannot_be_aborted_does_not_hold_up_the_shutdown_for_ever() {
        let supervisor = Supervisor::new();
        // Like a task that is blocked in synchronous code.
        let _blocked = supervisor.track(std::future::pending::<()>());
        let begin = tokio::time::Instant::now();
        assert!(!supervisor.shut_down(Duration::from_secs(5)).await);
        assert_eq!(begin.elapsed().as_secs(), 5 + ABORT_LIMIT.as_secs());
        assert!(!supervisor.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn a_predecessor_that_does_not_end_is_aborted() {
        let supervisor = Supervisor::new();
        let first = supervisor.child();
        first.spawn("stuck", Kind::Work, std::future::pending::<()>());
        let second = supervisor.child_after(&first, Duration::from_secs(5));
        let (sender, mut begun) = watch::channel(false);
        second.spawn("next", Kind::Work, async move {
            sender.send_replace(true);
        });
        begun.wait_for(|begun| *begun).await.unwrap();
        assert!(supervisor.shut_down(Duration::from_secs(1)).await);
    }
}
