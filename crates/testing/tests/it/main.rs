//! The control plane as its users see it. Most of these need the real programs.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod ending;
mod identity;
mod restart;
mod start;
