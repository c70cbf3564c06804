//! A complete provider and a command with it: `cargo run --example memory -- run --provider memory`.
//!
//! Pods are only kept in memory. `docs/guide/write-a-provider.md` walks through it. The conformance test is at the end:
//! `cargo test --example memory`.

use std::{
    collections::HashMap,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus,
};
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

/// Every stored pod is running since its creation.
fn running(pod: &Pod) -> PodStatus {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let since = ContainerStateRunning { started_at: pod.metadata.creation_timestamp.clone() };
    let status = |container: &Container| ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        container_id: Some(format!("memory://{uid}.{}", container.name)),
        state: Some(ContainerState { running: Some(since.clone()), ..ContainerState::default() }),
        ready: true,
        ..ContainerStatus::default()
    };
    let ready = PodCondition {
        type_: "ContainersReady".to_owned(),
        status: "True".to_owned(),
        ..PodCondition::default()
    };
    PodStatus {
        phase: Some("Running".to_owned()),
        container_statuses: Some(pod.spec.iter().flat_map(|spec| &spec.containers).map(status).collect()),
        conditions: Some(vec![ready]),
        ..PodStatus::default()
    }
}

/// Rejects pods that could only be run in part.
fn check(pod: &PodRef, spec: Option<&PodSpec>) -> Result<()> {
    if spec.is_none_or(|spec| spec.containers.is_empty()) {
        return Err(Error::invalid(format!("remember pod {pod}: it has no containers")));
    }
    if spec.is_some_and(|spec| spec.init_containers.is_some() || spec.ephemeral_containers.is_some()) {
        return Err(Error::unsupported(format!("remember pod {pod}: it has more than regular containers")));
    }
    Ok(())
}

#[async_trait]
impl Provider for Memory {
    async fn create_pod(&self, bundle: PodBundle) -> Result<()> {
        let pod = bundle.reference().ok_or_else(|| Error::invalid("the pod has no uid"))?;
        check(&pod, bundle.pod.spec.as_ref())?;
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
        let status = self.pods_now().get(pod).map(|pod| running(pod));
        status.ok_or_else(|| Error::not_found(format!("no pod {pod}")))
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        let observed = |(pod, spec): (&PodRef, &Arc<Pod>)| ObservedPod {
            pod: pod.clone(),
            node: Some(self.node.clone()),
            status: running(spec),
        };
        Ok(self.pods_now().iter().map(observed).collect())
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

#[cfg(test)]
mod tests {
    use vk_testing::conformance::{Feature, Subject};

    use super::*;

    struct Remembered;

    #[async_trait]
    impl Subject for Remembered {
        async fn open(&self, context: Context) -> Result<Arc<dyn Provider>> {
            Ok(Arc::new(Memory { node: context.node_name, pods: Mutex::default() }))
        }

        fn lacks(&self) -> &[Feature] {
            &[
                Feature::Logs,
                Feature::Exec,
                Feature::Attach,
                Feature::PortForward,
                Feature::Stats,
                Feature::Fit,
                Feature::Endings,
                Feature::Restarts,
                Feature::InitContainers,
                Feature::EphemeralContainers,
                Feature::Survival,
                Feature::Files,
                Feature::Secrets,
            ]
        }
    }

    vk_testing::conformance!(Remembered);
}
