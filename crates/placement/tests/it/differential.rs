//! The API server converts pods as [`convert`](vk_placement::convert::convert) does: by the admission policy, and by the webhook.

use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use vk_placement::{
    convert::{Settings, exemption},
    names,
    policy::{FailurePolicy, WebhookAddress, admission_policy, webhook_configuration},
    webhook,
};
use vk_testing::{ControlPlane, control_plane::Options, eventually};

use crate::{
    foreign_webhook, generator, kubectl,
    properties::{converted, read},
    server::Server,
};

/// Generated pods.
const PODS: u64 = 200;
/// Requests at the same time.
const PARALLEL: usize = 8;
const SOON: Duration = Duration::from_secs(30);

/// A cluster with a namespace that has opted in and one that has not.
pub(crate) struct Cluster {
    control_plane: ControlPlane,
    plain: String,
    offloading: String,
    /// Pods as the API server would create them without conversion.
    pods: Vec<GeneratedPod>,
}

struct GeneratedPod {
    seed: u64,
    namespace: String,
    /// As it is sent.
    manifest: Value,
    /// As the API server creates it if nobody converts it.
    unconverted: Value,
}

// === impl Cluster ===

impl Cluster {
    /// Starts a control plane and lets it complete the generated pods.
    pub(crate) async fn start(options: Options) -> Self {
        let control_plane = ControlPlane::start(options).await.unwrap();
        let plain = control_plane.namespace("plain").await.unwrap().name().to_owned();
        let offloading = control_plane.namespace("offloading").await.unwrap().name().to_owned();
        let mut cluster = Self { control_plane, plain, offloading, pods: Vec::new() };
        cluster
            .kubectl(&["label", "namespace", &cluster.offloading, &format!("{}=true", names::OFFLOAD)])
            .await;
        let mut manifests: Vec<(u64, Value)> = (0..PODS).map(|seed| (seed, generator::pod(seed))).collect();
        // These show when a change has reached the API server: one opts in by its namespace, the other by its label.
        for (seed, labels) in [(PODS, json!({})), (PODS + 1, json!({names::VIRTUAL_POD: "true"}))] {
            let probe = json!({
                "metadata": {"labels": labels},
                "spec": {
                    "automountServiceAccountToken": false, "nodeSelector": {"disk": "ssd"},
                    "containers": [{"name": "main", "image": "none"}],
                },
            });
            manifests.push((seed, probe));
        }
        let all = stream::iter(manifests).map(|(seed, manifest)| cluster.unconverted(seed, manifest));
        cluster.pods = all.buffered(PARALLEL).collect().await;
        cluster
    }

    async fn unconverted(&self, seed: u64, mut manifest: Value) -> GeneratedPod {
        manifest["metadata"]["name"] = json!(format!("pod-{seed}"));
        // The first pod after the generated ones is in the namespace that has opted in, too.
        let namespace = if seed.is_multiple_of(4) { &self.offloading } else { &self.plain };
        let unconverted = self.create(namespace, &manifest).await;
        let unconverted = unconverted.unwrap_or_else(|error| panic!("seed {seed}: {error}: {manifest}"));
        GeneratedPod { seed, namespace: namespace.clone(), manifest, unconverted }
    }

    /// What the API server makes of a pod. It is a dry run.
    async fn create(&self, namespace: &str, manifest: &Value) -> Result<Value, String> {
        let pods: Api<Pod> = Api::namespaced(self.control_plane.admin().unwrap(), namespace);
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let created = pods.create(&dry_run, &read(manifest)).await.map_err(|error| error.to_string())?;
        let mut created = serde_json::to_value(created).unwrap();
        let metadata = created["metadata"].as_object_mut().unwrap();
        metadata.retain(|key, _| ["labels", "annotations", "ownerReferences"].contains(&key.as_str()));
        created.as_object_mut().unwrap().remove("status");
        Ok(created)
    }

    async fn kubectl(&self, arguments: &[&str]) -> String {
        kubectl::kubectl(&self.control_plane, arguments).await
    }

    pub(crate) async fn apply(&self, manifest: &str) {
        kubectl::apply(&self.control_plane, manifest).await;
    }

    /// Compares all pods with what they should be, once the first ones show that the API server has seen the last change.
    pub(crate) async fn compare(&self, settings: &Settings, is_foreign: bool) {
        let (generated, probes) = self.pods.split_at(usize::try_from(PODS).unwrap());
        for probe in probes {
            eventually("the API server converts pods", SOON, || self.check(probe, settings, is_foreign))
                .await;
        }
        let outcomes = stream::iter(generated).map(|pod| self.check(pod, settings, is_foreign));
        let outcomes: Vec<_> = outcomes.buffered(PARALLEL).collect().await;
        let wrong: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
        assert!(wrong.is_empty(), "{} of {PODS} pods differ:\n{}", wrong.len(), wrong.join("\n"));
        let changed = generated.iter().filter(|pod| self.expected(pod, settings, false) != pod.unconverted);
        let share = changed.count() * 100 / generated.len();
        assert!((40..=95).contains(&share), "{share}% of the pods are converted");
    }

