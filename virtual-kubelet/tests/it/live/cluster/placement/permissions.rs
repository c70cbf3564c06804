//! What placement does with the permissions of the published roles, as the audit log of the API server has it, and what its metrics say.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use serde_json::{Value, json};
use vk_testing::{
    ControlPlane,
    control_plane::{AUDIT_METADATA, Options},
    eventually, kubectl,
};

use super::{NAME, PLACED, PlacementTest, pod, spec};
use crate::{
    live::{
        cluster::{
            capacity::{foreign, offers},
            cluster_pair::{ClusterPair, TAINT, lower},
            namespace_client::{NamespaceClient, TIMEOUT, condition},
        },
        get, ports,
    },
    vk,
};

const ACCOUNT: &str = "system:serviceaccount:kube-system:virtual-kubelet-placement";

/// The calls of an account, as verb and resource, with the status codes of their answers.
fn calls(cluster: &ControlPlane, account: &str) -> BTreeMap<String, BTreeSet<u64>> {
    let log = fs::read_to_string(cluster.audit_log().unwrap()).unwrap();
    let mut found: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    // The last line may be incomplete.
    for entry in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if entry["user"]["username"] == account {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let object = &entry["objectRef"];
            let parts = [text(&object["resource"]), text(&object["subresource"])];
            let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            let code = entry["responseStatus"]["code"].as_u64().unwrap_or_default();
            found.entry(format!("{} {}", text(&entry["verb"]), parts.join("/"))).or_default().insert(code);
        }
    }
    found
}

/// The API server learns of roles and of the guard a moment after they were created.
async fn wait_permitted(test: &PlacementTest) {
    for what in [["list", "pods"], ["get", "persistentvolumeclaims"], ["patch", "configmaps"]] {
        let name = format!("{}/{NAME}", what[1]);
        let resource = if what[1] == "configmaps" { &name } else { what[1] };
        let ask = ["auth", "can-i", what[0], resource, "--as", ACCOUNT, "-n", "kube-system"];
        eventually(&format!("placement may {what:?}"), TIMEOUT, || async {
            let output = kubectl(&test.upper, ask).await.unwrap();
            if output.success() { Ok(()) } else { Err(format!("{output:?}")) }
        })
        .await;
    }
}

/// Waits until the metrics have a line that begins like this, with a count above 0.
async fn has_counted(port: u16, prefix: &str) {
    // On a busy machine a node does not answer at first, and is asked again after a minute.
    eventually(&format!("the metrics count {prefix:?}"), 2 * TIMEOUT, || async {
        let (_, text) = get(port, "/metrics")?;
        let count = |line: &str| line.rsplit_once(' ')?.1.parse::<f64>().ok();
        let found =
            text.lines().filter(|line| line.starts_with(prefix)).filter_map(count).any(|count| count > 0.0);
        if found { Ok(()) } else { Err(format!("no line {prefix}… with more than 0")) }
    })
    .await;
}

/// Waits until the metrics have this line.
async fn counts(port: u16, line: &str) {
    eventually(&format!("the metrics have {line:?}"), TIMEOUT, || async {
        let (_, text) = get(port, "/metrics")?;
        if text.lines().any(|one| one == line) {
            return Ok(());
        }
        let about = |one: &&str| one.contains("virtual_kubelet_placement_") && !one.contains("_bucket");
        Err(text.lines().filter(about).collect::<Vec<_>>().join("\n"))
    })
    .await;
}

