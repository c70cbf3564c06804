//! The engine on a fake runtime, and against what a real kubelet did.

mod adopting;
mod away;
mod conformance;
mod faults;
mod living;
mod many;
mod stopping;
mod support;
