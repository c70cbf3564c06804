//! `virtual-kubelet placement` against running nodes.

use std::{fs, path::PathBuf, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use tempfile::TempDir;
use vk_testing::{ControlPlane, control_plane::Namespace, eventually, kubectl};

use super::{SOON, becomes_ready, node, permissions::apply, run};
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

fn explain(kubeconfig: &std::path::Path, namespace: &Namespace, pod: &str) -> Outcome {
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
    let text = eventually("the node answers the account", PERMISSIONS, || async {
        let seen = explain(&allowed, &namespace, "big");
        if seen.code == 0 && !line(&seen.stdout, "answering").contains("403") {
            return Ok(seen.ok());
        }
        Err(format!("{seen:#?}"))
    })
    .await;
    let refused = "0 of 4 lower nodes (4 insufficient cpu)";
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

    // Without the permission to ask, and without any.
    good(cluster, &["create", "clusterrole", "only-reads", "--verb=get,list", "--resource=nodes,pods"]).await;
    let reader = account(cluster, &namespace, &folder, "reader", &["only-reads"]).await;
    let text = eventually("the account may read", PERMISSIONS, || async {
        let seen = explain(&reader, &namespace, "big");
        if seen.code == 0 { Ok(seen.stdout) } else { Err(seen.stderr) }
    })
    .await;
    let row = line(&text, "answering");
    assert!(row.contains("not asked: ") && row.contains("create nodes/placement"), "{text}");
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