/// A pod by trial, one with a claim, one that waits, and one that is stuck.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn nothing_that_placement_does_is_forbidden_to_it_and_metrics_count_it() {
    let lower = lower().await;
    let options = Options { audit_policy: Some(AUDIT_METADATA.to_owned()), ..Options::with_controllers() };
    let test = PlacementTest::with(options, &["--gates", "trial"]).await;
    let account = test.account().await;
    wait_permitted(&test).await;
    let first = ClusterPair::open(&test.upper, lower, "audited-a", 2, json!({}), &[]).await;
    // Others use 5 of 8 CPUs of each lower node: 6 are free in sum.
    let others = NamespaceClient::new(lower, lower.namespace("others").await.unwrap().name());
    for index in 0..2 {
        let other = foreign(&format!("other-{index}"), &first.lower_node(index), &json!({"cpu": "5"}));
        others.create("pods", &other).await;
    }
    offers(&test.upper, &first.node, &json!({"cpu": "6"})).await;
    let team = test.namespace("audited").await;
    let mut stuck = spec(4);
    stuck["tolerations"] = json!([{"key": TAINT, "operator": "Exists"}]);
    let deployment = json!({
        "metadata": {"name": "stuck"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "stuck"}},
            "template": {"metadata": {"labels": {"app": "stuck"}}, "spec": stuck},
        },
    });
    team.create("deployments", &deployment).await;
    eventually("a pod is stuck", TIMEOUT, || async {
        let pods = team.list("pods").await;
        if pods.iter().any(super::scenarios::is_stuck) { Ok(()) } else { Err(format!("{pods:?}")) }
    })
    .await;

    // Every part runs: the webhook, which has nothing left to convert, beside the policy.
    let port = ports(3);
    let [metrics, extender, webhook] = [port, port + 1, port + 2].map(|port| format!("127.0.0.1:{port}"));
    let url = format!("https://{webhook}");
    test.apply(&vk(&["placement", "print", "rbac", "--webhook"]).run().ok()).await;
    let older =
        ["placement", "print", "policy", "--server-version", "1.33", "--webhook-url", &url, "--fail-open"];
    test.apply(&vk(&older).run().stdout).await;
    let kubeconfig = account.to_str().unwrap();
    let flags = ["placement", "--kubeconfig", kubeconfig, "--metrics-addr", &metrics, "--gates", "trial"];
    let parts = [
        "--descheduler",
        "--descheduler-after",
        "2s",
        "--extender-listen",
        &extender,
        "--webhook-listen",
        &webhook,
    ];
    let mut process = vk(&[&flags[..], &parts].concat()).start();
    let cluster_scope = NamespaceClient::new(&test.upper, "default");
    let path = format!("mutatingwebhookconfigurations/{NAME}");
    cluster_scope
        .wait_for(&path, "has the CA", |configuration| {
            configuration["webhooks"][0]["clientConfig"]["caBundle"].is_string()
        })
        .await;
    team.create("pods", &pod("small", 1)).await;
    team.wait_running("small").await;
    counts(port, r#"virtual_kubelet_placement_trials_total{outcome="accepted"} 1"#).await;
    counts(port, r#"virtual_kubelet_placement_placements_total{method="trial",answer="accepted"} 1"#).await;
    has_counted(port, "virtual_kubelet_placement_placement_seconds_count").await;
    for metric in ["fit_queries_total", "fit_query_seconds_count"] {
        has_counted(port, &format!("virtual_kubelet_placement_{metric}{{node=\"{}\"", first.node)).await;
    }
    team.create("pods", &pod("big", 12)).await;
    counts(port, r#"virtual_kubelet_placement_waiting_pods{cause="no_node"} 1"#).await;
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "storageClassName": "none", "resources": {"requests": {"storage": "1Gi"}}}});
    team.create("persistentvolumeclaims", &claim).await;
    let mut template = pod("claims", 1);
    template["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    let labels = json!({"app": "claims", "virtual-pod": "true"});
    let claims = json!({
        "metadata": {"name": "claims"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "claims"}},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    });
    team.create("deployments", &claims).await;
    // Its claim is not bound, so it gets no trial.
    eventually("the pod with a claim has a node by estimate", TIMEOUT, || async {
        let pods = team.list("pods").await;
        let is_placed = |pod: &&Value| {
            pod["metadata"]["labels"]["app"] == "claims" && condition(pod, PLACED)["reason"] == "Estimated"
        };
        if pods.iter().any(|pod| is_placed(&pod)) { Ok(()) } else { Err(format!("{pods:?}")) }
    })
    .await;
    counts(port, r#"virtual_kubelet_placement_placements_total{method="estimate",answer="unknown"} 1"#).await;
    let _second = ClusterPair::open(&test.upper, lower, "audited-b", 1, json!({}), &[]).await;
    has_counted(port, r#"virtual_kubelet_placement_evictions_total{result="evicted"}"#).await;
    counts(port, "virtual_kubelet_placement_snapshot_repairs 0").await;
    let outcome = process.stop(TIMEOUT).await;
    assert_eq!(outcome.code, 0, "{outcome:?}");

    let calls = calls(&test.upper, ACCOUNT);
    for expected in [
        "create leases",
        "create pods/eviction",
        "create secrets",
        "create serviceaccounts/token",
        "get configmaps",
        "get leases",
        "get persistentvolumeclaims",
        "patch configmaps",
        "patch leases",
        "patch mutatingwebhookconfigurations",
        "patch pods",
        "patch pods/status",
        "watch mutatingwebhookconfigurations",
        "watch nodes",
        "watch pods",
        "watch secrets",
    ] {
        assert!(calls.contains_key(expected), "{expected} was not called: {calls:#?}");
    }
    let is_refused = |codes: &BTreeSet<u64>| codes.iter().any(|code| [401, 403, 405, 422].contains(code));
    let refused: Vec<_> = calls.iter().filter(|(_, codes)| is_refused(codes)).collect();
    assert!(refused.is_empty(), "{refused:?}");
}
