//! The printed manifests.

use serde_json::{Value, json};

use super::*;

/// The published manifest, which is the printed one.
const PUBLISHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/placement/policy.yaml");

fn documents(text: &str) -> Vec<Value> {
    assert!(!text.contains("{{"), "a value is missing: {text}");
    text.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn printed(settings: &Settings, failure_policy: FailurePolicy) -> Vec<Value> {
    documents(&admission_policy(settings, "kube-system", failure_policy))
}

#[test]
fn the_published_policy_is_the_printed_one() {
    let text = admission_policy(&Settings::default(), "kube-system", FailurePolicy::Fail);
    let published = std::fs::read_to_string(PUBLISHED).unwrap();
    assert!(
        published == text,
        "deploy/placement/policy.yaml is out of date: write the output of `virtual-kubelet placement print policy` to it"
    );
}

#[test]
fn the_policy_has_one_mutation_two_bindings_and_a_config_map() {
    let all = printed(&Settings::default(), FailurePolicy::Fail);
    let kinds: Vec<&str> = all.iter().map(|one| one["kind"].as_str().unwrap()).collect();
    let binding = "MutatingAdmissionPolicyBinding";
    assert_eq!(kinds, ["MutatingAdmissionPolicy", binding, binding, "ConfigMap"]);
    assert_eq!(all[0]["spec"]["mutations"].as_array().unwrap().len(), 1);
    assert_eq!(all[0]["spec"]["failurePolicy"], "Fail");
    assert_eq!(
        all[1]["spec"]["matchResources"]["objectSelector"]["matchLabels"],
        json!({"virtual-pod": "true"})
    );
    assert_eq!(
        all[2]["spec"]["matchResources"]["namespaceSelector"]["matchLabels"],
        json!({"multicluster.virtual-kubelet.io/offload": "true"})
    );
    for binding in &all[1..3] {
        let param = json!({"name": NAME, "namespace": "kube-system", "parameterNotFoundAction": "Deny"});
        assert_eq!(binding["spec"]["paramRef"], param);
        assert_eq!(binding["spec"]["policyName"], NAME);
    }
}

#[test]
fn settings_are_in_the_config_map_and_keys_also_in_the_policy() {
    let settings = Settings {
        upper_keys: vec!["type".to_owned(), "pool".to_owned()],
        gate: Some(true),
        tolerate_lost: true,
    };
    let all = printed(&settings, FailurePolicy::Fail);
    assert_eq!(all[3]["data"], json!({"upperKeys": "type,pool", "gate": "true", "tolerateLost": "true"}));
    assert!(all[0].to_string().contains("orValue('type,pool')"));
    let off = Settings { gate: Some(false), ..Settings::default() };
    assert_eq!(printed(&off, FailurePolicy::Fail)[3]["data"]["gate"], "false");
    let undecided = printed(&Settings::default(), FailurePolicy::Fail);
    assert_eq!(undecided[3]["data"].get("gate"), None, "the placement process decides");
}

#[test]
fn the_variants_differ_in_what_happens_on_failure() {
    let mut ignore = printed(&Settings::default(), FailurePolicy::Ignore);
    assert_eq!(ignore[0]["spec"]["failurePolicy"], "Ignore");
    ignore[0]["spec"]["failurePolicy"] = json!("Fail");
    assert_eq!(ignore, printed(&Settings::default(), FailurePolicy::Fail));
}

#[test]
fn the_webhook_is_called_for_pods_and_for_namespaces() {
    let service = WebhookAddress::Service { namespace: "infra".to_owned(), port: 8444 };
    let one = documents(&webhook_configuration(
        &service,
        Some("PEM"),
        &Settings::default(),
        "infra",
        FailurePolicy::Fail,
    ));
    let [one, map] = one.as_slice() else { panic!("a webhook and a ConfigMap") };
    assert_eq!((&map["metadata"]["namespace"], &map["data"]["gate"]), (&json!("infra"), &json!("false")));
    assert_eq!(one["kind"], "MutatingWebhookConfiguration");
    let [pods, namespaces] = one["webhooks"].as_array().unwrap().as_slice() else { panic!("two webhooks") };
    for (webhook, path) in [(pods, "/mutate"), (namespaces, "/mutate/namespace")] {
        let service = json!({"name": NAME, "namespace": "infra", "path": path, "port": 8444});
        assert_eq!(webhook["clientConfig"], json!({"service": service, "caBundle": "UEVN"}));
        assert_eq!(webhook["failurePolicy"], "Fail");
        assert_eq!(webhook["reinvocationPolicy"], "IfNeeded");
    }
    assert_eq!(pods["objectSelector"]["matchLabels"], json!({"virtual-pod": "true"}));
    assert_eq!(
        namespaces["namespaceSelector"]["matchLabels"],
        json!({"multicluster.virtual-kubelet.io/offload": "true"})
    );
    let url = WebhookAddress::Url("https://192.0.2.1:8444/".to_owned());
    let one =
        documents(&webhook_configuration(&url, None, &Settings::default(), "infra", FailurePolicy::Ignore))
            .remove(0);
    assert_eq!(one["webhooks"][1]["clientConfig"], json!({"url": "https://192.0.2.1:8444/mutate/namespace"}));
    assert_eq!(one["webhooks"][0]["failurePolicy"], "Ignore");
}
