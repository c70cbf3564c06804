//! The lower pod gets back what conversion moved into annotations.

use super::*;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn below_with(spec: Value, annotations: &[(&str, &str)]) -> Value {
    let mut upper = pod(spec);
    for (key, value) in annotations {
        annotate(&mut upper, key, value);
    }
    spec_by(&upper, &TranslationPolicy::default())
}

fn refusal(spec: Value, annotation: (&str, &str)) -> String {
    let mut upper = pod(spec);
    annotate(&mut upper, annotation.0, annotation.1);
    refused(&upper, &TranslationPolicy::default())
}

fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    match values {
        [] => json!({"key": key, "operator": operator}),
        values => json!({"key": key, "operator": operator, "values": values}),
    }
}

#[test]
fn a_selector_for_lower_nodes_becomes_node_selector_and_affinity() {
    let lower = below_with(
        json!({"nodeSelector": {"clusterID": "a"}}),
        &[(names::LOWER_NODES, "disk=ssd,gpu in (a100,h100),!old,generation>5")],
    );
    assert_eq!(lower["nodeSelector"], json!({"disk": "ssd"}));
    let expressions = json!([
        expression("gpu", "In", &["a100", "h100"]),
        expression("old", "DoesNotExist", &[]),
        expression("generation", "Gt", &["5"]),
    ]);
    assert_eq!(
        lower["affinity"],
        json!({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}})
    );
}

#[test]
fn a_selector_for_lower_nodes_is_joined_with_the_other_annotation() {
    let term = |keys: &[&str]| {
        let all: Vec<Value> = keys.iter().map(|key| expression(key, "Exists", &[])).collect();
        json!({"matchExpressions": all})
    };
    let stated = json!({
        "nodeSelector": {"disk": "ssd", "row": "1"},
        "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term(&["a"]), term(&["b"]), {}]}}},
    });
    let lower = below_with(
        json!({}),
        &[(names::LOWER, &stated.to_string()), (names::LOWER_NODES, "c,disk=ssd,rack=7")],
    );
    assert_eq!(lower["nodeSelector"], json!({"disk": "ssd", "row": "1", "rack": "7"}));
    assert_eq!(
        lower["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"],
        json!([term(&["a", "c"]), term(&["b", "c"]), {}]),
        "terms are alternatives, and an empty one matches nothing"
    );
}

#[test]
fn a_selector_cannot_leave_the_nodes_of_the_virtual_node() {
    let mut upper = pod(json!({}));
    annotate(&mut upper, names::LOWER_NODES, "pool=b");
    let policy = TranslationPolicy {
        node_selector: [("pool".to_owned(), "a".to_owned())].into(),
        ..TranslationPolicy::default()
    };
    let lower = spec_by(&upper, &policy);
    assert_eq!(lower["nodeSelector"], json!({"pool": "a"}));
    assert_eq!(
        lower["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"],
        json!([{"matchExpressions": [expression("pool", "In", &["b"])]}]),
        "no node has both, and the lower scheduler says so"
    );
}

#[test]
fn preferred_node_affinity_is_for_both_schedulers() {
    let prefer = |key: &str| json!([{"weight": 1, "preference": {"matchExpressions": [expression(key, "Exists", &[])]}}]);
    let spec = json!({"affinity": {"nodeAffinity": {
        PREFERRED: prefer("disk"),
        REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression("clusterID", "Exists", &[])]}]},
    }}});
    let lower = below_with(spec.clone(), &[]);
    assert_eq!(lower["affinity"], json!({"nodeAffinity": {PREFERRED: prefer("disk")}}));
    let stated = json!({"affinity": {"nodeAffinity": {PREFERRED: prefer("gpu")}}}).to_string();
    let lower = below_with(spec, &[(names::LOWER, &stated)]);
    assert_eq!(lower["affinity"], json!({"nodeAffinity": {PREFERRED: prefer("gpu")}}));
}

fn spread(key: &str, when: &str) -> Value {
    json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when})
}

