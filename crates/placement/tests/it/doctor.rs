//! The checks of `virtual-kubelet doctor --placement`, with a real API server.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::PostParams};
use serde_json::json;
use vk_kube::{Client, Metrics};
use vk_placement::{
    ask::{AskLimits, FitClient},
    convert::Settings,
    doctor::Doctor,
    policy::{FailurePolicy, admission_policy},
    rbac,
};
use vk_supervisor::Clock;
use vk_testing::{ControlPlane, control_plane::Options, eventually};

use crate::kubectl::{apply, kubectl};

const NAMESPACE: &str = "infra";
const SOON: Duration = Duration::from_secs(30);

/// All findings, as lines of text.
async fn examine(client: kube::Client) -> Vec<String> {
    let client = Client::fixed(client, Metrics::default());
    let fit_client = FitClient::new(client.clone(), AskLimits::default());
    let now = Clock::system().now();
    let doctor = Doctor { client: &client, fit_client: &fit_client, namespace: NAMESPACE, now };
    doctor.examine().await.iter().map(ToString::to_string).collect()
}

/// Waits until each finding contains its text: the API server learns of roles and policies a moment later.
async fn expect(cluster: &ControlPlane, expected: &[&str]) {
    eventually(&format!("the findings are {expected:?}"), SOON, || async {
        let findings = examine(cluster.admin().unwrap()).await;
        let matches = findings.iter().zip(expected).all(|(finding, words)| finding.contains(words));
        if findings.len() == expected.len() && matches { Ok(()) } else { Err(findings.join("\n")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make test"]
async fn what_is_missing_of_the_policy_the_permissions_and_the_nodes_is_found() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    kubectl(&cluster, &["create", "namespace", NAMESPACE]).await;
    let nothing = [
        "warning  policy: there is no policy",
        "ok       process",
        "warning  permissions: there is no ServiceAccount infra/",
        "warning  nodes: none has the annotation",
    ];
    expect(&cluster, &nothing).await;

    apply(&cluster, &admission_policy(&Settings::default(), NAMESPACE, FailurePolicy::Fail)).await;
    apply(&cluster, &rbac::manifests(NAMESPACE)).await;
    let (policy, process, nodes) = ("ok       policy", "ok       process", "warning  nodes");
    let permissions = "ok       permissions: system:serviceaccount:infra:virtual-kubelet-placement has all";
    expect(&cluster, &[policy, process, permissions, nodes]).await;

    let patch = r#"[{"op": "remove", "path": "/rules/2"}, {"op": "add", "path": "/rules/0/verbs", "value": ["list"]}]"#;
    kubectl(&cluster, &["patch", "clusterrole", rbac::NAME, "--type=json", "--patch", patch]).await;
    kubectl(&cluster, &["delete", "validatingadmissionpolicybinding", rbac::GUARD]).await;
    let missing = "warning  permissions: system:serviceaccount:infra:virtual-kubelet-placement may not: watch nodes, list pods, watch pods, patch pods ->";
    let guard = "warning  guard: the policy virtual-kubelet-placement-guard or its binding is missing: whoever has the account's token may change every pod";
    expect(&cluster, &[policy, process, missing, guard, nodes]).await;
    apply(&cluster, &rbac::manifests(NAMESPACE)).await;

    let all: Api<Node> = Api::all(cluster.admin().unwrap());
    let annotations = json!({"virtual-kubelet.io/placement": "fit", "virtual-kubelet.io/serving-key": format!("sha256:{}", "a".repeat(64))});
    let node = json!({
        "metadata": {"name": "vk-gone", "annotations": annotations},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
        },
    });
    let node = serde_json::from_value(node).unwrap();
    all.create(&PostParams::default(), &node).await.unwrap();
    expect(&cluster, &[policy, process, permissions, "error    node vk-gone: "]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make test"]
async fn without_permissions_or_an_api_server_the_findings_say_so() {
    let cluster = ControlPlane::shared().await;
    let findings = examine(cluster.client_for("nobody", &["system:authenticated"]).unwrap()).await;
    assert_eq!(findings.len(), 4, "{findings:#?}");
    for (finding, subject) in findings.iter().zip(["policy", "process", "permissions", "nodes"]) {
        let is_named = finding.contains(&format!("{subject}: cannot be checked: "));
        assert!(is_named && finding.contains("-> use credentials that may"), "{finding}");
    }
    let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let findings = examine(kube::Client::try_from(nowhere).unwrap()).await;
    assert!(findings.len() == 1 && findings[0].starts_with("error    API server: "), "{findings:#?}");
}
