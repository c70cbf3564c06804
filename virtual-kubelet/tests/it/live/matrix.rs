//! Permissions of a node identity, row by row, and that a node only needs those. The rows are facts of the API server: if one
//! changes, one of our decisions may have to change.

use std::{collections::BTreeMap, fs, time::Duration};

use http::{Method, Request};
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use kube::client::Body;
use serde_json::{Value, json};
use tempfile::TempDir;
use vk_kube::{Client, Metrics, Objects, Selector};
use vk_testing::{
    ControlPlane,
    control_plane::{AUDIT_METADATA, Options},
    eventually,
};

use super::{SOON, becomes_ready, nodes, run_as};

const NODES: &[&str] = &["system:nodes"];
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON: &str = "application/json";

/// One try: what, by which call, and how it ends.
struct Row {
    what: &'static str,
    method: Method,
    path: String,
    kind: &'static str,
    body: Value,
    code: u16,
}

fn row(what: &'static str, method: Method, path: impl Into<String>, body: Value, code: u16) -> Row {
    Row { what, method, path: path.into(), kind: JSON, body, code }
}

impl Row {
    fn patching(self, kind: &'static str) -> Self {
        Self { kind, ..self }
    }

    /// Makes the call and tells the status code.
    async fn attempt(&self, client: &kube::Client) -> (u16, String) {
        let body = if self.body.is_null() { Vec::new() } else { self.body.to_string().into_bytes() };
        let request = Request::builder()
            .method(self.method.clone())
            .uri(&self.path)
            .header("content-type", self.kind)
            .body(Body::from(body))
            .unwrap();
        let answer = client.send(request).await.unwrap();
        let code = answer.status().as_u16();
        // A watch that is let in has no end.
        let text = if self.path.contains("watch=true") && code == 200 {
            String::new()
        } else {
            String::from_utf8_lossy(&answer.into_body().collect_bytes().await.unwrap()).into_owned()
        };
        (code, text)
    }
}

/// A node that is registered, with a pod that is bound to it.
struct Scene {
    node: String,
    namespace: String,
    pod_uid: String,
}

