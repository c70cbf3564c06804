//! The client against a real API server.

// The lint spares test functions only, not what they call.
#![allow(clippy::unwrap_used)]

mod csr;
mod event;
mod impersonation;
