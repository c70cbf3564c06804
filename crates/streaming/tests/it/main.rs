//! Every protocol in both roles: our client against our server, over in-memory pipes.

#![allow(clippy::unwrap_used, reason = "test helpers may panic too")]

mod bad_peer;
mod exec;
mod fake_process;
mod forward;
mod go_peer;
mod limits;
mod negotiation;
mod proxy;
mod raw_client;
mod session_end;
mod test_server;
mod throughput;
