//! Workloads of upper controllers, whose pods run in the lower cluster.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use vk_testing::eventually;

use super::{
    cluster_pair::{ClusterPair, ORIGIN_UID, TestNamespace, lower, upper},
    namespace_client::{NamespaceClient, TIMEOUT, text},
};

/// Pods by UID: in the upper cluster those that are not being deleted, in the lower cluster by the UID of their upper pods.
async fn pods(client: &NamespaceClient<'_>, below: bool) -> BTreeMap<String, String> {
    let all = client.list("pods").await;
    let uid = |pod: &Value| {
        let uid = if below { &pod["metadata"]["labels"][ORIGIN_UID] } else { &pod["metadata"]["uid"] };
        text(uid).to_owned()
    };
    all.iter().map(|pod| (uid(pod), text(&pod["status"]["phase"]).to_owned())).collect()
}

/// Waits until both clusters have the same number of pods, all of them running.
pub(super) async fn agree(above: &NamespaceClient<'_>, below: &NamespaceClient<'_>, count: usize) {
    eventually(&format!("both sides have the same {count} pods"), TIMEOUT, || async {
        let (upper, lower) = (pods(above, false).await, pods(below, true).await);
        let run = upper.values().all(|phase| phase == "Running");
        if upper == lower && run && upper.len() == count {
            Ok(())
        } else {
            Err(format!("{upper:?} {lower:?}"))
        }
    })
    .await;
}

/// The fields that Deployments and StatefulSets share, with pods for the virtual node.
pub(super) fn workload(namespace: &TestNamespace<'_>, name: &str, replicas: usize) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": namespace.pair.pod_spec()},
    }})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_deployment_is_rolled_out_scaled_and_deleted_in_the_lower_cluster() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("rollout").await;
    namespace.upper.create("deployments", &workload(&namespace, "web", 6)).await;
    namespace.upper.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await;
    agree(&namespace.upper, &namespace.lower, 6).await;
    namespace.upper.kubectl(&["set", "image", "deployment/web", "main=example.com/app:2"]).await;
    namespace.upper.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await;
    agree(&namespace.upper, &namespace.lower, 6).await;
    for lower_pod in namespace.lower.list("pods").await {
        assert_eq!(lower_pod["spec"]["containers"][0]["image"], "example.com/app:2");
    }
    namespace.upper.kubectl(&["scale", "deployment/web", "--replicas=2"]).await;
    agree(&namespace.upper, &namespace.lower, 2).await;
    namespace.upper.delete("deployments/web", None).await;
    agree(&namespace.upper, &namespace.lower, 0).await;
    // The Deployment is not visible in the lower cluster.
    assert!(namespace.lower.list("replicasets").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn admiralty_7_a_pod_of_the_same_name_waits_for_its_predecessor() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("namesake").await;
    let mut set = workload(&namespace, "db", 2);
    set["spec"]["serviceName"] = json!("db");
    // Its termination takes a while.
    set["spec"]["template"]["metadata"]["annotations"] = json!({"mock.virtual-kubelet.io/stop-delay": "2s"});
    set["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(30);
    namespace.upper.create("statefulsets", &set).await;
    namespace.upper.kubectl(&["rollout", "status", "statefulset/db", "--timeout=90s"]).await;
    let before = namespace.lower.get("pods/db-0").await;
    // With force: the name is free at once in the upper cluster, and the controller creates the next pod while the first lower pod still
    // runs.
    namespace.upper.delete("pods/db-0", Some(0)).await;
    let next = namespace
        .upper
        .wait_for("pods/db-0", "has a successor", |pod| {
            pod["metadata"]["uid"] != before["metadata"]["labels"][ORIGIN_UID]
        })
        .await;
    if namespace
        .lower
        .find("pods/db-0")
        .await
        .is_some_and(|pod| pod["metadata"]["uid"] == before["metadata"]["uid"])
    {
        assert_ne!(next["status"]["phase"], "Running", "it appears to run with the lower pod of another");
    }
    namespace.upper.wait_running("db-0").await;
    let after = namespace.lower.wait_running("db-0").await;
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["metadata"]["labels"][ORIGIN_UID], next["metadata"]["uid"]);
    agree(&namespace.upper, &namespace.lower, 2).await;
    namespace.upper.delete("statefulsets/db", None).await;
    agree(&namespace.upper, &namespace.lower, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn draining_the_virtual_node_respects_the_disruption_budget() {
    let (upper, lower) = (upper().await, lower().await);
    let pair = ClusterPair::open(upper, lower, "drained", 1, json!({}), &[]).await;
    let namespace = pair.test_namespace("drained").await;
    namespace.upper.create("deployments", &workload(&namespace, "web", 3)).await;
    let budget = json!({"metadata": {"name": "web"}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    namespace.upper.create("poddisruptionbudgets", &budget).await;
    namespace.upper.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await;
    agree(&namespace.upper, &namespace.lower, 3).await;
    // The budget allows one eviction, and the replacement finds no node: the second eviction is denied while it is pending.
    let drained =
        namespace.upper.try_kubectl(&["drain", &pair.node, "--ignore-daemonsets", "--timeout=8s"]).await;
    assert!(!drained.success() && drained.stderr.contains("disruption budget"), "{drained:?}");
    eventually("one pod is gone below", TIMEOUT, || async {
        let left = namespace.lower.list("pods").await.len();
        if left == 2 { Ok(()) } else { Err(format!("{left} are there")) }
    })
    .await;
    namespace.upper.delete("poddisruptionbudgets/web", None).await;
    namespace.upper.kubectl(&["drain", &pair.node, "--ignore-daemonsets", "--timeout=60s"]).await;
    eventually("no pod is left below", TIMEOUT, || async {
        let left = namespace.lower.list("pods").await;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    namespace.upper.kubectl(&["uncordon", &pair.node]).await;
    namespace.upper.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await;
    agree(&namespace.upper, &namespace.lower, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn pods_of_a_cron_job_complete_in_the_lower_cluster() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("cron").await;
    let mut pod = json!({"metadata": {"annotations": {"mock.virtual-kubelet.io/run-for": "200ms"}}, "spec": pair.pod_spec()});
    pod["spec"]["restartPolicy"] = json!("Never");
    let cron = json!({"metadata": {"name": "often"}, "spec": {"schedule": "* * * * *",
        "jobTemplate": {"spec": {"backoffLimit": 0, "template": pod}}}});
    namespace.upper.create("cronjobs", &cron).await;
    eventually("a job of it is complete", TIMEOUT, || async {
        let jobs = namespace.upper.list("jobs").await;
        let complete = |job: &Value| job["status"]["succeeded"] == 1;
        if jobs.iter().any(complete) { Ok(()) } else { Err(format!("{jobs:?}")) }
    })
    .await;
    assert!(
        namespace
            .lower
            .list("pods")
            .await
            .iter()
            .any(|lower_pod| lower_pod["status"]["phase"] == "Succeeded")
    );
    assert!(namespace.lower.list("jobs").await.is_empty(), "nobody below is told about the job");
    namespace.upper.delete("cronjobs/often", None).await;
    agree(&namespace.upper, &namespace.lower, 0).await;
}
