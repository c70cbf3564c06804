//! Tests of the client against a real API server.

// The lint exempts test functions only, not the functions they call.
#![allow(clippy::unwrap_used)]

mod csr;
mod election;
mod event;
mod impersonation;
