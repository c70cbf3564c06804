//! The extender, called by the real kube-scheduler.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition, PodStatus};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::sync::watch;
use vk_kube::{Client, Metrics};
use vk_placement::{
    ask::{AskLimits, FitClient},
    certificate::{Maintainer, ServedNames, ca_bundle, client_certificate, follow, follow_cas},
    choose::Preference,
    extender::{self, CLIENT_NAMES, Extender},
};
use vk_provider::{
    Error, ObservedPod, PodBundle, PodRef, Provider, Result,
    ability::{Fit, Verdict},
    placement::PLACEMENT_ANNOTATION,
};
use vk_server::tls::{self, ServingCertificate, client_ca::ClientCa};
use vk_supervisor::{Clock, Supervisor, task};
use vk_testing::{ControlPlane, control_plane::Options, eventually};

use crate::{properties::read, server::Server};

const NAMESPACE: &str = "kube-system";
/// The virtual node.
const NODE: &str = "vk";
/// A busy machine may take long.
const SOON: Duration = Duration::from_mins(1);

/// A node that takes all pods, or none.
#[derive(Default)]
struct FullOrEmpty {
    is_full: AtomicBool,
    asked: AtomicUsize,
}

#[async_trait]
impl Provider for FullOrEmpty {
    async fn create_pod(&self, _: PodBundle) -> Result<()> {
        Ok(())
    }

    async fn update_pod(&self, _: PodBundle) -> Result<()> {
        Ok(())
    }

    async fn delete_pod(&self, _: &PodRef, _: Option<Arc<Pod>>, _: Duration) -> Result<()> {
        Ok(())
    }

    async fn pod_status(&self, _: &PodRef) -> Result<PodStatus> {
        Err(Error::not_found("nothing runs"))
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        Ok(Vec::new())
    }

    fn fit(&self) -> Option<&dyn Fit> {
        Some(self)
    }
}

impl Fit for FullOrEmpty {
    fn fit(&self, _: &[Arc<Pod>], pods: &[Arc<Pod>], _: &[Arc<str>]) -> Vec<Verdict> {
        // The extender keeps its connections open by questions about nothing.
        self.asked.fetch_add(usize::from(!pods.is_empty()), Ordering::Relaxed);
        let verdict = if self.is_full.load(Ordering::Relaxed) {
            Verdict::refused("quota \"team\" has 0 of 8 cpu left", false)
        } else {
            Verdict::Fits { room: 100, fullness: 1 }
        };
        pods.iter().map(|_| verdict.clone()).collect()
    }
}

/// A cluster with a virtual node and an extender with the certificates of placement.
struct Cluster {
    control_plane: ControlPlane,
    placement: Client,
    node: Arc<FullOrEmpty>,
    /// CAs of clients.
    client_ca: ClientCa,
    server: Server,
    _supervisor: Supervisor,
    _leading: watch::Sender<bool>,
}

// === impl Cluster ===

impl Cluster {
    async fn start() -> Self {
        // Without the controllers that would miss the heartbeats of the node.
        let controllers = "serviceaccount-controller,root-ca-certificate-publisher-controller";
        let options = Options {
            extra_controller_manager_args: vec![format!("--controllers={controllers}")],
            scheduler_config: Some(scheduler_config(&json!([]))),
            ..Options::with_controllers()
        };
        let control_plane = ControlPlane::start(options).await.unwrap();
        let placement = Client::fixed(control_plane.admin().unwrap(), Metrics::default());
        let supervisor = Supervisor::new();
        let (leading, leads) = watch::channel(true);
        let maintainer = Maintainer {
            client: placement.clone(),
            namespace: NAMESPACE.to_owned(),
            names: ServedNames::of_service(NAMESPACE),
            webhook: false,
            clock: Clock::system(),
        };
        let running = maintainer.run_while_leading(leads, supervisor.clone());
        supervisor.spawn("maintainer", task::Kind::Critical, running);
        let (sender, mut leaf) = watch::channel(None);
        let following = follow(placement.clone(), NAMESPACE.to_owned(), sender);
        supervisor.spawn("certificate", task::Kind::Critical, following);
        let (sender, mut cas) = watch::channel(None);
        let following = follow_cas(placement.clone(), NAMESPACE.to_owned(), sender);
        supervisor.spawn("client CAs", task::Kind::Critical, following);

        let node = Arc::new(FullOrEmpty::default());
        create_node(&control_plane).await;
        let fit_client = FitClient::new(placement.clone(), AskLimits::default());
        fit_client.add_local(NODE, Arc::clone(&node) as Arc<dyn Provider>);
        let (preference, metrics) = (Preference::default(), vk_placement::metrics::Metrics::default());
        let clock = Clock::system();
        let extender = Extender::start(
            placement.clone(),
            fit_client,
            preference,
            NAMESPACE,
            metrics,
            clock,
            &supervisor,
        );
        let is_ready = || async { if extender.is_ready() { Ok(()) } else { Err("not yet") } };
        eventually("the extender is ready", SOON, is_ready).await;
        let client_ca = ClientCa::default();
        let bundle = cas.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        client_ca.replace(bundle.as_bytes()).unwrap();
        let serving = leaf.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        let serving = ServingCertificate::new(serving);
        let config = tls::server_config_for(serving, client_ca.clone(), &CLIENT_NAMES).unwrap();
        let server = Server::serve_with(config, extender::router(extender)).await;
        Self { control_plane, placement, node, client_ca, server, _supervisor: supervisor, _leading: leading }
    }

