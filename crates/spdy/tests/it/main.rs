//! Connections and frames from outside.

mod go_peer;
mod recorded;
mod refusals;
mod support;
mod talk;
