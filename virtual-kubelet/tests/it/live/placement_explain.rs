//! `virtual-kubelet placement` against running nodes.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use tempfile::TempDir;
use vk_testing::{ControlPlane, Output, control_plane::Namespace, eventually, kubectl};

use super::{SOON, becomes_ready, kubelet_port, node, permissions::apply, run};
use crate::{Outcome, vk};

/// Longer than a node remembers that somebody has no permission.
const PERMISSIONS: Duration = Duration::from_mins(1);

/// Creates a pod that no scheduler binds and that tolerates every taint: no controller removes those of new nodes here.
async fn create_pod(cluster: &ControlPlane, namespace: &Namespace, name: &str, cpu: &str) {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "nobody",
            "automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "main", "image": "example.com/app:1", "resources": {"requests": {"cpu": cpu}},
            }],
        },
    }))
    .unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.admin().unwrap(), namespace.name());
    pods.create(&PostParams::default(), &pod).await.unwrap();
}

async fn good(cluster: &ControlPlane, args: &[&str]) -> String {
    let output = kubectl(cluster, args).await.unwrap();
    assert!(output.success(), "kubectl {args:?}: {output:?}");
    output.stdout.trim().to_owned()
}

/// The kubeconfig of a new ServiceAccount with these ClusterRoles.
async fn account(
    cluster: &ControlPlane,
    namespace: &Namespace,
    folder: &TempDir,
    name: &str,
    roles: &[&str],
) -> PathBuf {
    let ns = namespace.name();
    good(cluster, &["-n", ns, "create", "serviceaccount", name]).await;
    for role in roles {
        let (role_flag, account) = (format!("--clusterrole={role}"), format!("--serviceaccount={ns}:{name}"));
        let binding = format!("{ns}-{name}-{role}");
        good(cluster, &["create", "clusterrolebinding", &binding, &role_flag, &account]).await;
    }
    let token = good(cluster, &["-n", ns, "create", "token", name]).await;
    let path = folder.path().join(name);
    cluster.write_token_kubeconfig(&path, &token).unwrap();
    path
}

/// Lets a ServiceAccount request tokens of itself, as deploy/placement/rbac-explain.yaml says.
async fn permit_tokens(cluster: &ControlPlane, namespace: &Namespace, name: &str) {
    let (ns, role) = (namespace.name(), format!("{name}-token"));
    let (only, account) = (format!("--resource-name={name}"), format!("--serviceaccount={ns}:{name}"));
    let tokens = ["--verb=create", "--resource=serviceaccounts/token", &only];
    good(cluster, &[&["-n", ns, "create", "role", &role][..], &tokens].concat()).await;
    let bound = format!("--role={role}");
    good(cluster, &["-n", ns, "create", "rolebinding", &role, &bound, &account]).await;
}

fn explain(kubeconfig: &Path, namespace: &Namespace, pod: &str) -> Outcome {
    let kubeconfig = kubeconfig.to_str().unwrap();
    vk(&["placement", "explain", pod, "-n", namespace.name(), "--kubeconfig", kubeconfig]).run()
}

/// The line of a table that begins with this node.
fn line<'a>(text: &'a str, node: &str) -> &'a str {
    let found = text.lines().find(|line| line.split(' ').next() == Some(node));
    found.unwrap_or_else(|| panic!("no line for {node} in:\n{text}"))
}

