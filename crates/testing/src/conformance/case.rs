//! The cases, by what they are about. Each is one rule; `list` says which sentence of the contract it holds providers to.

pub(super) mod abandon;
pub(super) mod ability;
pub(super) mod addresses;
pub(super) mod attach;
pub(super) mod changes;
pub(super) mod create;
pub(super) mod delete;
pub(super) mod exec;
pub(super) mod files;
pub(super) mod fit;
pub(super) mod identity;
pub(super) mod logs;
pub(super) mod node;
pub(super) mod port_forward;
pub(super) mod restart;
pub(super) mod secrets;
pub(super) mod stats;
pub(super) mod status;
pub(super) mod termination;
pub(super) mod update;
