//! The leadership sessions of a node. Without leader election a node has one session, which lasts as long as the process; with
//! it, a session begins whenever this replica acquires the node's lease and ends when it loses it.

use std::time::Duration;

use tokio::sync::watch;
use tracing::warn;
use vk_kube::lease::LeaseConflict;
use vk_node::{
    node::{Controller, Progress},
    pods,
};
use vk_supervisor::Supervisor;

/// How long the tasks of a session may take to end after its controllers have.
const SESSION_END: Duration = Duration::from_secs(10);

/// Runs the sessions of one node, one after the other.
pub(super) struct Leadership {
    pub(super) progress: watch::Sender<Progress>,
    /// Stops the node.
    pub(super) supervisor: Supervisor,
    /// How long calls on pods may take to end.
    pub(super) pods_limit: Duration,
    /// Whether other replicas may run the node.
    pub(super) elected: bool,
}

// === impl Leadership ===

impl Leadership {
    /// Runs the node until it is stopped. Each session gets new controllers, so nothing is carried over from a session that
    /// another replica interrupted: what that replica did is read from the API server.
    pub(super) async fn run(
        self,
        controllers: impl Fn(watch::Sender<Progress>, &Supervisor) -> (Controller, pods::Controller),
    ) -> Result<(), LeaseConflict> {
        self.run_sessions(|session| {
            let (node, pods) = controllers(self.progress.clone(), &session);
            self.run_controllers(node, pods, session)
        })
        .await
    }

    /// Runs sessions until the node is stopped. A session has ended when all its tasks have: only then the next one begins.
    async fn run_sessions<S>(&self, run: impl Fn(Supervisor) -> S) -> Result<(), LeaseConflict>
    where
        S: Future<Output = Result<(), LeaseConflict>>,
    {
        loop {
            self.progress.send_replace(Progress::default());
            let session = self.supervisor.child();
            let outcome = run(session.clone()).await;
            session.shut_down(SESSION_END).await;
            match outcome {
                Err(taken) if self.elected && !self.supervisor.is_stopping() => {
                    warn!(reason = %taken, "this replica no longer leads the node: standing by");
                }
                outcome => return outcome,
            }
        }
    }

    /// Runs the controllers of one session. The pod controller starts when the node is registered; on shutdown it ends first,
    /// because the node controller's last act is to release the lease.
    async fn run_controllers(
        &self,
        node: Controller,
        pods: pods::Controller,
        session: Supervisor,
    ) -> Result<(), LeaseConflict> {
        let mut progress = self.progress.subscribe();
        // Owns no tasks: it only signals the node controller to stop. A child of the session would stop too early, with it.
        let release_lease = Supervisor::new();
        let on_pods = async {
            let registered = async { drop(progress.wait_for(|progress| progress.registered).await) };
            tokio::select! {
                () = registered => {
                    let overdue = async {
                        session.stopping().await;
                        tokio::time::sleep(self.pods_limit).await;
                    };
                    tokio::select! {
                        () = pods.run(session.clone()) => {}
                        () = overdue => warn!("calls on pods did not end in time: dropping them"),
                    }
                }
                () = session.stopping() => {}
            }
            release_lease.stop();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = node.run(release_lease.clone()) => ended,
            () = on_pods => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use vk_kube::lease::LeaseLock;
    use vk_supervisor::task::Kind;

    use super::*;

    fn leadership(elected: bool) -> Leadership {
        Leadership {
            progress: watch::Sender::new(Progress::default()),
            supervisor: Supervisor::new(),
            pods_limit: Duration::from_secs(1),
            elected,
        }
    }

    fn taken() -> LeaseConflict {
        LeaseConflict::Lost { lock: LeaseLock::Node("n".to_owned()), holder: "another".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_begins_only_when_all_tasks_of_the_one_before_have_ended() {
        let leadership = leadership(true);
        let (log, stop) = (std::sync::Arc::new(Mutex::new(Vec::new())), leadership.supervisor.clone());
        let run = |session: Supervisor| {
            let (log, stop) = (std::sync::Arc::clone(&log), stop.clone());
            async move {
                log.lock().push("session");
                if log.lock().len() > 2 {
                    stop.stop();
                    return Ok(());
                }
                let (inner, guard) = (std::sync::Arc::clone(&log), session.clone());
                session.spawn("lingering", Kind::Work, async move {
                    guard.stopping().await;
                    tokio::time::sleep(Duration::from_secs(3)).await;
                    inner.lock().push("task ended");
                });
                Err(taken())
            }
        };
        leadership.run_sessions(run).await.unwrap();
        assert_eq!(*log.lock(), ["session", "task ended", "session"]);
    }

    #[tokio::test]
    async fn without_election_the_loss_of_the_lease_ends_the_node() {
        let outcome = leadership(false).run_sessions(|_| async { Err(taken()) }).await;
        assert!(matches!(outcome, Err(LeaseConflict::Lost { .. })), "{outcome:?}");
    }
}
