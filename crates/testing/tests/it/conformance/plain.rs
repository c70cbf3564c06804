//! As little as a provider can be: pods that are remembered, run until they are deleted, and go with the process.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerState, ContainerStateRunning, ContainerStatus, Pod, PodCondition, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use vk_provider::{Context, Error, NodeTemplate, ObservedPod, PodBundle, PodRef, Provider, Quantity, Result};
use vk_testing::conformance::{Feature, Subject};

pub(crate) struct Plain {
    node: String,
    pods: Mutex<HashMap<PodRef, Arc<Pod>>>,
}

pub(crate) struct PlainSubject;

impl Plain {
    pub(crate) fn subject() -> PlainSubject {
        PlainSubject
    }
}

#[async_trait]
impl Subject for PlainSubject {
    async fn open(&self, context: Context) -> Result<Arc<dyn Provider>> {
        Ok(Arc::new(Plain { node: context.node_name, pods: Mutex::default() }))
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

fn unknown(pod: &PodRef) -> Error {
    Error::not_found(format!("no pod {pod}"))
}

/// Whatever the pod has, all of it runs.
fn status(pod: &Pod) -> PodStatus {
    let uid = pod.metadata.uid.as_deref().unwrap();
    let running = ContainerStateRunning { started_at: Some(Time(Timestamp::UNIX_EPOCH)) };
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers).map(|container| ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        container_id: Some(format!("plain://{uid}.{}", container.name)),
        ready: true,
        state: Some(ContainerState { running: Some(running.clone()), ..ContainerState::default() }),
        ..ContainerStatus::default()
    });
    PodStatus {
        phase: Some("Running".into()),
        container_statuses: Some(containers.collect()),
        conditions: Some(vec![PodCondition {
            type_: "ContainersReady".into(),
            status: "True".into(),
            ..PodCondition::default()
        }]),
        ..PodStatus::default()
    }
}

#[async_trait]
impl Provider for Plain {
    async fn create_pod(&self, bundle: PodBundle) -> Result<()> {
        let pod = bundle.reference().ok_or_else(|| Error::invalid("create pod: it has no uid"))?;
        let spec = bundle.pod.spec.clone().unwrap_or_default();
        if spec.containers.is_empty() {
            return Err(Error::invalid(format!("create pod {pod}: it has no containers")));
        }
        if spec.init_containers.is_some() {
            return Err(Error::unsupported(format!("create pod {pod}: it has init containers")));
        }
        self.pods.lock().unwrap().entry(pod).or_insert(bundle.pod);
        Ok(())
    }

    async fn update_pod(&self, bundle: PodBundle) -> Result<()> {
        let pod = bundle.reference().ok_or_else(|| Error::invalid("update pod: it has no uid"))?;
        let mut pods = self.pods.lock().unwrap();
        let known = pods.get_mut(&pod).ok_or_else(|| unknown(&pod))?;
        if known.spec != bundle.pod.spec {
            return Err(Error::unsupported(format!(
                "update pod {pod}: only labels and annotations can change"
            )));
        }
        *known = bundle.pod;
        Ok(())
    }

    async fn delete_pod(&self, pod: &PodRef, _last_known: Option<Arc<Pod>>, _grace: Duration) -> Result<()> {
        self.pods.lock().unwrap().remove(pod).map(drop).ok_or_else(|| unknown(pod))
    }

    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
        self.pods.lock().unwrap().get(pod).map(|pod| status(pod)).ok_or_else(|| unknown(pod))
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        let pods = self.pods.lock().unwrap();
        let observed = pods.iter().map(|(pod, spec)| ObservedPod {
            pod: pod.clone(),
            node: Some(self.node.clone()),
            status: status(spec),
        });
        Ok(observed.collect())
    }

    fn configure_node(&self, node: &mut NodeTemplate) {
        node.capacity.insert("cpu".into(), Quantity::units(4));
        node.capacity.insert("memory".into(), Quantity::bytes(8 << 30));
        node.capacity.insert("pods".into(), Quantity::units(100));
    }
}
