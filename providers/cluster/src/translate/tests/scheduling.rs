//! Node selection, affinity and tolerations of the lower pod.

use super::*;

fn taken(pool: &str) -> TranslationPolicy {
    TranslationPolicy {
        node_selector: [("pool".to_owned(), pool.to_owned())].into(),
        ..TranslationPolicy::default()
    }
}

#[test]
fn a_pod_cannot_override_the_node_selector_of_the_virtual_node() {
    let mut upper = pod(json!({"nodeSelector": {"type": "virtual-kubelet"}}));
    assert_eq!(spec_by(&upper, &TranslationPolicy::default())["nodeSelector"], Value::Null);
    assert_eq!(spec_by(&upper, &taken("a"))["nodeSelector"], json!({"pool": "a"}));
    lower_annotation(&mut upper, &json!({"nodeSelector": {"disk": "ssd", "pool": "b"}}));
    assert_eq!(spec_by(&upper, &taken("a"))["nodeSelector"], json!({"disk": "ssd", "pool": "a"}));
}

#[test]
fn the_annotation_of_tensile_kube_is_the_fallback() {
    let mut upper = pod(json!({}));
    annotate(&mut upper, names::CLUSTER_SELECTOR, r#"{"nodeSelector": {"by": "tensile"}}"#);
    assert_eq!(spec_by(&upper, &TranslationPolicy::default())["nodeSelector"], json!({"by": "tensile"}));
    lower_annotation(&mut upper, &json!({"nodeSelector": {"by": "us"}}));
    assert_eq!(spec_by(&upper, &TranslationPolicy::default())["nodeSelector"], json!({"by": "us"}));
}

#[test]
fn an_invalid_annotation_is_rejected_with_its_name_and_the_error() {
    for (key, text, words) in [
        (names::LOWER, "{", "EOF"),
        (names::LOWER, r#"{"nodeSelecter": {}}"#, "nodeSelecter"),
        (names::LOWER, r#"{"tolerations": {}}"#, "sequence"),
        (names::CLUSTER_SELECTOR, "7", "integer"),
    ] {
        let mut upper = pod(json!({}));
        annotate(&mut upper, key, text);
        let why = refused(&upper, &TranslationPolicy::default());
        assert!(why.starts_with(&format!("annotation {key}: ")) && why.contains(words), "{why}");
    }
}

#[test]
fn tolerations_are_copied_where_they_are_allowed_without_ours_and_the_default_ones() {
    let default = |key: &str, seconds: i64| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
    let upper = pod(json!({"tolerations": [
        {"key": "virtual-kubelet.io/provider", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "virtual-kubelet.io/provider", "operator": "Equal", "value": "cluster"},
        default("node.kubernetes.io/not-ready", 300),
        default("node.kubernetes.io/unreachable", 300),
        default("node.kubernetes.io/unreachable", 30),
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "gpu", "operator": "Exists"},
        {"operator": "Exists"},
    ]}));
    let configured: Toleration =
        serde_json::from_value(json!({"key": "spot", "operator": "Exists"})).unwrap();
    let policy = TranslationPolicy { tolerations: vec![configured], ..TranslationPolicy::default() };
    // A pod that tolerates everything above tolerates what it may below.
    let kept = json!([default("node.kubernetes.io/unreachable", 30), {"key": "spot", "operator": "Exists"}]);
    assert_eq!(spec_by(&upper, &policy)["tolerations"], kept);
    let allowing = TranslationPolicy { allowed: permissive().allowed, ..policy };
    let kept = json!([
        default("node.kubernetes.io/unreachable", 30),
        {"key": "gpu", "operator": "Exists"},
        {"key": "spot", "operator": "Exists"},
    ]);
    assert_eq!(spec_by(&upper, &allowing)["tolerations"], kept);
}

#[test]
fn tolerations_of_the_annotation_replace_the_others() {
    let mut upper = pod(json!({"tolerations": [{"key": "above", "operator": "Exists"}]}));
    // The webhook of tensile-kube copies all tolerations there.
    annotate(
        &mut upper,
        names::CLUSTER_SELECTOR,
        r#"{"tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}, {"key": "below", "operator": "Exists"}]}"#,
    );
    let spec = spec_by(&upper, &permissive());
    assert_eq!(spec["tolerations"], json!([{"key": "below", "operator": "Exists"}]));
    assert_eq!(spec_by(&upper, &TranslationPolicy::default())["tolerations"], Value::Null);
}

fn term(more: &Value) -> Value {
    let mut term =
        json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "db"}}});
    term.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    term
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

