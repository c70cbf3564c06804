//! The contract between Virtual Kubelet and a backend.
//!
//! A backend is anything that can run pods. To add one, implement [`Provider`] for it and a [`Factory`] that opens it from
//! the user's configuration. The core does the rest: it registers the node, watches pods, retries, writes status, and
//! serves logs and exec. This crate contains only traits, types and errors; no API client and no HTTP.
//!
//! Pods are identified by [`PodRef`], that is, by UID. Every call can be repeated. There is one error type, [`Error`]; its
//! [`Kind`](error::Kind) decides what happens next.
//!
//! # A complete provider
//!
//! ```
//! use std::{collections::HashMap, sync::{Arc, Mutex}, time::Duration};
//!
//! use async_trait::async_trait;
//! use k8s_openapi::api::core::v1::{Pod, PodStatus};
//! use vk_provider::{
//!     Abilities, Backend, Config, Context, Error, Factory, NodeTemplate, ObservedPod, PodBundle, PodRef, Provider,
//!     Quantity, Result, SingleNode,
//! };
//!
//! /// "Runs" pods by keeping them in memory.
//! struct Memory {
//!     node: String,
//!     pods: Mutex<HashMap<PodRef, Arc<Pod>>>,
//! }
//!
//! #[async_trait]
//! impl Provider for Memory {
//!     async fn create_pod(&self, bundle: PodBundle) -> Result<()> {
//!         let pod = bundle.reference().ok_or_else(|| Error::invalid("the pod has no uid"))?;
//!         self.pods.lock().unwrap().insert(pod, bundle.pod);
//!         Ok(())
//!     }
//!
//!     async fn update_pod(&self, bundle: PodBundle) -> Result<()> {
//!         self.create_pod(bundle).await
//!     }
//!
//!     async fn delete_pod(&self, pod: &PodRef, _last_known: Option<Arc<Pod>>, _grace: Duration) -> Result<()> {
//!         match self.pods.lock().unwrap().remove(pod) {
//!             Some(_) => Ok(()),
//!             None => Err(Error::not_found(format!("no pod {pod}"))),
//!         }
//!     }
//!
//!     async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
//!         if !self.pods.lock().unwrap().contains_key(pod) {
//!             return Err(Error::not_found(format!("no pod {pod}")));
//!         }
//!         Ok(PodStatus { phase: Some("Running".into()), ..PodStatus::default() })
//!     }
//!
//!     async fn pods(&self) -> Result<Vec<ObservedPod>> {
//!         let known: Vec<PodRef> = self.pods.lock().unwrap().keys().cloned().collect();
//!         let mut pods = Vec::new();
//!         for pod in known {
//!             let status = self.pod_status(&pod).await?;
//!             pods.push(ObservedPod { pod, node: Some(self.node.clone()), status });
//!         }
//!         Ok(pods)
//!     }
//!
//!     fn configure_node(&self, node: &mut NodeTemplate) {
//!         node.capacity.insert("cpu".into(), Quantity::units(4));
//!         node.capacity.insert("memory".into(), Quantity::bytes(8 << 30));
//!         node.capacity.insert("pods".into(), Quantity::units(100));
//!     }
//! }
//!
//! struct MemoryFactory;
//!
//! #[async_trait]
//! impl Factory for MemoryFactory {
//!     fn name(&self) -> &'static str {
//!         "memory"
//!     }
//!
//!     fn description(&self) -> &'static str {
//!         "pods that exist only in memory"
//!     }
//!
//!     fn abilities(&self) -> Abilities {
//!         Abilities::default()
//!     }
//!
//!     async fn open(&self, _config: Config, context: Context) -> Result<Arc<dyn Backend>> {
//!         let memory = Memory { node: context.node_name.clone(), pods: Mutex::default() };
//!         Ok(Arc::new(SingleNode::new(&context, memory)))
//!     }
//! }
//! ```

pub mod ability;
pub mod config;
pub mod dns;
pub mod duration;
pub mod error;
pub mod explanation;
pub mod extensions;
pub mod finding;
pub mod go_text;
pub mod host_port;
pub mod inventory;
pub mod label_selector;
pub mod metrics;
pub mod node;
pub mod node_selector;
pub mod outbox;
pub mod placement;
pub mod pod;
pub mod provider;
pub mod qos;
pub mod quantity;
pub mod requests;
pub mod resolve;
pub mod restart_policy;
pub mod taint;

pub use self::{
    ability::Abilities,
    config::{Config, ConfigAlias},
    error::{Error, Result},
    explanation::{ExplainRequest, Explanation},
    extensions::Extensions,
    finding::Finding,
    inventory::Inventory,
    metrics::MetricFamily,
    node::{NodeChange, NodeTemplate},
    outbox::Outbox,
    pod::{Changes, ContainerRef, EventKind, ObservedPod, PodBundle, PodChange, PodEvent, PodRef},
    provider::{Backend, Context, Factory, NodeEvent, Provider, SingleNode},
    quantity::Quantity,
    resolve::Resolver,
};
/// Tasks of a backend: see [`Context::supervisor`].
pub use vk_supervisor::{Supervisor, task};
