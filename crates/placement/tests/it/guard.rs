//! The guard lets placement change what it has to change in pods, and nothing else.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use vk_placement::rbac;
use vk_testing::{ControlPlane, control_plane::Options, eventually};

use crate::{
    kubectl::{apply, kubectl},
    pod_changes::{Change, allowed, refused},
    properties::read,
};

const NAMESPACE: &str = "kube-system";
const SOON: Duration = Duration::from_secs(30);

/// The pods of one namespace, as somebody sees them.
struct Pods(Api<Pod>);

// === impl Pods ===

impl Pods {
    fn new(client: kube::Client) -> Self {
        Self(Api::namespaced(client, "default"))
    }

    /// The pod after the change. It is a dry run.
    async fn change(&self, change: &Change) -> Result<Value, String> {
        let patch: Patch<()> = Patch::Json(serde_json::from_value(change.patch.clone()).unwrap());
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        let patched = match change.subresource {
            "" => self.0.patch(change.pod, &params, &patch).await,
            subresource => self.0.patch_subresource(subresource, change.pod, &params, &patch).await,
        };
        match patched {
            Ok(pod) => Ok(comparable(&pod)),
            Err(error) => Err(format!("{}: {error}", change.patch)),
        }
    }

    /// Binds a pod by a request to this path. It is a dry run.
    async fn bind(&self, pod: &str, path: &str) -> Result<(), String> {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": {"kind": "Node", "name": "vk-a"},
        });
        let request = http::Request::post(format!("/api/v1/namespaces/default/{path}?dryRun=All"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(serde_json::to_vec(&binding).unwrap())
            .unwrap();
        let bound = self.0.clone().into_client().request::<Value>(request).await;
        bound.map(drop).map_err(|error| error.to_string())
    }

    async fn create(&self, manifest: &Value) {
        let mut pod = self.0.create(&PostParams::default(), &read(manifest)).await.unwrap();
        let Some(status) = manifest.get("status") else { return };
        pod.status = serde_json::from_value(status.clone()).unwrap();
        let name = manifest["metadata"]["name"].as_str().unwrap();
        self.0.replace_status(name, &PostParams::default(), &pod).await.unwrap();
    }

    async fn get(&self, name: &str) -> Value {
        comparable(&self.0.get(name).await.unwrap())
    }
}

/// The pod without what the API server writes in every update.
fn comparable(pod: &Pod) -> Value {
    let mut pod = serde_json::to_value(pod).unwrap();
    let metadata = pod["metadata"].as_object_mut().unwrap();
    metadata.retain(|key, _| !["managedFields", "generation", "resourceVersion"].contains(&key.as_str()));
    pod
}

/// A pod that waits, and whose spec can be changed therefore.
fn waiting() -> Value {
    json!({
        "metadata": {
            "name": "waiting",
            "labels": {"app": "web", "multicluster.virtual-kubelet.io/trial": "a"},
            "annotations": {"team": "shop", "multicluster.virtual-kubelet.io/trial-until": "a"},
            "finalizers": ["example.com/backup"],
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "1"}],
        },
        "spec": {
            "automountServiceAccountToken": false,
            "schedulingGates": [{"name": "example.com/quota"}, {"name": "multicluster.virtual-kubelet.io/placement"}],
            "nodeSelector": {"type": "virtual-kubelet"},
            "activeDeadlineSeconds": 600,
            "initContainers": [{"name": "first", "image": "none"}],
            "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}],
        },
    })
}

/// A pod without a gate, which can be bound.
fn free() -> Value {
    json!({
        "metadata": {"name": "free"},
        "spec": {"automountServiceAccountToken": false, "schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]},
    })
}

/// A pod that runs.
fn running() -> Value {
    let status =
        |name: &str| json!({"name": name, "image": "none", "imageID": "", "ready": true, "restartCount": 0});
    json!({
        "metadata": {"name": "running", "labels": {"app": "web"}},
        "spec": {
            "automountServiceAccountToken": false,
            "nodeName": "vk-a",
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
            "initContainers": [{"name": "first", "image": "none"}],
            "containers": [{"name": "main", "image": "none"}],
        },
        "status": {
            "phase": "Running", "reason": "Started", "message": "It runs.", "startTime": "2026-11-18T20:00:00Z",
            "hostIP": "192.0.2.1", "hostIPs": [{"ip": "192.0.2.1"}], "podIP": "198.51.100.1", "podIPs": [{"ip": "198.51.100.1"}],
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "multicluster.virtual-kubelet.io/Placed", "status": "False", "reason": "NoNode"},
            ],
            "initContainerStatuses": [status("first")],
            "containerStatuses": [status("main")],
        },
    })
}

/// Applies the published manifests and tries every change, as the ServiceAccount and as somebody else. Returns the fields that this version
/// of Kubernetes does not have.
pub(crate) async fn check_guard(cluster: &ControlPlane) -> Vec<&'static str> {
    apply(cluster, &rbac::manifests(NAMESPACE)).await;
    let admin = Pods::new(cluster.admin().unwrap());
    let groups = ["system:serviceaccounts", "system:authenticated"];
    let placement = Pods::new(cluster.client_for(&rbac::user(NAMESPACE), &groups).unwrap());
    for manifest in [waiting(), free(), running()] {
        admin.create(&manifest).await;
    }
    eventually("the guard is in force", SOON, || async {
        match placement.change(&refused()[0]).await {
            Err(error) if error.contains("placement may") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;

    for change in allowed() {
        let before = admin.get(change.pod).await;
        let after = placement.change(&change).await.unwrap_or_else(|error| panic!("{error}"));
        assert_ne!(after, before, "{}: it is no change", change.patch);
    }

    // The guard holds, whatever roles somebody adds.
    let role = ["--clusterrole=cluster-admin", "--serviceaccount=kube-system:virtual-kubelet-placement"];
    kubectl(cluster, &[&["create", "clusterrolebinding", "everything"][..], &role].concat()).await;
    let by_resize = refused().into_iter().find(|change| change.subresource == "resize").unwrap();
    eventually("the account has every permission", SOON, || async {
        match placement.change(&by_resize).await {
            Err(error) if error.contains("placement may") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let mut wrong = Vec::new();
    let mut unknown_fields = Vec::new();
    for change in refused() {
        match admin.change(&change).await {
            Err(error) => wrong.push(format!("as the administrator: {error}")),
            Ok(after) if after == admin.get(change.pod).await => unknown_fields.push(change.field),
            Ok(_) => match placement.change(&change).await {
                Err(error) if change.is_refused_by(&error) => {}
                other => wrong.push(format!("{}: {other:?}", change.patch)),
            },
        }
    }
    for path in ["pods/free/binding", "bindings"] {
        if let Err(error) = admin.bind("free", path).await {
            wrong.push(format!("the administrator binds a pod: {error}"));
        }
        match placement.bind("free", path).await {
            Err(error)
                if error.contains("'virtual-kubelet-placement-guard'")
                    && error.contains("placement may not bind pods") => {}
            other => wrong.push(format!("placement binds a pod: {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    unknown_fields
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make test"]
async fn placement_changes_its_own_parts_of_pods_and_no_others() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let unknown_fields = check_guard(&cluster).await;
    assert!(unknown_fields.is_empty(), "{unknown_fields:?}");
}
