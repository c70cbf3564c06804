//! What the lower scheduler is told.

use super::*;

fn taken(pool: &str) -> Policy {
    Policy { node_selector: [("pool".to_owned(), pool.to_owned())].into(), ..Policy::default() }
}

#[test]
fn the_selector_of_the_virtual_node_holds_whatever_the_pod_says() {
    let mut upper = pod(json!({"nodeSelector": {"type": "virtual-kubelet"}}));
    assert_eq!(spec_by(&upper, &Policy::default())["nodeSelector"], Value::Null);
    assert_eq!(spec_by(&upper, &taken("a"))["nodeSelector"], json!({"pool": "a"}));
    lower_annotation(&mut upper, &json!({"nodeSelector": {"disk": "ssd", "pool": "b"}}));
    assert_eq!(spec_by(&upper, &taken("a"))["nodeSelector"], json!({"disk": "ssd", "pool": "a"}));
}

#[test]
fn tensile_kubes_annotation_is_read_where_ours_is_not() {
    let mut upper = pod(json!({}));
    annotate(&mut upper, names::CLUSTER_SELECTOR, r#"{"nodeSelector": {"by": "tensile"}}"#);
    assert_eq!(spec_by(&upper, &Policy::default())["nodeSelector"], json!({"by": "tensile"}));
    lower_annotation(&mut upper, &json!({"nodeSelector": {"by": "us"}}));
    assert_eq!(spec_by(&upper, &Policy::default())["nodeSelector"], json!({"by": "us"}));
}

#[test]
fn an_annotation_that_cannot_be_read_is_refused_with_its_name_and_the_mistake() {
    for (key, text, words) in [
        (names::LOWER, "{", "EOF"),
        (names::LOWER, r#"{"nodeSelecter": {}}"#, "nodeSelecter"),
        (names::LOWER, r#"{"tolerations": {}}"#, "sequence"),
        (names::CLUSTER_SELECTOR, "7", "integer"),
    ] {
        let mut upper = pod(json!({}));
        annotate(&mut upper, key, text);
        let why = refused(&upper, &Policy::default());
        assert!(why.starts_with(&format!("annotation {key}: ")) && why.contains(words), "{why}");
    }
}

#[test]
fn tolerations_are_kept_but_for_ours_and_those_that_every_pod_gets() {
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
    let policy = Policy { tolerations: vec![configured], ..Policy::default() };
    let kept = json!([
        default("node.kubernetes.io/unreachable", 30),
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "gpu", "operator": "Exists"},
        // Who tolerates everything does so below.
        {"operator": "Exists"},
        {"key": "spot", "operator": "Exists"},
    ]);
    assert_eq!(spec_by(&upper, &policy)["tolerations"], kept);
}

#[test]
fn tolerations_for_the_lower_cluster_stand_for_the_others_and_lose_ours_as_well() {
    let mut upper = pod(json!({"tolerations": [{"key": "above", "operator": "Exists"}]}));
    // tensile-kube's webhook puts a copy of all there.
    annotate(
        &mut upper,
        names::CLUSTER_SELECTOR,
        r#"{"tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}, {"key": "below", "operator": "Exists"}]}"#,
    );
    let spec = spec_by(&upper, &Policy::default());
    assert_eq!(spec["tolerations"], json!([{"key": "below", "operator": "Exists"}]));
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
fn affinity_to_pods_is_kept_and_to_nodes_is_replaced() {
    let near = json!({REQUIRED: [term(&json!({}))]});
    let far = json!({PREFERRED: [{"weight": 1, "podAffinityTerm": term(&json!({}))}]});
    let node = |key: &str| json!({REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]}});
    let mut upper = pod(json!({"affinity": {
        "nodeAffinity": node("clusterID"), "podAffinity": near, "podAntiAffinity": far,
    }}));
    assert_eq!(
        spec_by(&upper, &Policy::default())["affinity"],
        json!({"podAffinity": near, "podAntiAffinity": far})
    );
    let without = Policy { keeps_pod_affinity: false, ..Policy::default() };
    assert_eq!(spec_by(&upper, &without)["affinity"], Value::Null);
    lower_annotation(
        &mut upper,
        &json!({"affinity": {"nodeAffinity": node("disk"), "podAntiAffinity": near}}),
    );
    assert_eq!(
        spec_by(&upper, &Policy::default())["affinity"],
        json!({"nodeAffinity": node("disk"), "podAffinity": near, "podAntiAffinity": near}),
        "what is said for the lower cluster stands for the same part alone"
    );
    assert_eq!(
        spec_by(&upper, &without)["affinity"],
        json!({"nodeAffinity": node("disk"), "podAntiAffinity": near})
    );
}

#[test]
fn namespaces_in_affinity_are_those_below() {
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
fn a_pod_that_must_be_near_what_has_no_place_below_is_refused() {
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
fn labels_of_which_the_api_server_above_made_a_selector_are_not_selected_twice() {
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
    let lower = spec_by(&upper, &Policy::default());
    assert_eq!(lower["affinity"]["podAntiAffinity"][REQUIRED][0], expected);
}
