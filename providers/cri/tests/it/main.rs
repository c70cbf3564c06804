//! The provider `cri` from outside: on the wire against a runtime that does what it is told, and live on a real one.

#![allow(clippy::unwrap_used)]

#[cfg(feature = "e2e")]
mod differential;
mod doctor;
mod double;
mod events;
mod faults;
mod live;
mod wire;
