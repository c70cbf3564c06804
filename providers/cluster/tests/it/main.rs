//! Integration tests of the provider with real API servers and with a fake one.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod abandonment;
mod admission;
mod api_server;
mod claims;
mod copies;
mod detach;
mod events;
mod exec;
mod fake_api_server;
mod fence;
mod fit;
mod forward;
mod logs;
mod lost_labels;
mod namespace_removal;
mod permissions;
mod pod_security;
mod scripted_cluster;
mod silent_watch;
mod stats;
mod storage;
mod stream_errors;
mod use_checks;
