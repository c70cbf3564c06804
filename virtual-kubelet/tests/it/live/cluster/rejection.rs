//! Errors are shown where people look: on the pod and on the node, with the message of the lower cluster.

use std::{fs, time::Duration};

use serde_json::{Value, json};
use vk_testing::eventually;

use super::{
    super::{becomes_ready, run_as},
    cluster_pair::{ClusterPair, SCHEDULED, lower, unready, upper},
    namespace_client::{condition, text},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn an_invalid_lower_kubeconfig_ends_the_command_with_path_and_error() {
    let upper = upper().await;
    let folder = tempfile::TempDir::new().unwrap();
    let missing = folder.path().join("missing.kubeconfig");
    let garbage = folder.path().join("garbage.kubeconfig");
    fs::write(&garbage, "clusters: 7\n").unwrap();
    for (file, words) in [(&missing, "No such file"), (&garbage, "expected sequence")] {
        let config = folder.path().join("provider.json");
        fs::write(&config, json!({"kubeconfig": file}).to_string()).unwrap();
        let flags = [
            "--provider",
            "cluster",
            "--nodename",
            "vk-wrong",
            "--provider-config",
            config.to_str().unwrap(),
        ];
        let outcome = run_as(upper.admin_kubeconfig(), &flags).start().end(Duration::from_mins(1)).await;
        assert_ne!(outcome.code, 0, "{outcome:#?}");
        let error = outcome.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
        assert!(error.contains(file.to_str().unwrap()) && error.contains(words), "{outcome:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn expired_credentials_are_shown_on_node_and_pod_until_renewed() {
    let (upper, lower) = (upper().await, lower().await);
    // A copy of the kubeconfig that can be changed while the command runs.
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("lower.kubeconfig");
    let good = fs::read_to_string(lower.admin_kubeconfig()).unwrap();
    fs::write(&path, &good).unwrap();
    let pair = ClusterPair::open(upper, lower, "expired", 1, json!({"kubeconfig": path}), &[]).await;
    let namespace = pair.test_namespace("expired").await;
    namespace.run(&pair.pod("before")).await;

    let mut expired: Value = serde_json::from_str(&good).unwrap();
    let certificate = lower.expired_client_certificate("somebody").unwrap();
    let encode = |text: &str| json!(k8s_openapi::ByteString(text.as_bytes().to_vec()));
    expired["users"][0]["user"] = json!({
        "client-certificate-data": encode(&certificate.cert_pem),
        "client-key-data": encode(&certificate.key_pem),
    });
    // Replaced atomically, like by tools that renew credentials.
    let next = folder.path().join("next");
    fs::write(&next, expired.to_string()).unwrap();
    fs::rename(&next, &path).unwrap();
    unready(upper, &pair.node, "Unauthorized").await;
    // Bound by hand, because the scheduler avoids nodes that are not Ready.
    let mut late = pair.pod("late");
    late["spec"]["nodeName"] = json!(pair.node);
    namespace.upper.create("pods", &late).await;
    namespace.upper.wait_event("late", &["Unauthorized"]).await;
    let shown = namespace
        .upper
        .wait_for("pods/late", "says why it waits", |pod| pod["status"].to_string().contains("Unauthorized"))
        .await;
    assert_eq!(shown["status"]["phase"], "Pending");
    let running = namespace.upper.get("pods/before").await;
    assert_eq!(running["status"]["phase"], "Running", "what runs goes on");

    fs::write(&next, good).unwrap();
    fs::rename(&next, &path).unwrap();
    becomes_ready(upper, &pair.node).await;
    namespace.upper.wait_running("late").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_claim_with_an_unknown_lower_class_is_reported_on_the_pod() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("class").await;
    // Bound already in the upper cluster, as by a provisioner.
    let name = format!("pv-{}", namespace.upper.namespace);
    let volume = json!({"metadata": {"name": name}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast", "hostPath": {"path": "/tmp/never"},
        "claimRef": {"namespace": namespace.upper.namespace, "name": "data"}}});
    namespace.upper.create("persistentvolumes", &volume).await;
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
        "resources": {"requests": {"storage": "1Gi"}}}});
    namespace.upper.create("persistentvolumeclaims", &claim).await;
    let mut pod = pair.pod("writer");
    pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    namespace.upper.create("pods", &pod).await;
    namespace.lower.wait_exists("persistentvolumeclaims/data").await;
    let waits = |pod: &Value| condition(pod, SCHEDULED)["status"] == "False";
    let told = namespace.upper.wait_for("pods/writer", "is told that the lower scheduler waits", waits).await;
    assert!(text(&condition(&told, SCHEDULED)["message"]).contains("PersistentVolumeClaim"), "{told}");
    // The message of the lower controller about the claim.
    namespace.upper.wait_event("writer", &["\"fast\" not found"]).await;
    namespace.remove("writer").await;
    namespace.upper.delete(&format!("persistentvolumes/{name}"), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_terminating_lower_namespace_delays_the_pod() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("going").await;
    let name = namespace.lower.namespace.clone();
    let held = json!({"metadata": {"name": name, "finalizers": ["example.com/hold"]}});
    namespace.lower.create("namespaces", &held).await;
    namespace.lower.delete(&format!("namespaces/{name}"), None).await;
    let going = |it: &Value| it["status"]["phase"] == "Terminating";
    namespace.lower.wait_for(&format!("namespaces/{name}"), "is going", going).await;
    namespace.upper.create("pods", &pair.pod("early")).await;
    namespace.upper.wait_event("early", &["is being terminated"]).await;
    let says = |pod: &Value| pod["status"].to_string().contains("is being terminated");
    let shown = namespace.upper.wait_for("pods/early", "says why it waits", says).await;
    assert_eq!(shown["status"]["phase"], "Pending");
    namespace.lower.patch(&format!("namespaces/{name}"), &json!({"metadata": {"finalizers": null}})).await;
    namespace.upper.wait_running("early").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn admiralty_20_and_119_an_unmapped_namespace_is_reported_on_the_pod() {
    let (upper, lower) = (upper().await, lower().await);
    let place = lower.namespace("mapped").await.unwrap();
    let here = upper.namespace("mapped").await.unwrap();
    let map = json!({"namespaces": {here.name(): place.name()}});
    let pair = ClusterPair::open(upper, lower, "mapped", 1, map, &[]).await;
    let namespace = pair.test_namespace("unmapped").await;
    namespace.upper.create("pods", &pair.pod("stray")).await;
    namespace.upper.wait_event("stray", &[&namespace.upper.namespace]).await;
    let (above, below) = (
        super::namespace_client::NamespaceClient::new(upper, here.name()),
        super::namespace_client::NamespaceClient::new(lower, place.name()),
    );
    above.create("pods", &pair.pod("settled")).await;
    above.wait_running("settled").await;
    below.wait_running("settled").await;
    eventually("the namespace was not made below", Duration::from_secs(1), || async {
        let found = below.find(&format!("namespaces/{}", namespace.upper.namespace)).await;
        found.map_or(Ok(()), |found| Err(found.to_string()))
    })
    .await;
    namespace.upper.delete("pods/stray", None).await;
    namespace.upper.wait_deleted("pods/stray").await;
}
