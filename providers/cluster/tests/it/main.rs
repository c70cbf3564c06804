//! The provider against an API server that is none: what goes over the wire, and what is made of it.

#![expect(clippy::unwrap_used, reason = "a failed assumption of a test is a failed test")]

mod api;
mod exec;
mod forward;
mod logs;
mod refusal;
mod stats;
