//! What people run on a cluster, with the real controller-manager and scheduler, on virtual nodes: at the end of each test API
//! server and backend agree exactly, and no pod was made twice.

mod chronicle;
mod daemon;
mod deployment;
mod disruption;
mod job;
mod namespace;
mod outage;
mod site;
mod stateful;
