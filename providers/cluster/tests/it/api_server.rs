//! A real API server whose kubelet is unreachable.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::{Api, api::PostParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use vk_kube::{Client, Metrics};
use vk_provider::{
    PodRef, Result,
    ability::{
        Exec as _, ExecOptions, Forward, LogOptions, Logs as _, PortForward as _, Started, Stats as _,
    },
    error::Kind,
};
use vk_provider_cluster::{
    names::OwnerId,
    stats::{PodSource, UsageStats},
    stream::{PodLocator, PodStreams},
};
use vk_supervisor::Clock;
use vk_testing::{ControlPlane, control_plane::Options};

use crate::fake_api_server::soon;

/// Lower pods have the same namespace and name.
struct SameNames;

impl PodLocator for SameNames {
    fn locate(&self, pod: &PodRef) -> Result<(String, String)> {
        Ok((pod.namespace.to_string(), pod.name.to_string()))
    }
}

struct SinglePod(PodRef, Arc<Pod>);

impl PodSource for SinglePod {
    fn pods(&self) -> Vec<(PodRef, Arc<Pod>)> {
        vec![(self.0.clone(), Arc::clone(&self.1))]
    }
}

async fn make<K>(api: Api<K>, value: Value) -> K
where
    K: Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    api.create(&PostParams::default(), &serde_json::from_value(value).unwrap()).await.unwrap()
}

fn pod(name: &str, node: Option<&str>) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"nodeName": node, "automountServiceAccountToken": false, "serviceAccountName": "builder",
            "containers": [{"name": "main", "image": "i"}]},
    })
}

const OPTIONS: ExecOptions = ExecOptions { stdin: true, stdout: true, stderr: true, tty: false };

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn errors_of_a_real_api_server_without_kubelets_are_mapped() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let admin = cluster.admin().unwrap();
    let namespace = cluster.namespace("streams").await.unwrap();
    let pods = || Api::<Pod>::namespaced(admin.clone(), namespace.name());
    make(
        Api::<ServiceAccount>::namespaced(admin.clone(), namespace.name()),
        json!({"metadata": {"name": "builder"}}),
    )
    .await;
    // Nothing listens on port 1.
    make(
        Api::<Node>::all(admin.clone()),
        json!({"metadata": {"name": "silent"}, "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
        }}),
    )
    .await;
    let bound = make(pods(), pod("bound", Some("silent"))).await;
    make(pods(), pod("waiting", None)).await;
    let client = Client::fixed(admin.clone(), Metrics::default());
    let streams = PodStreams::new(client.clone(), Arc::new(SameNames));
    let upper = |name: &str| PodRef::new(namespace.name(), name, "u");
    let command = ["true".to_owned()];

    // The pod does not exist.
    let error =
        soon(streams.start(&upper("absent").container("main"), &command, &OPTIONS)).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::NotFound, "{}", error.report());
    assert!(error.report().ends_with("pods \"absent\" not found"), "{}", error.report());
    // The container does not exist.
    let error = soon(streams.open(&upper("bound").container("x"), &LogOptions::default())).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::NotFound, "{}", error.report());
    // The pod is not bound.
    let error =
        soon(streams.start(&upper("waiting").container("main"), &command, &OPTIONS)).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unavailable, "{}", error.report());
    let error = soon(streams.dial(&upper("waiting"), 80)).await.err().unwrap();
    assert_eq!(*error.kind(), Kind::Unavailable, "{}", error.report());

    // The node does not answer: reported over version 5, after the protocol switch.
    let started = soon(streams.start(&upper("bound").container("main"), &command, &OPTIONS)).await.unwrap();
    let Started::Session(session) = started else { panic!("{started:?}") };
    let error = soon(session.exit).await.unwrap_err();
    assert!(error.report().contains("connection refused"), "{}", error.report());
    let error =
        soon(streams.open(&upper("bound").container("main"), &LogOptions::default())).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unavailable, "{}", error.report());
    assert!(error.report().contains("connection refused"), "{}", error.report());
    let told = match soon(streams.dial(&upper("bound"), 80)).await {
        Err(error) => error.report(),
        Ok(Forward::Stream(mut stream)) => {
            soon(stream.read_to_end(&mut Vec::new())).await.unwrap_err().to_string()
        }
        Ok(Forward::Url(_)) => panic!("there is no address to give"),
    };
    assert!(told.contains("connection refused"), "{told}");

    // There is no metrics API and no kubelet.
    let owner = OwnerId { origin: "o".to_owned(), node: "vk".to_owned() };
    let usage =
        UsageStats::new(client, owner, Arc::new(SinglePod(upper("bound"), Arc::new(bound))), Clock::system());
    assert!(soon(usage.summary()).await.unwrap().pods.is_empty());
}
