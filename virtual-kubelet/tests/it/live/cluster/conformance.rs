//! The conformance suite with a real lower cluster.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt as _, future::join_all};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde_json::json;
use vk_kube::{Client, ClientOptions, Metrics, UpperCluster};
use vk_provider::{Config, Context, Extensions, Factory as _, NodeEvent, Provider, Result};
use vk_provider_cluster::ClusterFactory;
use vk_provider_mock::ANNOTATION_PREFIX;
use vk_supervisor::Supervisor;
use vk_testing::{
    conformance::{Case, CaseResult, Feature, LOGIN, PULL_SECRET, PodBehavior, SETTINGS, Subject, cases},
    eventually,
};

use super::{
    cluster_pair::ClusterPair,
    namespace_client::{NamespaceClient, TIMEOUT},
};

/// How many cases run concurrently.
const CONCURRENCY: usize = 4;
/// Selects cases by a part of their names.
const ONLY: &str = "VK_ONLY";

/// Lower namespaces and the id of an upper cluster for one case.
struct ConformanceHost {
    pair: &'static ClusterPair<'static>,
    upper: Client,
    supervisor: Supervisor,
    number: u32,
}

impl ConformanceHost {
    async fn new(pair: &'static ClusterPair<'static>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let supervisor = Supervisor::new();
        let source =
            ClientOptions { kubeconfig: Some(pair.upper.admin_kubeconfig().to_owned()), server: None };
        let upper = source.connect(&supervisor, Metrics::default()).await.unwrap();
        Self { pair, upper, supervisor, number: COUNT.fetch_add(1, Ordering::Relaxed) }
    }
}

#[async_trait]
impl Subject for ConformanceHost {
    async fn open(&self, context: Context) -> Result<Arc<dyn Provider>> {
        let mut config = self.pair.config.clone();
        config["origin"] = json!(format!("conformance-{}", self.number));
        config["namespaceSuffix"] = json!(format!("-conformance-{}", self.number));
        let upper = self.upper.clone();
        let lent = UpperCluster::new(upper.clone(), move |_| upper.clone());
        let context = Context { extensions: Extensions::new().with(lent), ..context };
        let backend = ClusterFactory.open(Config::Inline(config), context).await?;
        let Some(NodeEvent::Added(_, provider)) = backend.nodes().next().await else {
            panic!("there is no node");
        };
        // Until then the node is not Ready and has no pods.
        eventually("the node is ready", TIMEOUT, || async {
            provider.ping().await.map_err(|error| error.report())
        })
        .await;
        Ok(provider)
    }

    fn lacks(&self) -> &[Feature] {
        // A pod name is unique in the lower cluster too, and port errors of the lower kubelet pass through two API servers. The lower
        // nodes simulate no volumes.
        &[Feature::Namesakes, Feature::ClosedPorts, Feature::Files]
    }

    fn configure_pod(&self, pod: &mut Pod, life: &PodBehavior) {
        life.script(ANNOTATION_PREFIX, pod);
        let annotations = pod.metadata.annotations.get_or_insert_default();
        for (name, value) in [("cpu", "10m"), ("memory", "16Mi")] {
            annotations.insert(format!("{ANNOTATION_PREFIX}{name}"), value.to_owned());
        }
    }

    fn limit(&self) -> Duration {
        Duration::from_mins(1)
    }

    fn port(&self) -> Option<u16> {
        Some(80)
    }
}

impl Drop for ConformanceHost {
    fn drop(&mut self) {
        self.supervisor.stop();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn the_provider_conforms_with_a_real_lower_cluster() {
    let pair = ClusterPair::common().await;
    // Objects that the pods of some cases refer to.
    let (name, key, value) = SETTINGS;
    let settings = json!({"metadata": {"name": name}, "data": {key: value}});
    let upper = NamespaceClient::new(pair.upper, "default");
    upper.create("configmaps", &settings).await;
    let (name, key, value) = LOGIN;
    upper.create("secrets", &json!({"metadata": {"name": name}, "stringData": {key: value}})).await;
    let (name, registry, password) = PULL_SECRET;
    let auths = json!({"auths": {registry: {"username": "conformance", "password": password}}});
    let pull_secret = json!({
        "metadata": {"name": name},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": auths.to_string()},
    });
    upper.create("secrets", &pull_secret).await;
    let only = std::env::var(ONLY).unwrap_or_default();
    let chosen = cases().iter().filter(|case| case.name.contains(&only));
    let queue: Arc<Mutex<VecDeque<&Case>>> = Arc::new(Mutex::new(chosen.collect()));
    let workers = (0..CONCURRENCY).map(|_| run_cases(pair, Arc::clone(&queue)));
    let broken: Vec<String> = join_all(workers).await.into_iter().flatten().collect();
    assert!(broken.is_empty(), "{} cases failed:\n{}", broken.len(), broken.join("\n\n"));
}

/// Runs cases until the queue is empty, and returns the failures.
async fn run_cases(
    pair: &'static ClusterPair<'static>,
    queue: Arc<Mutex<VecDeque<&'static Case>>>,
) -> Vec<String> {
    let mut broken = Vec::new();
    loop {
        let Some(case) = queue.lock().pop_front() else { return broken };
        if let CaseResult::Violated(violation) = case.run(Arc::new(ConformanceHost::new(pair).await)).await {
            broken.push(case.report(&violation));
        }
    }
}
