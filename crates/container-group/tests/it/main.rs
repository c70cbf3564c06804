//! Integration tests of container groups.

#![expect(clippy::unwrap_used, reason = "a failed assumption of a test is a failed test")]

mod conformance;
mod engine;
mod example_backend;
mod files;
mod inventory;
mod logs;
mod observation;
mod quota;
mod recorder;
mod secrets;
mod support;
mod vendor_signatures;
