//! Integration tests of the provider `cri`: against a fake runtime, and on a real containerd.

#![allow(clippy::unwrap_used)]

#[cfg(feature = "e2e")]
mod differential;
mod doctor;
mod events;
mod fake_runtime;
mod faults;
mod live;
mod requests;
