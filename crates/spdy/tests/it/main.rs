//! Connections and frames from outside.

mod refusals;
mod support;
mod talk;
