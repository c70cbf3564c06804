//! The emulator over HTTP.

// The lint only exempts test functions, not their helpers.
#![allow(clippy::unwrap_used)]

mod caller;
mod faults;
mod lifecycle;
mod processes;
mod rules;
mod vendor;
mod vendor_signatures;
