//! Tests of connections and frames through the public API.

mod chaos;
mod corpus;
mod frames;
mod go_peer;
mod interleave;
mod lifecycle;
mod protocol_errors;
mod recordings;
mod streams;
mod support;
