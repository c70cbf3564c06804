//! `virtual-kubelet placement print rbac` with a real API server: the permissions suffice for what placement does, and permit nothing else.

use std::{fs, path::Path};

use http::{Method, Request};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use vk_kube::{Client, Metrics, access::AccessCheck};
use vk_testing::{ControlPlane, control_plane::Options, eventually};

use super::SOON;
use crate::vk;

const NAME: &str = "virtual-kubelet-placement";
const GATE: &str = "multicluster.virtual-kubelet.io/placement";
const SECRET: &str = "virtual-kubelet-placement-tls";
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";

/// A request.
struct Call {
    method: Method,
    path: String,
    /// JSON or a strategic merge patch; null for none.
    body: Value,
}

// === impl Call ===

impl Call {
    fn new(method: Method, path: impl Into<String>, body: Value) -> Self {
        Self { method, path: path.into(), body }
    }

    fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path, Value::Null)
    }

    /// Sends it, and returns the status code and what the API server says against it.
    async fn send(&self, client: &kube::Client) -> (u16, String) {
        let is_patch = self.method == Method::PATCH;
        let content = if is_patch { "application/strategic-merge-patch+json" } else { "application/json" };
        let body = if self.body.is_null() { Vec::new() } else { self.body.to_string().into_bytes() };
        let request = Request::builder().method(&self.method).uri(&self.path).header("Content-Type", content);
        match client.request_text(request.body(body).unwrap()).await {
            Ok(_) => (200, String::new()),
            Err(kube::Error::Api(status)) => {
                (status.code, format!("{} {}: {status:?}", self.method, self.path))
            }
            Err(error) => panic!("{} {}: {error}", self.method, self.path),
        }
    }
}

/// What placement does, in an order that works. Its settings are in namespace `own`, and the pod in `team`.
fn permitted(own: &str, team: &str) -> Vec<Call> {
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{own}/leases");
    let maps = format!("/api/v1/namespaces/{own}/configmaps");
    let one = format!("fieldSelector=metadata.name%3D{NAME}");
    let secrets = format!("/api/v1/namespaces/{own}/secrets");
    let one_secret = format!("fieldSelector=metadata.name%3D{SECRET}");
    let pod = format!("/api/v1/namespaces/{team}/pods/waiting");
    let events = format!("/apis/events.k8s.io/v1/namespaces/{team}/events");
    let (patch, post) = (Method::PATCH, Method::POST);
    let placed = json!([{"type": "multicluster.virtual-kubelet.io/Placed", "status": "True"}]);
    let status = json!({"status": {"nominatedNodeName": "vk-a", "conditions": placed}});
    let release = json!({
        "metadata": {"annotations": {"multicluster.virtual-kubelet.io/pinned": "true"}},
        "spec": {
            "schedulingGates": [{"name": GATE, "$patch": "delete"}],
            "nodeSelector": {"kubernetes.io/hostname": "vk-a"},
        },
    });
    let event = json!({
        "metadata": {"name": "placed"}, "eventTime": "2026-11-18T20:00:00.000000Z", "type": "Normal",
        "action": "Place", "reason": "Placed", "reportingController": "placement", "reportingInstance": "a",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "waiting", "namespace": team},
    });
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-11-18T20:00:01.000000Z"}});
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "waiting", "namespace": team}});
    let token = format!("/api/v1/namespaces/{own}/serviceaccounts/{NAME}/token");
    let for_nodes =
        json!({"spec": {"audiences": ["placement.virtual-kubelet.io"], "expirationSeconds": 600}});
    vec![
        Call::get("/api/v1/nodes"),
        Call::get("/api/v1/nodes?watch=true&timeoutSeconds=1"),
        Call::get("/api/v1/pods"),
        Call::get("/api/v1/pods?watch=true&timeoutSeconds=1"),
        Call::get(format!("/apis/batch/v1/namespaces/{team}/jobs/train")),
        Call::get(format!("/api/v1/namespaces/{team}/persistentvolumeclaims/data")),
        Call::new(
            post.clone(),
            &leases,
            json!({"metadata": {"name": NAME}, "spec": {"holderIdentity": "a"}}),
        ),
        Call::get(format!("{leases}/{NAME}")),
        Call::new(patch.clone(), format!("{leases}/{NAME}"), json!({"spec": {"holderIdentity": "b"}})),
        Call::get(format!("{maps}/{NAME}")),
        Call::get(format!("{maps}?{one}")),
        Call::get(format!("{maps}?watch=true&timeoutSeconds=1&{one}")),
        Call::new(
            patch.clone(),
            format!("{maps}/{NAME}"),
            json!({"data": {"avoid.1": "vk-a=2026-11-18T20:05:00Z"}}),
        ),
        Call::new(post.clone(), token, for_nodes),
        Call::new(post.clone(), &secrets, secret(SECRET, "kubernetes.io/tls")),
        Call::get(format!("{secrets}/{SECRET}")),
        Call::get(format!("{secrets}?{one_secret}")),
        Call::get(format!("{secrets}?watch=true&timeoutSeconds=1&{one_secret}")),
        Call::new(patch.clone(), format!("{secrets}/{SECRET}"), json!({"data": {"ca.crt": "Q0E="}})),
        Call::new(patch.clone(), format!("{pod}/status"), status),
        Call::new(patch.clone(), &pod, release),
        Call::new(post.clone(), &events, event),
        Call::new(patch, format!("{events}/placed"), series),
        Call::new(post, format!("{pod}/eviction"), eviction),
    ]
}

