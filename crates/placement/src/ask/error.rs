//! Why a node gave no answer.

use std::{net::SocketAddr, time::Duration};

use http::StatusCode;
use vk_provider::placement::{MAX_QUERY_BYTES, SERVING_KEY_ANNOTATION};

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
    /// The query is too long.
    #[error("the query has {bytes} bytes, more than {limit}: ask about fewer pods at a time", limit = MAX_QUERY_BYTES)]
    TooLong {
        /// Its length.
        bytes: usize,
    },
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
