//! Conversion of generated pods: its properties, what the provider `cluster` makes of it, and the API server's conversion.

#![expect(clippy::unwrap_used, reason = "a failed assumption of a test is a failed test")]

mod avoid_table;
mod certificate;
mod differential;
mod doctor;
mod extender;
mod foreign_webhook;
mod generator;
mod guard;
mod kubectl;
#[cfg(feature = "e2e")]
mod older_version;
mod pod_changes;
mod properties;
mod restoration;
mod server;
