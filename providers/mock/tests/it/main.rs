//! Integration tests of the mock.

#![expect(clippy::unwrap_used, reason = "a failed assumption of a test is a failed test")]

mod ability;
mod conformance;
mod fit;
mod provider;
mod remote;
mod support;
