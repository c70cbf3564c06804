//! The published manifests, which go together with the command and with what it prints.

use clap::Parser as _;
use serde_json::{Value, json};
use vk_placement::{policy::NAME, rbac, scheduler_config::MULTICLUSTER};

use crate::{
    cli::Cli,
    config::{EXTENDER_PORT, WEBHOOK_PORT},
};

const APP: &str = "app.kubernetes.io/name";

/// The manifests of a file in `deploy/placement`.
fn published(file: &str) -> Vec<Value> {
    let path = format!("{}/../deploy/placement/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    text.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn of_kind<'a>(manifests: &'a [Value], kind: &str) -> &'a Value {
    manifests.iter().find(|one| one["kind"] == kind).unwrap()
}

#[test]
fn the_published_deployment_runs_the_command_where_clients_call_it() {
    let manifests = published("deployment.yaml");
    let deployment = of_kind(&manifests, "Deployment");
    let pod = &deployment["spec"]["template"];
    let container = &pod["spec"]["containers"][0];
    let arguments = container["args"].as_array().unwrap().iter().map(|one| one.as_str().unwrap());
    Cli::try_parse_from(["virtual-kubelet"].into_iter().chain(arguments)).unwrap();
    assert_eq!(container["ports"][0], json!({"name": "extender", "containerPort": EXTENDER_PORT}));
    assert_eq!(pod["spec"]["serviceAccountName"], rbac::NAME);

    let service = of_kind(&manifests, "Service");
    assert_eq!(service["metadata"]["name"], NAME);
    let ports: Vec<_> = service["spec"]["ports"].as_array().unwrap().iter().map(|one| &one["port"]).collect();
    assert_eq!(ports, [&json!(EXTENDER_PORT), &json!(WEBHOOK_PORT)]);
    let budget = of_kind(&manifests, "PodDisruptionBudget");
    let policy = &published("network-policy.yaml")[0];
    let labels = json!({APP: NAME});
    for selector in [
        &deployment["spec"]["selector"]["matchLabels"],
        &service["spec"]["selector"],
        &budget["spec"]["selector"]["matchLabels"],
        &policy["spec"]["podSelector"]["matchLabels"],
    ] {
        assert_eq!((selector, &pod["metadata"]["labels"]), (&labels, &labels));
    }
    assert!(manifests.iter().chain([policy]).all(|one| one["metadata"]["namespace"] == "kube-system"));
}

#[test]
fn the_published_scheduler_may_have_its_lease_and_call_the_extender() {
    let manifests = published("scheduler.yaml");
    let account = &of_kind(&manifests, "ServiceAccount")["metadata"]["name"];
    let bindings = manifests.iter().filter(|one| {
        one["kind"].as_str().unwrap().ends_with("RoleBinding") || one["kind"] == "ClusterRoleBinding"
    });
    assert!(bindings.clone().all(|binding| binding["subjects"][0]["name"] == *account));
    assert_eq!(bindings.count(), 4);
    assert_eq!(of_kind(&manifests, "Role")["rules"][0]["resourceNames"], json!([MULTICLUSTER]));
    let pod = &of_kind(&manifests, "Deployment")["spec"]["template"];
    assert_eq!(pod["spec"]["serviceAccountName"], *account);
    let policy = &published("network-policy.yaml")[0];
    let callers = &policy["spec"]["ingress"][0];
    assert_eq!(callers["from"][0]["podSelector"]["matchLabels"], pod["metadata"]["labels"]);
    assert_eq!(callers["ports"], json!([{"port": EXTENDER_PORT}]));
}
