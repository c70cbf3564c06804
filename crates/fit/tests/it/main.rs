//! Fit compared with the real kube-scheduler.

#![expect(clippy::unwrap_used, reason = "a failed assumption of a test is a failed test")]

mod generator;
mod scheduler;
