//! Every protocol in both roles: our client against our server, over pipes in memory.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod bad;
mod bulk;
mod ends;
mod exec;
mod forward;
mod go_peer;
mod host;
mod limits;
mod negotiate;
mod process;
mod proxy;
mod raw;
