//! The provider against real API servers.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod admission;
mod reflect;
