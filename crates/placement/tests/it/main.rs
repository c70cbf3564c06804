//! Conversion of generated pods: its properties, what the provider `cluster` makes of it, and the API server's conversion.

#![expect(clippy::unwrap_used, reason = "a failed assumption of a test is a failed test")]

mod differential;
mod foreign_webhook;
mod generator;
#[cfg(feature = "e2e")]
mod older_version;
mod properties;
mod restoration;
mod server;
