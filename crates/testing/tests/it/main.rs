//! The control plane as its users see it, most of which needs the real programs, and the conformance suite.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod conformance;
mod ending;
mod identity;
mod peer;
mod restart;
mod start;