/// A Secret with what the type for certificates demands.
fn secret(name: &str, kind: &str) -> Value {
    let annotations = json!({"kubernetes.io/service-account.name": "default"});
    json!({"metadata": {"name": name, "annotations": annotations}, "type": kind, "data": {"tls.crt": "", "tls.key": ""}})
}

/// What RBAC permits, and a guard does not.
fn refused_by_the_guard(own: &str) -> Vec<Call> {
    let secrets = format!("/api/v1/namespaces/{own}/secrets");
    let generated = json!({"metadata": {"generateName": SECRET}, "type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}});
    vec![
        Call::new(Method::POST, &secrets, secret("other", "kubernetes.io/tls")),
        Call::new(Method::POST, &secrets, secret("other", "kubernetes.io/service-account-token")),
        Call::new(Method::POST, &secrets, secret(SECRET, "kubernetes.io/service-account-token")),
        Call::new(Method::POST, &secrets, secret(SECRET, "Opaque")),
        Call::new(Method::POST, &secrets, generated),
    ]
}

/// What placement may do with `print rbac --webhook`.
fn permitted_for_the_webhook() -> Vec<Call> {
    let one = format!("fieldSelector=metadata.name%3D{NAME}");
    vec![
        Call::get(format!("{WEBHOOKS}?{one}")),
        Call::get(format!("{WEBHOOKS}?watch=true&timeoutSeconds=1&{one}")),
        Call::new(Method::PATCH, format!("{WEBHOOKS}/{NAME}"), json!({"webhooks": []})),
    ]
}

/// What placement may not do.
fn forbidden(own: &str, team: &str) -> Vec<Call> {
    let name = json!({"metadata": {"name": "other"}});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "vk-a"}});
    let pods = format!("/api/v1/namespaces/{team}/pods");
    let maps = format!("/api/v1/namespaces/{own}/configmaps");
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{own}/leases");
    let (patch, post, put, delete) = (Method::PATCH, Method::POST, Method::PUT, Method::DELETE);
    let empty = || json!({});
    vec![
        Call::get("/api/v1/nodes/vk-a"),
        Call::get("/api/v1/nodes/vk-a/proxy/pods"),
        Call::new(patch.clone(), "/api/v1/nodes/vk-a", empty()),
        Call::new(patch.clone(), "/api/v1/nodes/vk-a/status", empty()),
        Call::new(post.clone(), "/api/v1/nodes", node),
        Call::get(format!("{pods}/running")),
        Call::get(format!("{pods}/running/log")),
        Call::new(post.clone(), format!("{pods}/running/exec?command=id&stdout=true"), Value::Null),
        Call::new(post.clone(), format!("{pods}/running/attach?stdout=true"), Value::Null),
        Call::new(post.clone(), format!("{pods}/running/portforward?ports=80"), Value::Null),
        Call::new(post.clone(), format!("{pods}/running/binding"), empty()),
        Call::new(patch.clone(), format!("{pods}/running/ephemeralcontainers"), empty()),
        Call::new(patch.clone(), format!("{pods}/running/resize"), empty()),
        Call::new(post.clone(), &pods, name.clone()),
        Call::new(put.clone(), format!("{pods}/running"), empty()),
        Call::new(delete.clone(), format!("{pods}/running"), Value::Null),
        Call::new(delete.clone(), &pods, Value::Null),
        Call::get("/api/v1/secrets"),
        Call::get(format!("/api/v1/namespaces/{own}/secrets/any")),
        Call::get(format!("/api/v1/namespaces/{own}/secrets")),
        Call::get(format!("/api/v1/namespaces/{team}/secrets/{SECRET}")),
        Call::new(patch.clone(), format!("/api/v1/namespaces/{own}/secrets/any"), empty()),
        Call::new(delete.clone(), format!("/api/v1/namespaces/{own}/secrets/{SECRET}"), Value::Null),
        Call::new(
            post.clone(),
            format!("/api/v1/namespaces/{team}/secrets"),
            secret(SECRET, "kubernetes.io/tls"),
        ),
        Call::get(format!("{WEBHOOKS}?fieldSelector=metadata.name%3D{NAME}")),
        Call::new(patch.clone(), format!("{WEBHOOKS}/{NAME}"), empty()),
        Call::new(post.clone(), WEBHOOKS, name.clone()),
        Call::new(delete.clone(), format!("{WEBHOOKS}/{NAME}"), Value::Null),
        Call::new(post.clone(), format!("/api/v1/namespaces/{own}/serviceaccounts/default/token"), empty()),
        Call::new(post.clone(), format!("/api/v1/namespaces/{team}/serviceaccounts/{NAME}/token"), empty()),
        Call::get(format!("/api/v1/namespaces/{own}/serviceaccounts/{NAME}")),
        Call::get(&maps),
        Call::get(format!("{maps}/kube-root-ca.crt")),
        Call::get(format!("/api/v1/namespaces/{team}/configmaps/{NAME}")),
        Call::new(post.clone(), &maps, name.clone()),
        Call::new(patch.clone(), format!("{maps}/kube-root-ca.crt"), empty()),
        Call::new(delete.clone(), format!("{maps}/{NAME}"), Value::Null),
        Call::get(&leases),
        Call::get(format!("{leases}/other")),
        Call::new(patch.clone(), format!("{leases}/other"), empty()),
        Call::new(delete, format!("{leases}/{NAME}"), Value::Null),
        Call::new(
            post.clone(),
            format!("/apis/coordination.k8s.io/v1/namespaces/{team}/leases"),
            name.clone(),
        ),
        Call::get("/apis/batch/v1/jobs"),
        Call::get("/api/v1/persistentvolumeclaims"),
        Call::new(patch.clone(), format!("/api/v1/namespaces/{team}/persistentvolumeclaims/data"), empty()),
        Call::new(patch.clone(), format!("/apis/batch/v1/namespaces/{team}/jobs/train"), empty()),
        Call::get("/apis/events.k8s.io/v1/events"),
        // Its own limits.
        Call::new(
            patch,
            format!("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{NAME}-guard"),
            empty(),
        ),
        Call::new(post, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", name),
    ]
}

