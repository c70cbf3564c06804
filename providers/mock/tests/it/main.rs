//! The mock as the core sees it: through the contract, in this process and with its pods in another.

#![expect(clippy::unwrap_used, reason = "a failed assumption of a test is a failed test")]

mod ability;
mod conformance;
mod provider;
mod remote;
mod support;
