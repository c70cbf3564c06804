//! The identity of the process and its consequences.

use std::{fs, time::Duration};

use tempfile::TempDir;
use vk_testing::{
    ControlPlane,
    control_plane::{AUDIT_METADATA, Options},
    eventually, kubectl,
};

use super::{SOON, answers, becomes_ready, exists, node, ports, ready, run_as};

const MASTERS: &[&str] = &["system:masters"];
const NODES: &[&str] = &["system:nodes"];

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_replaced_kubeconfig_is_used_without_a_restart() {
    let options = Options { audit_policy: Some(AUDIT_METADATA.to_owned()), ..Options::default() };
    let cluster = ControlPlane::start(options).await.unwrap();
    let folder = TempDir::new().unwrap();
    let (path, next) = (folder.path().join("kubeconfig"), folder.path().join("next"));
    cluster.write_kubeconfig(&path, "first-admin", MASTERS).unwrap();
    let mut process = run_as(&path, &["--nodename", "reloads", "--lease-duration", "4s"]).start();
    becomes_ready(&cluster, "reloads").await;
    let audit = || fs::read_to_string(cluster.audit_log().unwrap()).unwrap();
    assert!(audit().contains("first-admin") && !audit().contains("second-admin"));

    cluster.write_kubeconfig(&next, "second-admin", MASTERS).unwrap();
    fs::rename(&next, &path).unwrap();
    let renewals = |user: &str| {
        let user = format!("\"username\":\"{user}\"");
        let of_lease = |line: &&str| line.contains(&user) && line.contains("\"resource\":\"leases\"");
        audit().lines().filter(of_lease).count()
    };
    eventually("the new user renews the lease", Duration::from_secs(10), || async {
        let count = renewals("second-admin");
        if count >= 2 { Ok(()) } else { Err(format!("{count} renewals")) }
    })
    .await;
    let (old, new) = (renewals("first-admin"), renewals("second-admin"));
    eventually("the new user goes on", Duration::from_secs(10), || async {
        if renewals("second-admin") >= new + 2 { Ok(()) } else { Err("no") }
    })
    .await;
    assert_eq!(renewals("first-admin"), old, "nobody uses the old credentials any more");
    assert!(process.is_running());
    assert_eq!(ready(&node(&cluster, "reloads").await)["status"], "True");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_node_identity_is_enough_for_its_node() {
    let cluster = ControlPlane::shared().await;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("kubeconfig");
    cluster.write_kubeconfig(&path, "system:node:restricted", NODES).unwrap();
    let mut process = run_as(&path, &["--nodename", "restricted"]).start();
    let node = becomes_ready(cluster, "restricted").await;
    assert_eq!(node["spec"]["taints"][0]["key"], "virtual-kubelet.io/provider", "{}", node["spec"]);
    let outcome = process.stop(Duration::from_secs(10)).await;
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert_eq!(ready(&super::node(cluster, "restricted").await)["reason"], "NodeShutdown");
    // And again, on the Node that is there.
    let _process = run_as(&path, &["--nodename", "restricted"]).start();
    becomes_ready(cluster, "restricted").await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn what_a_node_identity_may_not_do_is_refused_at_the_start() {
    let cluster = ControlPlane::shared().await;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("kubeconfig");
    cluster.write_kubeconfig(&path, "system:node:small", NODES).unwrap();

    let deleting =
        run_as(&path, &["--nodename", "small", "--shutdown-node", "delete"]).start().end(SOON).await;
    deleting.failed(2, &["shutdown.node:", "may not delete", "`leave`"]);
    let other = run_as(&path, &["--nodename", "other-than-small"]).start().end(SOON).await;
    other.failed(2, &["nodeName:", "node small", "other-than-small"]);
    let placing = run_as(&path, &["--nodename", "small"]).file("placement: {gates: estimate}\n");
    let placing = placing.start().end(SOON).await;
    placing.failed(
        2,
        &["placement:", "a node identity may not place pods", "`virtual-kubelet placement print rbac`"],
    );
    for name in ["small", "other-than-small"] {
        assert!(!exists(cluster, name).await, "{name}");
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_user_without_rights_waits_for_them_and_says_what_is_missing() {
    let cluster = ControlPlane::shared().await;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("kubeconfig");
    cluster.write_kubeconfig(&path, "newcomer", &[]).unwrap();
    let port = ports(1);
    let admin = format!("127.0.0.1:{port}");
    let process = run_as(&path, &["--nodename", "unlawful", "--metrics-addr", &admin]).start();
    eventually("the process says what it may not do", SOON, || async {
        let stderr = process.stderr();
        if stderr.contains("forbidden: User") && stderr.contains("newcomer") { Ok(()) } else { Err(stderr) }
    })
    .await;
    answers(port, "/readyz", 503, Duration::from_secs(1)).await;

    let binding =
        ["create", "clusterrolebinding", "newcomer", "--clusterrole=cluster-admin", "--user=newcomer"];
    let bound = kubectl(cluster, binding).await.unwrap();
    assert!(bound.success(), "{bound:?}");
    answers(port, "/readyz", 200, SOON).await;
    becomes_ready(cluster, "unlawful").await;
}
