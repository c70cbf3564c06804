//! The control plane for the cases, and the creation of their objects.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::json;
use vk_testing::{ControlPlane, control_plane::Options};

use super::{case::Case, recording::Placeholders};

/// Dual-stack, and large enough for the addresses in the corpus.
const SERVICE_RANGES: &str = "--service-cluster-ip-range=10.0.0.0/16,fd00:10::/112";
/// Feature gates that are off by default in 1.36.
pub(super) const FEATURES: [&str; 2] = ["ClusterTrustBundle", "ClusterTrustBundleProjection"];

/// A case whose pod the API server accepted.
#[derive(Clone)]
pub(super) struct Placed {
    pub(super) pod: Pod,
    pub(super) words: Placeholders,
}

/// A control plane with all features that the corpus needs.
pub(super) async fn control_plane() -> ControlPlane {
    let features = FEATURES.map(|feature| format!("{feature}=true")).join(",");
    let options = Options {
        extra_api_server_args: vec![
            SERVICE_RANGES.to_owned(),
            format!("--feature-gates={features}"),
            "--runtime-config=certificates.k8s.io/v1beta1=true".to_owned(),
        ],
        ..Options::default()
    };
    Box::pin(ControlPlane::start(options)).await.unwrap()
}

/// Creates the objects and the pod of a case in a new namespace. The error is the API server's response.
pub(super) async fn place(cluster: &ControlPlane, client: &Client, case: &Case) -> Result<Placed, String> {
    let namespace = cluster.namespace("case").await.unwrap();
    let mut words = Placeholders::default();
    words.learn(namespace.name(), "{namespace}");
    words.learn(cluster.ca_pem(), "{root CA}");
    let said = |error: kube::Error| match error {
        kube::Error::Api(status) => words.replace(&status.message),
        other => panic!("{}: {other}", case.name),
    };
    for (resource, object) in &case.objects {
        let api: Api<DynamicObject> = if resource.kind == "ClusterTrustBundle" {
            Api::all_with(client.clone(), resource)
        } else {
            Api::namespaced_with(client.clone(), namespace.name(), resource)
        };
        api.create(&PostParams::default(), object).await.map_err(said)?;
    }
    // Untyped, so that fields unknown to our types reach the API server.
    let pods: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace.name(), &ApiResource::erase::<Pod>(&()));
    let pod = serde_json::from_value(case.pod.clone()).unwrap();
    let pod = pods.create(&PostParams::default(), &pod).await.map_err(said)?;
    let mut pod: Pod = pod.try_parse().unwrap();
    if let Some(added) = &case.added {
        let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": added}}));
        let pods = Api::<Pod>::namespaced(client.clone(), namespace.name());
        let params = PatchParams::default();
        pod = pods.patch_ephemeral_containers(&case.name, &params, &patch).await.map_err(said)?;
    }
    words.learn(pod.metadata.uid.as_deref().unwrap(), "{uid}");
    Ok(Placed { pod, words })
}

/// The automatic token volume has a random suffix.
pub(super) fn volume_name(name: &str) -> &str {
    if name.starts_with("kube-api-access-") { "kube-api-access" } else { name }
}