#[test]
fn pod_affinity_is_copied_and_node_affinity_replaced() {
    let near = json!({REQUIRED: [term(&json!({}))]});
    let far = json!({PREFERRED: [{"weight": 1, "podAffinityTerm": term(&json!({}))}]});
    let node = |key: &str| json!({REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]}});
    let mut upper = pod(json!({"affinity": {
        "nodeAffinity": node("clusterID"), "podAffinity": near, "podAntiAffinity": far,
    }}));
    assert_eq!(
        spec_by(&upper, &TranslationPolicy::default())["affinity"],
        json!({"podAffinity": near, "podAntiAffinity": far})
    );
    let without = TranslationPolicy { keeps_pod_affinity: false, ..TranslationPolicy::default() };
    assert_eq!(spec_by(&upper, &without)["affinity"], Value::Null);
    lower_annotation(
        &mut upper,
        &json!({"affinity": {"nodeAffinity": node("disk"), "podAntiAffinity": near}}),
    );
    assert_eq!(
        spec_by(&upper, &TranslationPolicy::default())["affinity"],
        json!({"nodeAffinity": node("disk"), "podAffinity": near, "podAntiAffinity": near}),
        "what is said for the lower cluster stands for the same part alone"
    );
    assert_eq!(
        spec_by(&upper, &without)["affinity"],
        json!({"nodeAffinity": node("disk"), "podAntiAffinity": near})
    );
}

#[test]
fn namespaces_in_affinity_are_mapped() {
    let policy = mapped(&[("shop", "team-a"), ("data", "team-b")]);
    let of = |namespaces: &[&str]| term(&json!({"namespaces": namespaces}));
    let weighted = |term: Value| json!({"weight": 1, "podAffinityTerm": term});
    let upper = pod(json!({"affinity": {
        "podAffinity": {
            REQUIRED: [of(&["data", "shop", "elsewhere"]), term(&json!({}))],
            PREFERRED: [weighted(of(&["data"])), weighted(of(&["elsewhere"]))],
        },
        "podAntiAffinity": {
            REQUIRED: [of(&["data"]), of(&["elsewhere"])],
            PREFERRED: [weighted(of(&["elsewhere"]))],
        },
    }}));
    assert_eq!(
        spec_by(&upper, &policy)["affinity"],
        json!({
            "podAffinity": {
                REQUIRED: [of(&["team-b", "team-a"]), term(&json!({}))],
                PREFERRED: [weighted(of(&["team-b"]))],
            },
            "podAntiAffinity": {REQUIRED: [of(&["team-b"])]},
        })
    );
}

#[test]
fn required_affinity_to_unmapped_namespaces_is_rejected() {
    let policy = mapped(&[("shop", "team-a")]);
    let near = |more: Value| pod(json!({"affinity": {"podAffinity": {REQUIRED: [term(&more)]}}}));
    let why = refused(&near(json!({"namespaces": ["data"]})), &policy);
    assert!(why.contains("podAffinity") && why.contains("data"), "{why}");
    let selected = near(json!({"namespaces": ["data"], "namespaceSelector": {}}));
    let lower = spec_by(&selected, &policy);
    assert_eq!(lower["affinity"]["podAffinity"][REQUIRED][0], term(&json!({"namespaceSelector": {}})));
    let far =
        pod(json!({"affinity": {"podAntiAffinity": {REQUIRED: [term(&json!({"namespaces": ["data"]}))]}}}));
    assert_eq!(spec_by(&far, &policy)["affinity"], Value::Null, "it is far from there anyhow");
}

#[test]
fn match_label_keys_merged_by_the_upper_api_server_are_dropped() {
    let merged = json!({
        "topologyKey": "zone",
        "matchLabelKeys": ["pod-template-hash", "fresh"],
        "mismatchLabelKeys": ["tenant"],
        "labelSelector": {"matchExpressions": [
            {"key": "pod-template-hash", "operator": "In", "values": ["abc"]},
            {"key": "tenant", "operator": "NotIn", "values": ["x"]},
        ]},
    });
    let upper = pod(json!({"affinity": {"podAntiAffinity": {REQUIRED: [merged]}}}));
    let mut expected = merged.clone();
    expected.as_object_mut().unwrap().remove("mismatchLabelKeys");
    expected["matchLabelKeys"] = json!(["fresh"]);
    let lower = spec_by(&upper, &TranslationPolicy::default());
    assert_eq!(lower["affinity"]["podAntiAffinity"][REQUIRED][0], expected);
}
