//! Why a node gave no answer.

use std::{net::SocketAddr, time::Duration};

use http::StatusCode;
use vk_kube::Kind;
use vk_provider::placement::SERVING_KEY_ANNOTATION;

/// Why a node gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The Node object does not say where and how to ask.
    #[error("the Node object has {0}")]
    Incomplete(String),
    /// The node in this process cannot tell whether pods fit.
    #[error("the provider of the node does not tell whether pods fit")]
    NotOffered,
    /// The server has another key than the Node object names. Neither token nor query was sent to it.
    #[error(
        "the server at {address} has another key than the Node object names ({annotation}), so nothing was sent to it; \
         if this stays so, another process uses the address of the node",
        annotation = SERVING_KEY_ANNOTATION
    )]
    WrongKey {
        /// The server.
        address: SocketAddr,
    },
    /// No connection, or a broken one.
    #[error("cannot reach {address}: {reason}")]
    Unreachable {
        /// The server.
        address: SocketAddr,
        /// The cause.
        reason: String,
    },
    /// No answer within the time limit.
    #[error("no answer from {address} within {limit:?}")]
    Timeout {
        /// The server.
        address: SocketAddr,
        /// The time limit.
        limit: Duration,
    },
    /// We may not ask, or the node could not find out who we are.
    #[error(
        "the node refuses to answer ({code}): {message}; asking needs the permission to create nodes/placement"
    )]
    Forbidden {
        /// 401 or 403.
        code: StatusCode,
        /// The node's message.
        message: String,
    },
    /// Any other answer than verdicts.
    #[error("the node answers {code}: {message}")]
    Rejected {
        /// The status code.
        code: StatusCode,
        /// The node's message.
        message: String,
    },
    /// The answer or the query makes no sense.
    #[error("the answer cannot be used: {0}")]
    Invalid(String),
    /// There is no token of a ServiceAccount for nodes, and our own is not sent to them.
    #[error(
        "cannot request a token of ServiceAccount {account} for nodes (ours is not sent to them): {error}{advice}",
        advice = advice(account, *is_own, error)
    )]
    NoToken {
        /// The ServiceAccount, as `namespace/name`.
        account: String,
        /// Whether it is our own account. Otherwise it is that of placement, and our token is a person's.
        is_own: bool,
        /// The answer of the API server.
        error: vk_kube::Error,
    },
    /// The cluster's own machines are not asked but computed, from the pods on them, which cannot be listed.
    #[error("what pods use of them is not known: {0}{advice}", advice = listing_advice(.0))]
    UnknownUsage(#[source] vk_kube::Error),
    /// We have no token to show.
    #[error("our own credentials cannot be used: {0}")]
    Credentials(#[from] vk_kube::Error),
}

// === impl AskError ===

impl AskError {
    /// Whether a new connection may help.
    pub(super) fn is_broken_connection(&self) -> bool {
        matches!(self, Self::WrongKey { .. } | Self::Unreachable { .. } | Self::Timeout { .. })
    }
}

/// What to do if pods cannot be listed.
fn listing_advice(error: &vk_kube::Error) -> &'static str {
    if error.kind == Kind::Forbidden {
        "; this needs the permission to list pods in all namespaces"
    } else {
        ""
    }
}

/// What to do if the API server gives no token.
fn advice(account: &str, is_own: bool, error: &vk_kube::Error) -> String {
    match (is_own, error.kind) {
        (true, Kind::Forbidden) => format!(
            "; {account} needs the permission to create serviceaccounts/token for itself, as the Role of \
             `virtual-kubelet placement print rbac` gives it"
        ),
        (false, Kind::Forbidden) => format!(
            "; get the permission to create serviceaccounts/token for {account}, or use a client certificate or a ServiceAccount that may \
             create tokens of itself"
        ),
        (false, Kind::NotFound) => {
            "; apply the output of `virtual-kubelet placement print rbac`, or use a client certificate or a \
             ServiceAccount that may create tokens of itself"
                .to_owned()
        }
        _ => String::new(),
    }
}
