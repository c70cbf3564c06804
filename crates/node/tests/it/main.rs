//! The node and pod controllers against a real API server. These tests need the control plane.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod controller_manager;
mod drift;
mod foreign_fields;
mod go_migration;
mod harness;
mod idle_node;
mod kubelet;
mod lease_conflict;
mod node_deletion;
mod node_events;
mod node_permissions;
mod outage;
mod pods;
mod readiness;
mod registration;
mod resolve;
mod scripted_provider;
mod settings_changes;
mod shutdown;
mod silent_connection;
mod taint;
