//! The pod controller against a real API server, with pods that are bound to a node by hand.

mod admission;
mod audit;
mod broken_watch;
mod create;
mod deletion;
mod events;
mod fence;
mod fixture;
mod foreign;
mod invalid_provider;
mod lifecycle;
mod original;
mod outage;
mod recording_provider;
mod references;
mod resize;
mod restart;
mod same_name;
mod scripted_provider;
mod streaming_list;
mod update;
mod watch_audit;
