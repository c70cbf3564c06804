//! The kubelet API over real connections, with a provider and an API server that are made up.

// The lint spares test functions only, not what they call.
#![allow(clippy::unwrap_used)]

mod connection;
mod harness;
mod routes;
mod session;
mod tls;
