//! Workloads of the upper cluster's controllers with pods in the lower cluster.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use vk_testing::eventually;

use super::{
    cluster_namespace::{ClusterNamespace, PATIENCE, text},
    cluster_pair::{ClusterPair, NamespacePair, ORIGIN_UID, lower, upper},
};

/// Pods by UID: above, those that are not being deleted; below, by whose twins they are.
async fn pods(side: &ClusterNamespace<'_>, below: bool) -> BTreeMap<String, String> {
    let all = side.list("pods").await;
    let uid = |pod: &Value| {
        let uid = if below { &pod["metadata"]["labels"][ORIGIN_UID] } else { &pod["metadata"]["uid"] };
        text(uid).to_owned()
    };
    all.iter().map(|pod| (uid(pod), text(&pod["status"]["phase"]).to_owned())).collect()
}

/// Waits until both sides have the same pods, so many and all of them running.
pub(super) async fn agree(above: &ClusterNamespace<'_>, below: &ClusterNamespace<'_>, count: usize) {
    eventually(&format!("both sides have the same {count} pods"), PATIENCE, || async {
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
pub(super) fn workload(namespaces: &NamespacePair<'_>, name: &str, replicas: usize) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": namespaces.pair.pod_spec()},
    }})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_deployment_is_rolled_out_scaled_and_deleted_in_the_lower_cluster() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("rollout").await;
    namespaces.above.create("deployments", &workload(&namespaces, "web", 6)).await;
    namespaces.above.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await;
    agree(&namespaces.above, &namespaces.below, 6).await;
    namespaces.above.kubectl(&["set", "image", "deployment/web", "main=example.com/app:2"]).await;
    namespaces.above.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await;
    agree(&namespaces.above, &namespaces.below, 6).await;
    for twin in namespaces.below.list("pods").await {
        assert_eq!(twin["spec"]["containers"][0]["image"], "example.com/app:2");
    }
    namespaces.above.kubectl(&["scale", "deployment/web", "--replicas=2"]).await;
    agree(&namespaces.above, &namespaces.below, 2).await;
    namespaces.above.delete("deployments/web", None).await;
    agree(&namespaces.above, &namespaces.below, 0).await;
    // Nobody below is told about the Deployment.
    assert!(namespaces.below.list("replicasets").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn admiralty_7_a_pod_of_the_same_name_waits_for_its_predecessors_end_and_does_not_seem_to_run() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("namesake").await;
    let mut set = workload(&namespaces, "db", 2);
    set["spec"]["serviceName"] = json!("db");
    // Its end takes a while.
    set["spec"]["template"]["metadata"]["annotations"] = json!({"mock.virtual-kubelet.io/stop-delay": "2s"});
    set["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(30);
    namespaces.above.create("statefulsets", &set).await;
    namespaces.above.kubectl(&["rollout", "status", "statefulset/db", "--timeout=90s"]).await;
    let before = namespaces.below.get("pods/db-0").await;
    // By force: the name is free above at once, and the controller makes the next one while the first still runs below.
    namespaces.above.delete("pods/db-0", Some(0)).await;
    let next = namespaces
        .above
        .see("pods/db-0", "has a successor", |pod| {
            pod["metadata"]["uid"] != before["metadata"]["labels"][ORIGIN_UID]
        })
        .await;
    if namespaces
        .below
        .find("pods/db-0")
        .await
        .is_some_and(|pod| pod["metadata"]["uid"] == before["metadata"]["uid"])
    {
        assert_ne!(next["status"]["phase"], "Running", "it seems to run, and its twin is another's");
    }
    namespaces.above.runs("db-0").await;
    let after = namespaces.below.runs("db-0").await;
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["metadata"]["labels"][ORIGIN_UID], next["metadata"]["uid"]);
    agree(&namespaces.above, &namespaces.below, 2).await;
    namespaces.above.delete("statefulsets/db", None).await;
    agree(&namespaces.above, &namespaces.below, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_drain_of_the_virtual_node_keeps_to_the_budget_and_empties_the_lower_cluster() {
    let (upper, lower) = (upper().await, lower().await);
    let pair = ClusterPair::open(upper, lower, "drained", 1, json!({}), &[]).await;
    let namespaces = pair.namespace_pair("drained").await;
    namespaces.above.create("deployments", &workload(&namespaces, "web", 3)).await;
    let budget = json!({"metadata": {"name": "web"}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    namespaces.above.create("poddisruptionbudgets", &budget).await;
    namespaces.above.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await;
    agree(&namespaces.above, &namespaces.below, 3).await;
    // The budget lets one go, and its successor finds no node: the second is refused for as long as one waits.
    let drained =
        namespaces.above.try_kubectl(&["drain", &pair.node, "--ignore-daemonsets", "--timeout=8s"]).await;
    assert!(!drained.success() && drained.stderr.contains("disruption budget"), "{drained:?}");
    eventually("one pod is gone below", PATIENCE, || async {
        let left = namespaces.below.list("pods").await.len();
        if left == 2 { Ok(()) } else { Err(format!("{left} are there")) }
    })
    .await;
    namespaces.above.delete("poddisruptionbudgets/web", None).await;
    namespaces.above.kubectl(&["drain", &pair.node, "--ignore-daemonsets", "--timeout=60s"]).await;
    eventually("no pod is left below", PATIENCE, || async {
        let left = namespaces.below.list("pods").await;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    namespaces.above.kubectl(&["uncordon", &pair.node]).await;
    namespaces.above.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await;
    agree(&namespaces.above, &namespaces.below, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_cron_jobs_pods_run_to_their_end_in_the_lower_cluster_and_go_with_it() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("cron").await;
    let mut pod = json!({"metadata": {"annotations": {"mock.virtual-kubelet.io/run-for": "200ms"}}, "spec": pair.pod_spec()});
    pod["spec"]["restartPolicy"] = json!("Never");
    let cron = json!({"metadata": {"name": "often"}, "spec": {"schedule": "* * * * *",
        "jobTemplate": {"spec": {"backoffLimit": 0, "template": pod}}}});
    namespaces.above.create("cronjobs", &cron).await;
    eventually("a job of it is complete", PATIENCE, || async {
        let jobs = namespaces.above.list("jobs").await;
        let complete = |job: &Value| job["status"]["succeeded"] == 1;
        if jobs.iter().any(complete) { Ok(()) } else { Err(format!("{jobs:?}")) }
    })
    .await;
    assert!(namespaces.below.list("pods").await.iter().any(|twin| twin["status"]["phase"] == "Succeeded"));
    assert!(namespaces.below.list("jobs").await.is_empty(), "nobody below is told about the job");
    namespaces.above.delete("cronjobs/often", None).await;
    agree(&namespaces.above, &namespaces.below, 0).await;
}