impl Scene {
    async fn set(cluster: &ControlPlane, node: &str) -> Self {
        let admin = Client::fixed(cluster.admin().unwrap(), Metrics::default());
        let namespace = cluster.namespace(node).await.unwrap().name().to_owned();
        let secrets: Objects<Secret> = Objects::namespaced(admin.clone(), &namespace);
        for name in ["named", "of-account", "unrelated"] {
            let secret = json!({"metadata": {"name": name}, "stringData": {"a": "b"}});
            secrets.create(&serde_json::from_value(secret).unwrap()).await.unwrap();
        }
        let accounts: Objects<ServiceAccount> = Objects::namespaced(admin.clone(), &namespace);
        let account = json!({"metadata": {"name": "owner"}, "secrets": [{"name": "of-account"}]});
        accounts.create(&serde_json::from_value(account).unwrap()).await.unwrap();
        let pods: Objects<Pod> = Objects::namespaced(admin, &namespace);
        let pod = json!({"metadata": {"name": "guest"}, "spec": {
            "nodeName": node, "serviceAccountName": "owner", "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "i", "envFrom": [{"secretRef": {"name": "named"}}]}],
            "volumes": [{"name": "token", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token", "audience": "vault"}},
            ]}}],
        }});
        let pod = pods.create(&serde_json::from_value(pod).unwrap()).await.unwrap();
        let neighbour = json!({"metadata": {"name": format!("{node}-neighbour")}});
        nodes(cluster).create(&serde_json::from_value(neighbour).unwrap()).await.unwrap();
        Self { node: node.to_owned(), namespace, pod_uid: pod.metadata.uid.unwrap() }
    }

    fn token(audience: &str, uid: &str) -> Value {
        let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "guest", "uid": uid});
        json!({"spec": {"audiences": [audience], "boundObjectRef": bound}})
    }

    fn rows(&self) -> Vec<Row> {
        let Self { node, namespace, pod_uid } = self;
        let own = format!("/api/v1/nodes/{node}");
        let pods = "/api/v1/pods";
        let guest = format!("/api/v1/namespaces/{namespace}/pods/guest");
        let secret = |name: &str| format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        let tokens = format!("/api/v1/namespaces/{namespace}/serviceaccounts/owner/token");
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        let lease = |name: &str| json!({"metadata": {"name": name}, "spec": {"leaseDurationSeconds": 40}});
        let unbound = json!({"spec": {"audiences": ["vault"]}});
        let elsewhere = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
        let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
        let nobody = "00000000-0000-0000-0000-000000000000";
        let other = format!("/api/v1/nodes/{node}-neighbour");
        vec![
            row("read its Node", Method::GET, own.as_str(), Value::Null, 200),
            row("read another Node", Method::GET, other.as_str(), Value::Null, 403),
            row("read its Node's status apart", Method::GET, format!("{own}/status"), Value::Null, 403),
            row(
                "write a label of a kubelet",
                Method::PATCH,
                own.as_str(),
                json!({"metadata": {"labels": {"kubernetes.io/os": "linux"}}}),
                200,
            )
            .patching(MERGE),
            row(
                "write a reserved label",
                Method::PATCH,
                own.as_str(),
                json!({"metadata": {"labels": {"kubernetes.io/role": "x"}}}),
                403,
            )
            .patching(MERGE),
            row(
                "write a condition",
                Method::PATCH,
                format!("{own}/status"),
                json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
                200,
            )
            .patching(STRATEGIC),
            row(
                "change its taints",
                Method::PATCH,
                own.as_str(),
                json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}),
                403,
            )
            .patching(MERGE),
            row(
                "write another Node",
                Method::PATCH,
                other.as_str(),
                json!({"metadata": {"labels": {"a": "b"}}}),
                403,
            )
            .patching(MERGE),
            row("delete its Node", Method::DELETE, own.as_str(), Value::Null, 403),
            row(
                "list its pods",
                Method::GET,
                format!("{pods}?fieldSelector=spec.nodeName%3D{node}"),
                Value::Null,
                200,
            ),
            row(
                "watch its pods",
                Method::GET,
                format!("{pods}?watch=true&fieldSelector=spec.nodeName%3D{node}"),
                Value::Null,
                200,
            ),
            row("list all pods", Method::GET, pods, Value::Null, 403),
            row("watch all pods", Method::GET, format!("{pods}?watch=true"), Value::Null, 403),
            row(
                "list another node's pods",
                Method::GET,
                format!("{pods}?fieldSelector=spec.nodeName%3D{node}-neighbour"),
                Value::Null,
                403,
            ),
            row(
                "annotate a pod through its status",
                Method::PATCH,
                format!("{guest}/status"),
                json!({"metadata": {"annotations": {"a": "b"}}}),
                200,
            )
            .patching(MERGE),
            row(
                "label a pod through its status",
                Method::PATCH,
                format!("{guest}/status"),
                json!({"metadata": {"labels": {"a": "b"}}}),
                403,
            )
            .patching(MERGE),
            row(
                "write a pod",
                Method::PATCH,
                guest.as_str(),
                json!({"metadata": {"annotations": {"a": "b"}}}),
                403,
            )
            .patching(MERGE),
            row("read a Secret that its pod names", Method::GET, secret("named"), Value::Null, 200),
            row(
                "read a Secret that only the account names",
                Method::GET,
                secret("of-account"),
                Value::Null,
                403,
            ),
            row("read a Secret that nobody names", Method::GET, secret("unrelated"), Value::Null, 403),
            row(
                "list Secrets",
                Method::GET,
                format!("/api/v1/namespaces/{namespace}/secrets"),
                Value::Null,
                403,
            ),
            row("a token for its pod", Method::POST, tokens.as_str(), Self::token("vault", pod_uid), 201),
            row("a token for no pod", Method::POST, tokens.as_str(), unbound, 403),
            row(
                "a token for a pod of another UID",
                Method::POST,
                tokens.as_str(),
                Self::token("vault", nobody),
                403,
            ),
            row(
                "a token for an audience that no volume names",
                Method::POST,
                tokens.as_str(),
                Self::token("other", pod_uid),
                403,
            ),
            row("make its lease", Method::POST, leases, lease(node), 201),
            row("read its lease", Method::GET, format!("{leases}/{node}"), Value::Null, 200),
            row(
                "write its lease",
                Method::PATCH,
                format!("{leases}/{node}"),
                json!({"spec": {"holderIdentity": "x"}}),
                200,
            )
            .patching(MERGE),
            row(
                "watch its lease",
                Method::GET,
                format!("{leases}?watch=true&fieldSelector=metadata.name%3D{node}"),
                Value::Null,
                403,
            ),
            row("delete its lease", Method::DELETE, format!("{leases}/{node}"), Value::Null, 200),
            row("make another lease", Method::POST, leases, lease("another"), 403),
            row("make a lease elsewhere", Method::POST, elsewhere, lease(node), 403),
            row(
                "read the cluster's client authority",
                Method::GET,
                "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
                Value::Null,
                403,
            ),
            row("list Services", Method::GET, "/api/v1/services", Value::Null, 200),
            row(
                "list requests for certificates",
                Method::GET,
                format!("{requests}?limit=1"),
                Value::Null,
                200,
            ),
            row(
                "ask who a token belongs to",
                Method::POST,
                "/apis/authentication.k8s.io/v1/tokenreviews",
                json!({"spec": {"token": "t"}}),
                201,
            ),
            row(
                "ask what somebody may do",
                Method::POST,
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                json!({"spec": {"user": "u", "nonResourceAttributes": {"path": "/", "verb": "get"}}}),
                201,
            ),
        ]
    }
}

