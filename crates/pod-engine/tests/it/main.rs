//! The engine on a fake runtime, and against what a real kubelet did.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod abilities;
mod adopting;
mod away;
mod blind;
mod conformance;
mod ending;
mod faults;
mod garbage;
mod idling;
mod kubelet;
mod living;
mod many;
mod stopping;
mod support;
