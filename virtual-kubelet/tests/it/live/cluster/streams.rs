//! kubectl exec, logs and the like through two API servers and two virtual kubelets.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use vk_testing::{
    eventually,
    kubectl_matrix::{self as matrix, KubectlSession, Target},
};

use super::{
    cluster_pair::{ClusterPair, lower, upper},
    namespace_client::{NamespaceClient, TIMEOUT, text},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn admiralty_150_every_kubectl_verb_works_with_lower_pods() {
    let (upper, lower) = (upper().await, lower().await);
    let pair = ClusterPair::open(upper, lower, "verbs", 1, json!({"hostAccess": true}), &[]).await;
    pair.approve_certificate().await;
    every_verb(&pair).await;
}

/// Runs every verb with a pod on the virtual node of a pair. `kubectl debug` adds the capability SYS_PTRACE, which needs `hostAccess`.
pub(super) async fn every_verb(pair: &ClusterPair<'_>) {
    let crashing = [("run-for", "1s"), ("exit-code", "1"), ("restart-backoff", "1s")];
    let crashing: BTreeMap<String, String> =
        crashing.map(|(name, value)| (format!("mock.virtual-kubelet.io/{name}"), value.to_owned())).into();
    let stage = KubectlSession::open(Target {
        kubectl: pair.upper.kubectl().unwrap(),
        kubeconfig: pair.upper.admin_kubeconfig().to_owned(),
        node: pair.node.clone(),
        image: "example.com/app:1".to_owned(),
        command: Vec::new(),
        crashing,
    })
    .await;
    matrix::logs::whole_tail_and_limit(&stage).await;
    matrix::logs::times_and_since(&stage).await;
    matrix::logs::follow(&stage).await;
    matrix::logs::previous(&stage).await;
    matrix::exec::output_and_errors(&stage).await;
    matrix::exec::exit_codes(&stage).await;
    matrix::exec::input_until_its_end(&stage).await;
    matrix::exec::much_output(&stage, 1 << 20).await;
    matrix::exec::terminal(&stage).await;
    matrix::attach::output(&stage).await;
    matrix::forward::parallel_requests(&stage, 8080, 5).await;
    matrix::debug::ephemeral_container(&stage).await;
    stage.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn admiralty_35_usage_has_the_names_and_uids_of_the_upper_pods() {
    let pair = ClusterPair::common().await;
    pair.approve_certificate().await;
    let namespace = pair.test_namespace("figures").await;
    let mut pod = pair.pod("busy");
    pod["metadata"]["annotations"] =
        json!({"mock.virtual-kubelet.io/cpu": "250m", "mock.virtual-kubelet.io/memory": "64Mi"});
    let (upper, lower_pod) = namespace.run(&pod).await;
    let all = NamespaceClient::new(pair.upper, "default");
    let raw = |path: &str| format!("/api/v1/nodes/{}/proxy/{path}", pair.node);
    let summary = raw("stats/summary");
    let figures = eventually("the summary has the pod", TIMEOUT, || async {
        let summary: Value = serde_json::from_str(&all.kubectl(&["get", "--raw", &summary]).await).unwrap();
        let pods = summary["pods"].as_array().cloned().unwrap_or_default();
        let own = |pod: &Value| pod["podRef"]["namespace"] == namespace.upper.namespace.as_str();
        let found =
            pods.into_iter().find(own).filter(|pod| pod["memory"]["workingSetBytes"].as_u64() > Some(0));
        found.ok_or_else(|| summary.to_string())
    })
    .await;
    assert_eq!(figures["podRef"]["uid"], upper["metadata"]["uid"]);
    assert_ne!(figures["podRef"]["uid"], lower_pod["metadata"]["uid"]);
    let resource = all.kubectl(&["get", "--raw", &raw("metrics/resource")]).await;
    let wanted = format!("namespace=\"{}\"", namespace.upper.namespace);
    let lines = resource.lines().filter(|line| line.contains(&wanted) && line.contains("pod=\"busy\""));
    assert!(lines.clone().any(|line| line.starts_with("container_cpu_usage_seconds_total")), "{resource}");
    assert!(lines.clone().any(|line| line.starts_with("container_memory_working_set_bytes")), "{resource}");
    assert!(!resource.contains(text(&lower_pod["spec"]["nodeName"])), "{resource}");
}
