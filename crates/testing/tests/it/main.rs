//! The control plane as its users see it, most of which needs the real programs, and the conformance suite.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod cleanup;
mod conformance;
mod host;
mod identity;
mod restart;
mod start;