fn annotation(node: &Value, name: &str) -> String {
    node["metadata"]["annotations"][format!("virtual-kubelet.io/{name}")]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn explain_tells_what_a_node_says_and_needs_only_the_published_role() {
    let cluster = ControlPlane::shared().await;
    let (folder, namespace) = (TempDir::new().unwrap(), cluster.namespace("explain").await.unwrap());
    let config = folder.path().join("mock.yaml");
    fs::write(&config, "cpu: \"8\"\nfit: {lowerNodes: 4}\n").unwrap();
    let flags = [
        "--nodename",
        "answering",
        "--internal-ip",
        "127.0.0.1",
        "--provider-config",
        config.to_str().unwrap(),
    ];
    let _process = run(cluster, &flags).start();
    let object = becomes_ready(cluster, "answering").await;
    assert_eq!(annotation(&object, "placement"), "fit");
    assert!(annotation(&object, "serving-key").starts_with("sha256:"), "{object}");
    create_pod(cluster, &namespace, "big", "3").await;
    create_pod(cluster, &namespace, "small", "2").await;

    apply(cluster, "placement/rbac-explain.yaml").await;
    let role = "virtual-kubelet-placement-explain";
    let allowed = account(cluster, &namespace, &folder, "asker", &[role]).await;
    let explains = async |kubeconfig: &Path, wanted: &str| {
        eventually(&format!("the verdict has {wanted:?}"), PERMISSIONS, || async {
            let seen = explain(kubeconfig, &namespace, "big");
            if seen.code == 0 && line(&seen.stdout, "answering").contains(wanted) {
                return Ok(seen.ok());
            }
            Err(format!("{seen:#?}"))
        })
        .await
    };
    // The token of the account is for the API server. Without the permission to get another one, no node is asked.
    let text = explains(&allowed, "create serviceaccounts/token").await;
    let row = line(&text, "answering");
    let account_name = format!("{}/asker", namespace.name());
    assert!(row.contains("not asked: ") && row.contains(&account_name), "{text}");
    permit_tokens(cluster, &namespace, "asker").await;
    let refused = "0 of 4 lower nodes (4 insufficient cpu)";
    let text = explains(&allowed, refused).await;
    let summary = text.lines().next().unwrap();
    assert!(summary.contains(" nodes: ") && summary.contains(&format!("answering: {refused}")), "{text}");
    assert!(text.contains(&format!("Pod {}/big requests cpu 3.", namespace.name())), "{text}");
    let row = line(&text, "answering");
    assert!(row.ends_with(refused) && row.contains(" yes    no        yes       yes "), "{text}");
    assert_eq!(
        text.lines().filter(|line| line.starts_with("answering  ") && line.contains(" lower-")).count(),
        3
    );
    assert!(text.contains("cpu 2, memory "), "{text}");

    // An administrator with a client certificate, and a pod that fits.
    let text = explain(cluster.admin_kubeconfig(), &namespace, "small").ok();
    assert!(text.contains("answering: fits (room for 4, 100% full)"), "{text}");

    // The cluster's own machines are evaluated with what their pods request.
    let machine = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "explained-machine"},
        "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "110"}}});
    let file = folder.path().join("machine.json");
    fs::write(&file, machine.to_string()).unwrap();
    good(cluster, &["create", "--filename", file.to_str().unwrap()]).await;
    let text = explains(&allowed, refused).await;
    assert!(line(&text, "local").ends_with("unknown: another scheduler"), "{text}");
    let pods: Api<Pod> = Api::namespaced(cluster.admin().unwrap(), namespace.name());
    let gated = json!({"metadata": {"name": "gated"}, "spec": {
        "schedulingGates": [{"name": "example.com/wait"}],
        "containers": [{"name": "main", "image": "example.com/app:1", "resources": {"requests": {"cpu": "3"}}}],
    }});
    pods.create(&PostParams::default(), &serde_json::from_value(gated).unwrap()).await.unwrap();
    let text = explain(&allowed, &namespace, "gated").ok();
    let row = line(&text, "local");
    assert!(row.contains("0 of ") && row.contains(" nodes ("), "{text}");
    let may_get = ["create", "clusterrole", "only-gets", "--verb=get", "--resource=pods"];
    good(cluster, &may_get).await;
    let may_list = ["create", "clusterrole", "only-lists", "--verb=list", "--resource=nodes"];
    good(cluster, &may_list).await;
    let getter = account(cluster, &namespace, &folder, "getter", &["only-gets", "only-lists"]).await;
    let text = explains(&getter, "not asked: ").await;
    assert!(line(&text, "local").contains("needs the permission to list pods in all namespaces"), "{text}");
    good(cluster, &["delete", "node", "explained-machine"]).await;

    // Without the permission to ask, and without any.
    good(cluster, &["create", "clusterrole", "only-reads", "--verb=get,list", "--resource=nodes,pods"]).await;
    let reader = account(cluster, &namespace, &folder, "reader", &["only-reads"]).await;
    permit_tokens(cluster, &namespace, "reader").await;
    let text = explains(&reader, "create nodes/placement").await;
    assert!(line(&text, "answering").contains("not asked: "), "{text}");
    let nobody = account(cluster, &namespace, &folder, "nobody", &[]).await;
    explain(&nobody, &namespace, "big").refused(1, &[&["read pod", "big"]]);
    explain(cluster.admin_kubeconfig(), &namespace, "missing").refused(1, &[&["no pod \"missing\"", "-n"]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_node_can_be_asked_after_its_certificate_was_replaced() {
    let cluster = ControlPlane::shared().await;
    let (folder, namespace) = (TempDir::new().unwrap(), cluster.namespace("rotated").await.unwrap());
    let (cert, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    let write_pair = || {
        let pair = cluster.serving_certificate("rotated", &["127.0.0.1"]).unwrap();
        fs::write(&cert, pair.cert_pem).unwrap();
        fs::write(&key, pair.key_pem).unwrap();
    };
    write_pair();
    let flags = [
        "--nodename",
        "rotated",
        "--internal-ip",
        "127.0.0.1",
        "--tls-cert-file",
        cert.to_str().unwrap(),
        "--tls-private-key-file",
        key.to_str().unwrap(),
    ];
    let _process = run(cluster, &flags).start();
    let first = annotation(&becomes_ready(cluster, "rotated").await, "serving-key");
    create_pod(cluster, &namespace, "small", "1").await;
    let fits = || explain(cluster.admin_kubeconfig(), &namespace, "small").ok().contains("rotated: fits");
    assert!(fits());
    write_pair();
    eventually("the node publishes the new key", SOON, || async {
        let now = annotation(&node(cluster, "rotated").await, "serving-key");
        if now == first { Err(now) } else { Ok(()) }
    })
    .await;
    assert!(fits());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_token_that_nodes_get_opens_nothing_else_on_a_node() {
    let cluster = ControlPlane::shared().await;
    let (folder, namespace) = (TempDir::new().unwrap(), cluster.namespace("limited").await.unwrap());
    let _process = run(cluster, &["--nodename", "limited", "--internal-ip", "127.0.0.1"]).start();
    let server = format!("https://127.0.0.1:{}", kubelet_port(&becomes_ready(cluster, "limited").await));
    // Whoever has this token for the API server can do everything with the node.
    let own = account(cluster, &namespace, &folder, "almighty", &["cluster-admin"]).await;
    let audience = "--audience=placement.virtual-kubelet.io";
    let token = good(cluster, &["-n", namespace.name(), "create", "token", "almighty", audience]).await;
    let limited = folder.path().join("limited");
    cluster.write_token_kubeconfig(&limited, &token).unwrap();
    let query = folder.path().join("query.json");
    fs::write(&query, json!({"pods": [{"spec": {"containers": []}}]}).to_string()).unwrap();
    let ask = ["create", "--raw", "/placement/fit", "-f", query.to_str().unwrap()];
    let on_node = async |kubeconfig: &Path, args: &[&str]| {
        let way = ["--kubeconfig", kubeconfig.to_str().unwrap(), "--server", &server];
        kubectl(cluster, [&way[..], &["--insecure-skip-tls-verify"], args].concat()).await.unwrap()
    };
    for kubeconfig in [&own, &limited] {
        eventually("the node answers", PERMISSIONS, || async {
            let seen = on_node(kubeconfig, &ask).await;
            if seen.success() && seen.stdout.contains("verdicts") { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
    }
    // What kubectl makes of 401.
    let unauthorized = |seen: &Output| !seen.success() && seen.stderr.contains("You must be logged in");
    for path in ["/pods", "/healthz", "/configz", "/metrics", "/stats/summary", "/runningpods/"] {
        let seen = on_node(&own, &["get", "--raw", path]).await;
        assert!(seen.success(), "{path}: {seen:?}");
        let seen = on_node(&limited, &["get", "--raw", path]).await;
        assert!(unauthorized(&seen), "{path}: {seen:?}");
    }
    let exec = ["create", "--raw", "/exec/default/web/main?command=true&output=1", "-f", ask[4]];
    let seen = on_node(&limited, &exec).await;
    assert!(unauthorized(&seen), "{seen:?}");
    // Nor does the API server take it.
    for (kubeconfig, accepted) in [(&own, true), (&limited, false)] {
        let args = ["--kubeconfig", kubeconfig.to_str().unwrap(), "get", "nodes"];
        let seen = kubectl(cluster, args).await.unwrap();
        assert!(if accepted { seen.success() } else { unauthorized(&seen) }, "{seen:?}");
    }
}
