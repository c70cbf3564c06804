//! A provider that runs pods in another Kubernetes cluster.
//!
//! The *upper* cluster is the one that the user talks to: it has the virtual node. The *lower* cluster runs the containers. What is decided
//! is decided by functions without a connection: [`translate`](mod@translate) makes the lower pod of an upper one, [`status`] makes the upper status of a lower pod, and
//! [`node`] makes one node of many. All that the provider has to know after a restart is on the lower objects ([`names`]).

pub mod abandon;
pub mod anchor;
pub mod config;
pub mod dependencies;
pub mod detach;
pub mod doctor;
pub mod events;
pub mod factory;
pub mod life;
pub mod lower;
pub mod names;
pub mod node;
pub mod provider;
pub mod reflect;
pub mod stats;
pub mod status;
pub mod storage;
pub mod stream;
pub mod translate;

pub use self::factory::ClusterFactory;
