//! Errors are visible on the upper pod and node, with the messages of the lower cluster.

use std::{fs, time::Duration};

use serde_json::{Value, json};
use vk_testing::eventually;

use super::{
    super::{becomes_ready, run_as},
    cluster_namespace::{condition, text},
    cluster_pair::{ClusterPair, SCHEDULED, lower, unready, upper},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_lower_kubeconfig_that_is_wrong_ends_the_command_with_the_file_and_the_mistake() {
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
async fn credentials_that_the_lower_cluster_takes_no_more_show_on_node_and_pod_until_they_are_renewed() {
    let (upper, lower) = (upper().await, lower().await);
    // The kubeconfig is a copy that is changed later.
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("lower.kubeconfig");
    let good = fs::read_to_string(lower.admin_kubeconfig()).unwrap();
    fs::write(&path, &good).unwrap();
    let pair = ClusterPair::open(upper, lower, "expired", 1, json!({"kubeconfig": path}), &[]).await;
    let namespaces = pair.namespace_pair("expired").await;
    namespaces.run(&pair.pod("before")).await;

    let mut expired: Value = serde_json::from_str(&good).unwrap();
    let certificate = lower.expired_client_certificate("somebody").unwrap();
    let encode = |text: &str| json!(k8s_openapi::ByteString(text.as_bytes().to_vec()));
    expired["users"][0]["user"] = json!({
        "client-certificate-data": encode(&certificate.cert_pem),
        "client-key-data": encode(&certificate.key_pem),
    });
    // As a whole, as those who renew credentials do it.
    let next = folder.path().join("next");
    fs::write(&next, expired.to_string()).unwrap();
    fs::rename(&next, &path).unwrap();
    unready(upper, &pair.node, "Unauthorized").await;
    // Bound by hand: the scheduler sends nothing to a node that is not Ready.
    let mut late = pair.pod("late");
    late["spec"]["nodeName"] = json!(pair.node);
    namespaces.above.create("pods", &late).await;
    namespaces.above.told("late", &["Unauthorized"]).await;
    let shown = namespaces
        .above
        .see("pods/late", "says why it waits", |pod| pod["status"].to_string().contains("Unauthorized"))
        .await;
    assert_eq!(shown["status"]["phase"], "Pending");
    let running = namespaces.above.get("pods/before").await;
    assert_eq!(running["status"]["phase"], "Running", "what runs goes on");

    fs::write(&next, good).unwrap();
    fs::rename(&next, &path).unwrap();
    becomes_ready(upper, &pair.node).await;
    namespaces.above.runs("late").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_claim_with_a_class_that_is_unknown_below_is_told_on_the_pod() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("class").await;
    // Bound above already, as by a provisioner there.
    let name = format!("pv-{}", namespaces.above.namespace);
    let volume = json!({"metadata": {"name": name}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast", "hostPath": {"path": "/tmp/never"},
        "claimRef": {"namespace": namespaces.above.namespace, "name": "data"}}});
    namespaces.above.create("persistentvolumes", &volume).await;
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
        "resources": {"requests": {"storage": "1Gi"}}}});
    namespaces.above.create("persistentvolumeclaims", &claim).await;
    let mut pod = pair.pod("writer");
    pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    namespaces.above.create("pods", &pod).await;
    namespaces.below.comes("persistentvolumeclaims/data").await;
    let waits = |pod: &Value| condition(pod, SCHEDULED)["status"] == "False";
    let told = namespaces.above.see("pods/writer", "is told that the lower scheduler waits", waits).await;
    assert!(text(&condition(&told, SCHEDULED)["message"]).contains("PersistentVolumeClaim"), "{told}");
    // What the lower cluster's controller says of the claim.
    namespaces.above.told("writer", &["\"fast\" not found"]).await;
    namespaces.remove("writer").await;
    namespaces.above.delete(&format!("persistentvolumes/{name}"), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_namespace_that_is_going_below_is_told_on_the_pod_and_the_pod_runs_when_it_is_gone() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("going").await;
    let name = namespaces.below.namespace.clone();
    let namespace = json!({"metadata": {"name": name, "finalizers": ["example.com/hold"]}});
    namespaces.below.create("namespaces", &namespace).await;
    namespaces.below.delete(&format!("namespaces/{name}"), None).await;
    let going = |it: &Value| it["status"]["phase"] == "Terminating";
    namespaces.below.see(&format!("namespaces/{name}"), "is going", going).await;
    namespaces.above.create("pods", &pair.pod("early")).await;
    namespaces.above.told("early", &["is being terminated"]).await;
    let says = |pod: &Value| pod["status"].to_string().contains("is being terminated");
    let shown = namespaces.above.see("pods/early", "says why it waits", says).await;
    assert_eq!(shown["status"]["phase"], "Pending");
    namespaces.below.patch(&format!("namespaces/{name}"), &json!({"metadata": {"finalizers": null}})).await;
    namespaces.above.runs("early").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn admiralty_20_and_119_a_namespace_without_a_place_below_is_told_on_the_pod_and_harms_nobody() {
    let (upper, lower) = (upper().await, lower().await);
    let mapped = lower.namespace("mapped").await.unwrap();
    let here = upper.namespace("mapped").await.unwrap();
    let map = json!({"namespaces": {here.name(): mapped.name()}});
    let pair = ClusterPair::open(upper, lower, "mapped", 1, map, &[]).await;
    let namespaces = pair.namespace_pair("unmapped").await;
    namespaces.above.create("pods", &pair.pod("stray")).await;
    namespaces.above.told("stray", &[&namespaces.above.namespace]).await;
    let (above, below) = (
        super::cluster_namespace::ClusterNamespace::new(upper, here.name()),
        super::cluster_namespace::ClusterNamespace::new(lower, mapped.name()),
    );
    above.create("pods", &pair.pod("settled")).await;
    above.runs("settled").await;
    below.runs("settled").await;
    eventually("the namespace was not made below", Duration::from_secs(1), || async {
        let found = below.find(&format!("namespaces/{}", namespaces.above.namespace)).await;
        found.map_or(Ok(()), |found| Err(found.to_string()))
    })
    .await;
    namespaces.above.delete("pods/stray", None).await;
    namespaces.above.goes("pods/stray").await;
}
