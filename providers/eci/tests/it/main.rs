//! Integration tests of the provider `eci`, over HTTP.

#![expect(clippy::unwrap_used, reason = "a failed assumption of a test is a failed test")]

mod bad_clouds;
mod calls;
mod doctor;
mod emulated_account;
mod scripted_server;
mod support;
