//! The kubelet's HTTP API for one virtual node, as called by the API server, metrics-server and `kubectl` through the API server.
//!
//! It always uses TLS, and there are no anonymous callers: callers authenticate with a client certificate or a token
//! ([`auth::Authenticator`]), and the API server decides what they may do ([`auth::Authorizer`]). Each node has its own address and
//! port, because a request does not name the node.

pub mod api;
pub mod auth;
pub mod connection;
mod http_error;
mod log_limit;
pub mod metrics;
mod routes;
pub mod tls;

pub use self::{
    api::{Api, DebugHandlers, PodLister},
    connection::{ConnectionLimits, serve, serve_plain, serve_tls},
    metrics::Metrics,
};