    /// Restarts kube-scheduler with the extender and a client certificate and its key, in PEM.
    async fn restart_scheduler(&self, client: Option<[&str; 2]>) {
        let ca = ca_bundle(&self.placement, NAMESPACE).await.unwrap();
        let mut tls = json!({"caData": STANDARD.encode(ca)});
        if let Some([certificate, key]) = client {
            tls["certData"] = json!(STANDARD.encode(certificate));
            tls["keyData"] = json!(STANDARD.encode(key));
        }
        let extender = json!({
            "urlPrefix": self.server.url, "enableHTTPS": true, "tlsConfig": tls, "httpTimeout": "5s",
            "filterVerb": "filter", "prioritizeVerb": "prioritize", "preemptVerb": "preempt", "weight": 1,
            "nodeCacheCapable": true, "ignorable": false,
        });
        self.control_plane.restart_scheduler(&scheduler_config(&json!([extender]))).await.unwrap();
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.control_plane.admin().unwrap(), "default")
    }

    /// Creates a pod. One that requests something else is asked about for itself.
    async fn create_pod(&self, name: &str, cpu: &str) {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {
                "automountServiceAccountToken": false, "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}],
            },
        });
        self.pods().create(&PostParams::default(), &read(&pod)).await.unwrap();
    }

    /// Waits until kube-scheduler says this of a pod.
    async fn expect_waiting(&self, pod: &str, reason: &str, text: &str) {
        eventually(&format!("{pod} waits: {text}"), SOON, || async {
            let status = self.pods().get(pod).await.unwrap().status.unwrap();
            let is_wanted = |it: &&PodCondition| {
                it.reason.as_deref() == Some(reason)
                    && it.message.as_ref().is_some_and(|it| it.contains(text))
            };
            let conditions = status.conditions.unwrap_or_default();
            if conditions.iter().any(|it| is_wanted(&it)) { Ok(()) } else { Err(format!("{conditions:?}")) }
        })
        .await;
    }

    async fn expect_bound(&self, pod: &str) {
        eventually(&format!("{pod} is bound"), SOON, || async {
            let pod = self.pods().get(pod).await.unwrap();
            let node = pod.spec.unwrap().node_name;
            if node.as_deref() == Some(NODE) { Ok(()) } else { Err(format!("{node:?}, {:?}", pod.status)) }
        })
        .await;
    }

    fn asked(&self) -> usize {
        self.node.asked.load(Ordering::Relaxed)
    }
}

fn scheduler_config(extenders: &Value) -> String {
    json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "extenders": extenders,
    })
    .to_string()
}

async fn create_node(cluster: &ControlPlane) {
    let nodes: Api<Node> = Api::all(cluster.admin().unwrap());
    let node = json!({"metadata": {"name": NODE, "annotations": {PLACEMENT_ANNOTATION: "fit"}}});
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let status = json!({"status": {
        "capacity": {"cpu": "100", "memory": "100Gi", "pods": "100"},
        "allocatable": {"cpu": "100", "memory": "100Gi", "pods": "100"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    nodes.patch_status(NODE, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make test"]
async fn kube_scheduler_calls_the_extender_with_a_certificate_and_never_without() {
    let cluster = Cluster::start().await;
    cluster.restart_scheduler(None).await;
    cluster.create_pod("first", "1").await;
    cluster.expect_waiting("first", "SchedulerError", "tls: ").await;
    assert_eq!(cluster.asked(), 0);

    // The certificate of placement.
    let client = client_certificate(&cluster.placement, NAMESPACE, Clock::system().now()).await.unwrap();
    cluster.restart_scheduler(Some([&client.certificate, &client.key])).await;
    cluster.expect_bound("first").await;
    assert!(cluster.asked() > 0);
    cluster.node.is_full.store(true, Ordering::Relaxed);
    cluster.create_pod("second", "2").await;
    cluster.expect_waiting("second", "Unschedulable", "quota \"team\" has … of … cpu left").await;
    cluster.pods().delete("second", &kube::api::DeleteParams::default()).await.unwrap();

    // One of another CA, and then with trust in it.
    cluster.node.is_full.store(false, Ordering::Relaxed);
    let other = cluster.control_plane.client_certificate("system:kube-scheduler", &[]).unwrap();
    cluster.restart_scheduler(Some([&other.cert_pem, &other.key_pem])).await;
    let before = cluster.asked();
    cluster.create_pod("third", "3").await;
    cluster.expect_waiting("third", "SchedulerError", "tls: ").await;
    assert_eq!(cluster.asked(), before);
    cluster.client_ca.replace(cluster.control_plane.ca_pem().as_bytes()).unwrap();
    cluster.expect_bound("third").await;
    assert!(cluster.asked() > before);
}
