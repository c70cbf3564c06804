//! The long tests of `make e2e`: minutes of the real command against a real control plane. They print their measurements.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod kubectl;
mod metrics;
mod node;
mod pods;
mod resolve;