async fn kubectl(cluster: &ControlPlane, arguments: &[&str]) -> String {
    let output = vk_testing::kubectl(cluster, arguments).await.unwrap();
    assert_eq!(output.code, Some(0), "{arguments:?}: {}", output.stderr);
    output.stdout.trim().to_owned()
}

/// A client with a token of the ServiceAccount.
async fn placement(cluster: &ControlPlane, folder: &Path, namespace: &str) -> kube::Client {
    let token = kubectl(cluster, &["create", "token", NAME, "--namespace", namespace]).await;
    let path = folder.join("kubeconfig");
    cluster.write_token_kubeconfig(&path, &token).unwrap();
    let kubeconfig = Kubeconfig::read_from(&path).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    kube::Client::try_from(config).unwrap()
}

/// Applies what `print rbac` prints, and returns what kubectl says.
async fn apply_rbac(cluster: &ControlPlane, folder: &Path, namespace: &str, flags: &[&str]) -> String {
    let command = [&["placement", "print", "rbac"], flags].concat();
    let printed = vk(&command).env("VK_PLACEMENT_NAMESPACE", namespace).run().ok();
    let file = folder.join("rbac.yaml");
    fs::write(&file, printed).unwrap();
    kubectl(cluster, &["apply", "--filename", file.to_str().unwrap()]).await
}

