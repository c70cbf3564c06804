//! A provider that runs pods in another Kubernetes cluster.
//!
//! The *upper* cluster is the one that users talk to: it has the virtual node. The *lower* cluster runs the containers. Decisions are
//! pure functions: [`translate`](mod@translate) builds the lower pod of an upper pod, [`status`] builds the upper status from a lower
//! pod, and [`node`] aggregates the lower nodes into one virtual node. All state that must survive a restart is stored in labels and
//! annotations of the lower objects ([`names`]).

pub mod config;
pub mod copies;
pub mod dependencies;
pub mod detach;
pub mod doctor;
pub mod events;
mod explanation;
pub mod factory;
mod list_tracker;
pub mod lower_cluster;
pub mod names;
mod namespace_removal;
pub mod node;
pub mod owner_config_map;
pub mod pod_plan;
pub mod provider;
mod retirement_marks;
pub mod stats;
pub mod status;
pub mod storage;
pub mod stream;
pub mod translate;

pub use self::factory::ClusterFactory;
