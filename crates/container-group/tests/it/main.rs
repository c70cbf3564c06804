//! Integration tests of container groups.

#![expect(clippy::unwrap_used, reason = "a failed assumption of a test is a failed test")]

mod conformance;
mod engine;
mod example_backend;
mod inventory;
mod recorder;
mod secrets;
mod vendor_signatures;
