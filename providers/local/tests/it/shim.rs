//! The shim alone: a bundle and its supervisor. The tests of level `oci` need root.
#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod bundle;
mod command;
mod container;
mod crash;
mod full_disk;
mod process;
