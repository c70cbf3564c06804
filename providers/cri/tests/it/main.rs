//! Pods on a real container runtime.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod differential;
