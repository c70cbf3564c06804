//! The calls that a [`Renewer`](super::Renewer) asks for, and the client that makes them.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use serde_json::Value;
use tokio::time::Instant;

use super::{LeaseLock, LeaseTimes};
use crate::{Client, Error, Kind, Objects, Patch};

/// A call on the lease.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseCall {
    /// Read it.
    Read,
    /// Create it.
    Create(Value),
    /// Renew it (merge patch with a resourceVersion precondition).
    Renew(Value),
    /// Release it (likewise).
    Release(Value),
    /// Delete it together with the Node.
    Delete {
        /// The lease's UID.
        uid: String,
    },
}

/// Makes the calls on one lease. Clones share connections.
#[derive(Clone, Debug)]
pub struct LeaseClient {
    leases: Objects<Lease>,
    name: String,
    timeout: Duration,
}

// === impl LeaseClient ===

impl LeaseClient {
    /// A client of this lease. Its calls pass no fence: they carry preconditions, and the fence opens because of them.
    pub fn new(client: &Client, lock: &LeaseLock, times: &LeaseTimes) -> Self {
        Self {
            leases: Objects::namespaced(client.unfenced(), lock.namespace()),
            name: lock.name().to_owned(),
            // A hanging server must leave time for another attempt.
            timeout: (times.renew_deadline / 3).max(Duration::from_secs(1)),
        }
    }

    /// Makes a call. `None` if the response has no lease.
    pub async fn send(&self, call: &LeaseCall) -> Result<Option<Lease>, Error> {
        let sent = Instant::now();
        let answer = tokio::time::timeout(self.timeout, self.request(call)).await;
        let answer = answer.unwrap_or_else(|_| Err(Error::timeout(self.timeout)));
        // The next attempt must not wait on a dead connection, too: the lease would expire meanwhile.
        if answer.as_ref().is_err_and(|error| error.kind == Kind::Timeout) {
            self.leases.client().drop_silent_connections(sent);
        }
        answer
    }

    async fn request(&self, call: &LeaseCall) -> Result<Option<Lease>, Error> {
        let (leases, name) = (&self.leases, &self.name);
        let lease = match call {
            LeaseCall::Read => leases.get(name).await?,
            LeaseCall::Create(body) => leases.create_value(body).await?,
            LeaseCall::Renew(body) | LeaseCall::Release(body) => {
                leases.patch(name, Patch::Merge(body)).await?
            }
            LeaseCall::Delete { uid } => return leases.delete(name, uid).await.map(|()| None),
        };
        Ok(Some(lease))
    }
}
