//! A whole provider, and a command of one's own that has it: `cargo run --example memory -- run --provider memory`.
//!
//! The pods are only remembered. `docs/guide/write-a-provider.md` walks through it.

use std::{
    collections::HashMap,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use virtual_kubelet::{
    Registry,
    provider::{
        Abilities, Backend, Config, Context, Error, Factory, NodeTemplate, ObservedPod, PodBundle, PodRef,
        Provider, Quantity, Result, SingleNode,
    },
};

struct Memory {
    node: String,
    pods: Mutex<HashMap<PodRef, Arc<Pod>>>,
}

impl Memory {
    fn pods_now(&self) -> std::sync::MutexGuard<'_, HashMap<PodRef, Arc<Pod>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn running() -> PodStatus {
    PodStatus { phase: Some("Running".to_owned()), ..PodStatus::default() }
}

#[async_trait]
impl Provider for Memory {
    async fn create_pod(&self, bundle: PodBundle) -> Result<()> {
        let pod = bundle.reference().ok_or_else(|| Error::invalid("the pod has no uid"))?;
        self.pods_now().insert(pod, bundle.pod);
        Ok(())
    }

    async fn update_pod(&self, bundle: PodBundle) -> Result<()> {
        self.create_pod(bundle).await
    }

    async fn delete_pod(&self, pod: &PodRef, _last_known: Option<Arc<Pod>>, _grace: Duration) -> Result<()> {
        let removed = self.pods_now().remove(pod);
        removed.map(drop).ok_or_else(|| Error::not_found(format!("no pod {pod}")))
    }

    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
        let known = self.pods_now().contains_key(pod);
        if known { Ok(running()) } else { Err(Error::not_found(format!("no pod {pod}"))) }
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        let node = Some(self.node.clone());
        let observed = |pod: &PodRef| ObservedPod { pod: pod.clone(), node: node.clone(), status: running() };
        Ok(self.pods_now().keys().map(observed).collect())
    }

    fn configure_node(&self, node: &mut NodeTemplate) {
        node.capacity.insert("cpu".to_owned(), Quantity::units(4));
        node.capacity.insert("memory".to_owned(), Quantity::bytes(8 << 30));
        node.capacity.insert("pods".to_owned(), Quantity::units(100));
    }
}

struct MemoryFactory;

#[async_trait]
impl Factory for MemoryFactory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn description(&self) -> &'static str {
        "pods that are only remembered"
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    async fn open(&self, _config: Config, context: Context) -> Result<Arc<dyn Backend>> {
        let memory = Memory { node: context.node_name.clone(), pods: Mutex::default() };
        Ok(Arc::new(SingleNode::new(&context, memory)))
    }
}

fn main() -> ExitCode {
    virtual_kubelet::main_with(Registry::with_builtin().with(MemoryFactory))
}