    async fn check(&self, pod: &GeneratedPod, settings: &Settings, is_foreign: bool) -> Result<(), String> {
        let created = self.create(&pod.namespace, &pod.manifest).await;
        let created = created.map_err(|error| format!("seed {}: {error}\n{}", pod.seed, pod.manifest))?;
        let expected = self.expected(pod, settings, is_foreign);
        if created == expected {
            return Ok(());
        }
        Err(format!("seed {}: {}\nexpected {expected}\ncreated  {created}", pod.seed, pod.manifest))
    }

    /// The pod that should be created.
    fn expected(&self, pod: &GeneratedPod, settings: &Settings, is_foreign: bool) -> Value {
        let mut expected = pod.unconverted.clone();
        let label = &expected["metadata"]["labels"][names::VIRTUAL_POD];
        let is_converted = (label == "true" || pod.namespace == self.offloading)
            && exemption(&read(&expected), &pod.namespace).is_none();
        if is_converted {
            expected = converted(&expected, settings);
        }
        if is_foreign {
            foreign_webhook::add_key(&mut expected);
        }
        if is_converted {
            expected = converted(&expected, settings);
        }
        // The API server does not write empty maps.
        if expected["spec"]["nodeSelector"].as_object().is_some_and(serde_json::Map::is_empty) {
            expected["spec"].as_object_mut().unwrap().remove("nodeSelector");
        }
        expected
    }

    /// Lets the API server call the webhook, and compares all pods.
    pub(crate) async fn compare_webhook(&self, settings: &Settings) {
        let server = Server::start(&self.control_plane, webhook::router(settings.clone())).await;
        let address = WebhookAddress::Url(server.url.clone());
        let ca = self.control_plane.ca_pem();
        self.apply(&webhook_configuration(&address, Some(ca), settings, "kube-system", FailurePolicy::Fail))
            .await;
        self.compare(settings, false).await;
        self.compare_with_foreign_webhook(settings).await;
        self.kubectl(&["delete", "mutatingwebhookconfiguration", "virtual-kubelet-placement"]).await;
    }

    async fn compare_with_foreign_webhook(&self, settings: &Settings) {
        let foreign = foreign_webhook::start(&self.control_plane).await;
        let configuration = foreign_webhook::configuration(&foreign, self.control_plane.ca_pem());
        self.apply(&configuration.to_string()).await;
        self.compare(settings, true).await;
        let name = configuration["metadata"]["name"].as_str().unwrap();
        self.kubectl(&["delete", "mutatingwebhookconfiguration", name]).await;
        // The server may go only when nobody calls it any more.
        self.compare(settings, false).await;
    }
}

pub(crate) fn every_setting() -> Settings {
    Settings { gate: Some(true), tolerate_lost: true, ..Settings::default() }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make test"]
async fn the_policy_and_the_webhook_convert_every_pod_as_convert_does() {
    let cluster = Cluster::start(Options::default()).await;
    let settings = Settings::default();
    cluster.apply(&admission_policy(&settings, "kube-system", FailurePolicy::Fail)).await;
    cluster.compare(&settings, false).await;
    cluster.compare_with_foreign_webhook(&settings).await;
    let settings = every_setting();
    cluster.apply(&admission_policy(&settings, "kube-system", FailurePolicy::Fail)).await;
    cluster.compare(&settings, false).await;

    // Without its settings the policy refuses pods that have opted in, or leaves them as they are.
    cluster
        .kubectl(&["delete", "configmap", "virtual-kubelet-placement", "--namespace", "kube-system"])
        .await;
    let probe = cluster.pods.last().unwrap();
    let denial = eventually("pods are denied", SOON, || async {
        cluster.create(&probe.namespace, &probe.manifest).await.err().ok_or("created")
    })
    .await;
    assert!(denial.contains("policy 'virtual-kubelet-placement'"), "{denial}");
    let open = admission_policy(&settings, "kube-system", FailurePolicy::Ignore);
    let (policy, _config_map) = open.rsplit_once("\n---\n").unwrap();
    cluster.apply(policy).await;
    let created =
        eventually("pods are created", SOON, || cluster.create(&probe.namespace, &probe.manifest)).await;
    assert_eq!(created, probe.unconverted);

    let bindings = ["pods", "namespaces"].map(|kind| format!("virtual-kubelet-placement-{kind}"));
    cluster.kubectl(&["delete", "mutatingadmissionpolicybinding", &bindings[0], &bindings[1]]).await;
    cluster.compare_webhook(&Settings::default()).await;
}
