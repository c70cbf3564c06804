//! Connections and frames from outside.

mod chaos;
mod corpus;
mod frames;
mod go_peer;
mod interleave;
mod life;
mod recorded;
mod refusals;
mod support;
mod talk;
