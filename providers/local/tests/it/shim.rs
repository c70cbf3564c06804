//! Containers by hand: a bundle, a supervisor beside it, and what it does. The tests of level `oci` need root.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod bundle;
mod command;
mod container;
mod loss;
mod process;