#[test]
fn soft_spreads_are_for_both_schedulers_and_softened_ones_are_hard_again() {
    let upper = json!({"topologySpreadConstraints": [
        spread("clusterID", "DoNotSchedule"), spread("kubernetes.io/hostname", "ScheduleAnyway"),
        spread("rack", "ScheduleAnyway"), spread("row", "ScheduleAnyway"),
    ]});
    let mut rack = spread("rack", "DoNotSchedule");
    rack["minDomains"] = json!(3);
    let host = spread("kubernetes.io/hostname", "DoNotSchedule");
    let annotation = (names::LOWER_SPREAD, "kubernetes.io/hostname, rack:3");
    let lower = below_with(upper.clone(), &[annotation]);
    assert_eq!(lower["topologySpreadConstraints"], json!([host, rack, spread("row", "ScheduleAnyway")]));
    let zone = spread("zone", "DoNotSchedule");
    let stated = json!({"topologySpreadConstraints": [zone]}).to_string();
    let lower = below_with(upper, &[annotation, (names::LOWER, &stated)]);
    assert_eq!(lower["topologySpreadConstraints"], json!([zone, host, rack]));
}

#[test]
fn keys_that_the_upper_api_server_merged_into_a_spread_are_dropped() {
    let mut merged = spread("rack", "ScheduleAnyway");
    merged["matchLabelKeys"] = json!(["pod-template-hash"]);
    merged["labelSelector"] =
        json!({"matchExpressions": [{"key": "pod-template-hash", "operator": "In", "values": ["abc"]}]});
    let lower = below_with(json!({"topologySpreadConstraints": [merged]}), &[]);
    merged.as_object_mut().unwrap().remove("matchLabelKeys");
    assert_eq!(lower["topologySpreadConstraints"], json!([merged]));
}

#[test]
fn pods_that_must_be_on_different_machines_are_on_different_lower_nodes() {
    let by = |key: &str| json!({REQUIRED: [{"topologyKey": key, "labelSelector": {"matchLabels": {"app": "db"}}}]});
    let lower = below_with(json!({"affinity": {"podAntiAffinity": by(names::MACHINE)}}), &[]);
    assert_eq!(lower["affinity"], json!({"podAntiAffinity": by("kubernetes.io/hostname")}));
}

#[test]
fn a_pod_that_stays_on_a_lost_virtual_node_leaves_a_lost_lower_node() {
    let lost = json!({"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"});
    let own = json!({"tolerations": [lost]});
    assert_eq!(below_with(own.clone(), &[])["tolerations"], json!([lost]), "the wish of the pod");
    assert_eq!(below_with(own.clone(), &[(names::TOLERATES_LOST, "true")])["tolerations"], Value::Null);
    let stated = own.to_string();
    let lower = below_with(own, &[(names::TOLERATES_LOST, "true"), (names::LOWER, &stated)]);
    assert_eq!(lower["tolerations"], json!([lost]), "said for the lower cluster");
}

#[test]
fn annotations_that_cannot_be_read_are_rejected_with_a_message() {
    for (text, words) in [
        ("disk in (ssd", "no ')'"),
        ("{\"disk\": \"ssd\"}", "not a label"),
        ("disk=ssd,,gpu", "a label was expected"),
        ("generation>five", "a whole number"),
    ] {
        let why = refusal(json!({}), (names::LOWER_NODES, text));
        assert!(why.starts_with(&format!("annotation {}: ", names::LOWER_NODES)), "{why}");
        assert!(why.contains(words) && why.contains("expected a label selector"), "{why}");
    }
    let soft = json!({"topologySpreadConstraints": [spread("rack", "ScheduleAnyway")]});
    for (text, words) in [
        ("rack:0", "is not a topology key"),
        ("rack:many", "is not a topology key"),
        ("a b", "is not a topology key"),
        ("row", "no constraint with this topologyKey"),
    ] {
        let why = refusal(soft.clone(), (names::LOWER_SPREAD, text));
        assert!(why.starts_with(&format!("annotation {}: ", names::LOWER_SPREAD)), "{why}");
        assert!(why.contains(words), "{why}");
    }
}
