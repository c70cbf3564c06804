//! Leader election between the replicas of a component that is not a node, like client-go's `leaderelection`: a thin driver around
//! a [`Renewer`] in standby mode.

use std::time::Duration;

use futures::{StreamExt as _, stream::FuturesUnordered};
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::{sync::watch, time::Instant};
use tracing::{info, warn};
use vk_supervisor::{Clock, Now, Supervisor};

use super::{LeaseClient, LeaseConflict, LeaseLock, LeaseTimes, Renewer};
use crate::{Client, Fence, Instance, fence};

/// How long to try to release the lease when the process stops. After that a standby waits until the lease expires.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// A candidate in a leader election.
///
/// It needs the permissions to `get` and `patch` the lease with this name, and to `create` leases in its namespace.
#[derive(Clone)]
pub struct Election {
    /// The API client. Calls on the lease pass no fence.
    pub client: Client,
    /// Namespace of the lease.
    pub namespace: String,
    /// Name of the lease.
    pub name: String,
    /// This process: the lease's `holderIdentity`. [`Instance::current`], except in tests with several candidates.
    pub instance: Instance,
    /// Usually [`LeaseTimes::LEADER_ELECTION`]. A candidate always stands by, also if `standby` is `None`.
    pub times: LeaseTimes,
    /// The wall clock.
    pub clock: Clock,
}

/// What the component learns: the fence and the flag. Withdrawn when dropped.
struct LeaderState {
    lock: LeaseLock,
    fence: Fence,
    leading: watch::Sender<bool>,
}

// === impl Election ===

impl Election {
    /// Stands by, leads whenever it gets the lease, and stands by again when it lost the lease. Returns only when the supervisor
    /// stops.
    ///
    /// `fence` is open while this process leads. It closes by itself at the write deadline, also while the process is paused, so
    /// everything that only the leader may write goes through a client with this fence. `leading` follows the fence: it says when
    /// to start and to stop. `changed` of its receiver also reports a loss that is already over; another process may have led
    /// meanwhile.
    ///
    /// When the supervisor stops, the fence closes at once and the lease is released, so that a standby takes over at once. A
    /// component that writes during its shutdown stops this supervisor last.
    pub async fn run(self, fence: Fence, leading: watch::Sender<bool>, supervisor: Supervisor) {
        let lock = LeaseLock::Component { namespace: self.namespace.clone(), name: self.name.clone() };
        let standby = self.times.standby.or(LeaseTimes::LEADER_ELECTION.standby);
        let times = LeaseTimes { standby, ..self.times };
        let lease = LeaseClient::new(&self.client, &lock, &times);
        let state = LeaderState { lock, fence, leading };
        loop {
            // A new session knows nothing of the one before: another process may have led meanwhile.
            let renewer = Renewer::new(state.lock.clone(), self.instance.clone(), times);
            match self.run_session(renewer, &lease, &state, &supervisor).await {
                Ok(()) => return,
                Err(conflict) => warn!(reason = %conflict, "this process no longer leads; standing by"),
            }
        }
    }

    /// Runs until the supervisor stops, or until this process lost the lease that it held.
    async fn run_session(
        &self,
        mut renewer: Renewer,
        lease: &LeaseClient,
        state: &LeaderState,
        supervisor: &Supervisor,
    ) -> Result<(), LeaseConflict> {
        let start = Instant::now();
        let now = || Now { elapsed: start.elapsed(), wall: self.clock.now() };
        let mut rng = StdRng::from_rng(&mut rand::rng());
        // At most one call.
        let mut pending = FuturesUnordered::new();
        let mut release_until = None;
        loop {
            if supervisor.is_stopping() && release_until.is_none() {
                release_until = Some(start.elapsed() + RELEASE_TIMEOUT);
            }
            let call = if let Some(until) = release_until {
                if start.elapsed() >= until {
                    warn!("could not release {} in time; others wait until it expires", state.lock);
                    return Ok(());
                }
                renewer.release(start.elapsed(), false)
            } else {
                renewer.check_expiry(now())?;
                renewer.start(start.elapsed(), self.clock.now())
            };
            // Closed before the release is sent: a standby acquires a released lease at once.
            let deadline = renewer.write_deadline().filter(|_| release_until.is_none());
            state.set(deadline.map(|deadline| deadline.for_fence(start)));
            if renewer.is_released() {
                return Ok(());
            }
            pending.extend(call.map(|call| async move {
                let answer = lease.send(&call).await;
                (call, answer)
            }));
            let due = match release_until {
                Some(until) => renewer.release_deadline().into_iter().chain([until]).min(),
                None => renewer.next_deadline().into_iter().chain(renewer.expires_at()).min(),
            };
            tokio::select! {
                Some((call, answer)) = pending.next(), if !pending.is_empty() => {
                    let Now { elapsed, wall } = now();
                    renewer.on_answer(elapsed, wall, &call, answer, &mut rng)?;
                }
                () = tokio::time::sleep_until(start + due.unwrap_or_default()), if due.is_some() => {}
                () = supervisor.stopping(), if release_until.is_none() => {}
            }
        }
    }
}

// === impl LeaderState ===

impl LeaderState {
    /// Sets the deadline of the fence; `None` if this process does not lead. The fence goes first: who is told to lead can write.
    fn set(&self, deadline: Option<fence::Deadline>) {
        self.fence.set(deadline);
        let leads = deadline.is_some();
        let changed = self.leading.send_if_modified(|led| std::mem::replace(led, leads) != leads);
        if changed && leads {
            info!("acquired {}; this process leads", self.lock);
        }
    }
}

impl Drop for LeaderState {
    fn drop(&mut self) {
        self.set(None);
    }
}

#[cfg(test)]
mod tests;
