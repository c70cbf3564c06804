//! Workloads on virtual nodes with the real controller-manager and scheduler. At the end of each test API server and backend
//! agree exactly, and no pod was created twice.

mod backend_log;
mod daemon;
mod deployment;
mod disruption;
mod job;
mod namespace;
mod outage;
mod stateful;
mod workload_test;
