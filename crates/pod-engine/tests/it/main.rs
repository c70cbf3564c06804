//! The engine on a fake runtime, and compared with a real kubelet.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod abilities;
mod adoption;
mod conformance;
mod faults;
mod garbage_collection;
mod idle_cost;
mod image_pull;
mod kubelet;
mod lifecycle;
mod many_pods;
mod partial_inspection;
mod runtime_outage;
mod stop;
mod support;
mod termination;
