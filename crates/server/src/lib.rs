//! The kubelet's HTTP API for one virtual node: what the API server, metrics-server and `kubectl` behind them call.
//!
//! TLS always, and nobody is anonymous: callers are known by client certificate or token ([`auth::Gate`]), and the API server
//! is asked what they may do. Each node has an address and a port of its own, because a request does not name the node.

pub mod api;
pub mod auth;
pub mod connection;
pub mod metrics;
mod refusal;
mod routes;
pub mod tls;

pub use self::{
    api::{Api, Pods, Switches},
    connection::{Limits, serve},
    metrics::Metrics,
};
