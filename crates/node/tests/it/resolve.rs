//! The resolver against a real API server, with the permissions of a node.

mod container;
mod on_demand;
mod resolver_test;
mod token;
mod volume;
mod watch_limits;