async fn succeed(client: &kube::Client, calls: Vec<Call>) {
    for call in calls {
        // The API server learns of roles a moment later.
        eventually("placement does what it has to do", SOON, || async {
            let (code, error) = call.send(client).await;
            if code == 200 { Ok(()) } else { Err(error) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make test"]
async fn the_printed_permissions_of_placement_suffice_and_permit_nothing_else() {
    let cluster = &ControlPlane::start(Options::default()).await.unwrap();
    let folder = TempDir::new().unwrap();
    let (own, team) = (cluster.namespace("own").await.unwrap(), cluster.namespace("team").await.unwrap());
    let (own, team) = (own.name(), team.name());
    let applied = apply_rbac(cluster, folder.path(), own, &[]).await;
    assert_eq!(applied.lines().count(), 9, "{applied}");

    kubectl(cluster, &["create", "configmap", NAME, "--namespace", own]).await;
    kubectl(cluster, &["create", "job", "train", "--image", "none", "--namespace", team]).await;
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": team},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let file = folder.path().join("claim.json");
    fs::write(&file, claim.to_string()).unwrap();
    kubectl(cluster, &["create", "--filename", file.to_str().unwrap()]).await;
    let pods: Api<Pod> = Api::namespaced(cluster.admin().unwrap(), team);
    for (name, gates) in [("waiting", json!([{"name": GATE}])), ("running", json!([]))] {
        let containers = json!([{"name": "main", "image": "none"}]);
        let pod =
            json!({"metadata": {"name": name}, "spec": {"schedulingGates": gates, "containers": containers}});
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }

    let client = placement(cluster, folder.path(), own).await;
    let [in_force, others @ ..] = &refused_by_the_guard(own)[..] else { panic!("nothing is refused") };
    eventually("the guard is in force", SOON, || async {
        match in_force.send(&client).await {
            (422, error) if error.contains("placement may create only") => Ok(()),
            (code, error) => Err(format!("{code} {error}")),
        }
    })
    .await;
    for call in others {
        let (code, error) = call.send(&client).await;
        assert!(code == 422 && error.contains("placement may create only"), "{code} {error}");
    }
    succeed(&client, permitted(own, team)).await;
    assert!(pods.get_opt("waiting").await.unwrap().is_none(), "the pod is evicted");
    let mut wrong = Vec::new();
    for call in forbidden(own, team) {
        let (code, error) = call.send(&client).await;
        // The message of RBAC, not of the guard.
        if code != 403 || !error.contains("cannot") {
            wrong.push(format!("{code} {} {} {error}", call.method, call.path));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let applied = apply_rbac(cluster, folder.path(), own, &["--webhook"]).await;
    assert_eq!(applied.lines().count(), 13, "{applied}");
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": {"name": NAME},
    });
    let create = Call::new(Method::POST, WEBHOOKS, configuration);
    assert_eq!(create.send(&client).await.0, 403);
    assert_eq!(create.send(&cluster.admin().unwrap()).await, (200, String::new()));
    succeed(&client, permitted_for_the_webhook()).await;
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let change = Call::new(Method::PATCH, format!("{WEBHOOKS}/{NAME}"), labels);
    eventually("the guard of the webhook is in force", SOON, || async {
        match change.send(&client).await {
            (422, error) if error.contains("placement may change only the CAs") => Ok(()),
            (code, error) => Err(format!("{code} {error}")),
        }
    })
    .await;

    // A kubelet API asks the API server for these.
    let client = Client::fixed(client, Metrics::default());
    let on_node = |verb: &str, subresource: &str| AccessCheck {
        verb: verb.to_owned(),
        resource: "nodes".to_owned(),
        subresource: subresource.to_owned(),
        name: "vk-a".to_owned(),
        ..AccessCheck::default()
    };
    assert!(on_node("create", "placement").allowed(&client).await.unwrap());
    for subresource in ["proxy", "log", "stats", "metrics", "pods", "healthz", "configz"] {
        for verb in ["get", "create"] {
            assert!(!on_node(verb, subresource).allowed(&client).await.unwrap(), "{verb} {subresource}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make test"]
async fn the_published_manifests_of_placement_are_accepted() {
    let cluster = ControlPlane::shared().await;
    for file in ["deployment.yaml", "network-policy.yaml", "scheduler.yaml"] {
        let path = format!("{}/../deploy/placement/{file}", env!("CARGO_MANIFEST_DIR"));
        let applied = kubectl(cluster, &["apply", "--dry-run=server", "--filename", &path]).await;
        assert!(applied.contains("created (server dry run)"), "{applied}");
    }
}