/// Registers the node with the labels that it may have, and tries those that it may not have first.
async fn register(client: &kube::Client, node: &str) {
    let object = |labels: Value| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}});
    for label in [
        "kubernetes.io/role",
        "node-role.kubernetes.io/agent",
        "alpha.service-controller.kubernetes.io/exclude-balancer",
        "node-restriction.kubernetes.io/x",
    ] {
        let refused = row(label, Method::POST, "/api/v1/nodes", object(json!({label: "x"})), 403);
        let (code, text) = refused.attempt(client).await;
        assert_eq!(code, 403, "{label}: {text}");
    }
    let allowed = json!({
        "type": "virtual-kubelet", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": node, "beta.kubernetes.io/os": "linux",
        "node.kubernetes.io/exclude-from-external-load-balancers": "true",
        "node.kubernetes.io/exclude-disruption": "true",
    });
    let (code, text) = row("all", Method::POST, "/api/v1/nodes", object(allowed), 201).attempt(client).await;
    assert_eq!(code, 201, "{text}");
}

/// Goes through the matrix and tells what came out otherwise.
async fn differences(client: &kube::Client, scene: &Scene) -> Vec<String> {
    let named = row(
        "",
        Method::GET,
        format!("/api/v1/namespaces/{}/secrets/named", scene.namespace),
        Value::Null,
        200,
    );
    eventually("the authorizer has seen the pod", SOON, || async {
        let (code, text) = named.attempt(client).await;
        if code == 200 { Ok(()) } else { Err(text) }
    })
    .await;
    let mut found = Vec::new();
    for row in scene.rows() {
        let (code, text) = row.attempt(client).await;
        if code != row.code {
            found.push(format!("{}: {code} and not {}: {text}", row.what, row.code));
        }
    }
    found
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_api_server_lets_a_node_do_what_the_matrix_says() {
    let cluster = ControlPlane::shared().await;
    let client = cluster.node_client("matrix").unwrap();
    register(&client, "matrix").await;
    let scene = Scene::set(cluster, "matrix").await;
    assert_eq!(differences(&client, &scene).await, Vec::<String>::new());
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn whoever_impersonates_a_node_is_let_do_the_same() {
    let cluster = ControlPlane::shared().await;
    let admin = Client::fixed(cluster.admin().unwrap(), Metrics::default());
    let client = admin.impersonating("mask").kube();
    register(&client, "mask").await;
    let scene = Scene::set(cluster, "mask").await;
    assert_eq!(differences(&client, &scene).await, Vec::<String>::new());
}

/// How many calls a user made, and those that were forbidden to the last: right after a pod is bound the authorizer may not
/// know of it for some milliseconds.
fn forbidden(cluster: &ControlPlane, user: &str) -> (usize, Vec<String>) {
    let log = fs::read_to_string(cluster.audit_log().unwrap()).unwrap();
    let entries: Vec<Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|entry| entry["user"]["username"] == user)
        .collect();
    let mut last = BTreeMap::new();
    for entry in &entries {
        let uri = entry["requestURI"].as_str().unwrap().split('?').next().unwrap();
        last.insert(format!("{} {uri}", entry["verb"]), &entry["responseStatus"]);
    }
    // The one thing that a node asks for and may be refused: see the matrix.
    last.retain(|call, _| !call.ends_with("/configmaps/extension-apiserver-authentication"));
    let forbidden = last.into_iter().filter(|(_, status)| status["code"] == 403);
    (entries.len(), forbidden.map(|(call, status)| format!("{call}: {status}")).collect())
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_node_with_pods_is_forbidden_nothing() {
    const PODS: usize = 20;
    let options = Options { audit_policy: Some(AUDIT_METADATA.to_owned()), ..Options::default() };
    let cluster = &ControlPlane::start(options).await.unwrap();
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("kubeconfig");
    cluster.write_kubeconfig(&path, "system:node:lawful", NODES).unwrap();
    // Labels that it may not have, and one that it may.
    let labels = "kubernetes.io/role=agent,node-role.kubernetes.io/agent=,example.com/a=b";
    let flags =
        ["--nodename", "lawful", "--labels", labels, "--lease-duration", "4s", "--status-interval", "1s"];
    let mut process = run_as(&path, &flags).start();
    let node = becomes_ready(cluster, "lawful").await;
    assert_eq!(node["metadata"]["labels"]["example.com/a"], "b");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/role"], Value::Null);

    let namespace = cluster.namespace("lawful").await.unwrap();
    let admin = Client::fixed(cluster.admin().unwrap(), Metrics::default());
    let pods: Objects<Pod> = Objects::namespaced(admin, namespace.name());
    for index in 0..PODS {
        let name = format!("guest-{index}");
        let spec = json!({"nodeName": "lawful", "terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "i"}]});
        pods.create(&serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap())
            .await
            .unwrap();
    }
    let list = async || pods.list(&Selector::default()).await.map_err(|error| error.to_string());
    let all = eventually("all pods run", SOON, || async {
        let all = list().await?.objects;
        let running = |pod: &Pod| json!(pod)["status"]["phase"] == "Running";
        let count = all.iter().filter(|pod| running(pod)).count();
        if count == PODS { Ok(all) } else { Err(format!("{count} of {}", all.len())) }
    })
    .await;
    for pod in all {
        pods.delete(&pod.metadata.name.unwrap(), &pod.metadata.uid.unwrap()).await.unwrap();
    }
    eventually("all pods are gone", SOON, || async {
        let left = list().await?.objects.len();
        if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
    })
    .await;
    assert_eq!(process.stop(Duration::from_secs(10)).await.code, 0);
    let (calls, refused) = forbidden(cluster, "system:node:lawful");
    assert!(calls > 3 * PODS, "{calls} calls");
    assert_eq!(refused, Vec::<String>::new());
    assert_eq!(process.stderr().matches("kubernetes.io/role").count(), 1, "what was left out is told once");
}
