//! The kubelet API over real connections, with a fake provider and a fake reviewer.

// The lint exempts test functions only, not the functions they call.
#![allow(clippy::unwrap_used)]

mod certificates;
mod connection;
mod harness;
mod placement;
mod plain;
mod routes;
mod session;
mod tls;
