//! What conversion does with each part of a pod.

use serde_json::{Value, json};

use super::*;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const TOLERATED: &str =
    r#"[{"key": "virtual-kubelet.io/provider", "operator": "Exists", "effect": "NoSchedule"}]"#;

/// A pod that is converted already, except for this part of its spec.
fn pod(spec: &Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": "web"},
        "spec": {
            "containers": [{"name": "web", "image": "web:1"}],
            "tolerations": serde_json::from_str::<Value>(TOLERATED).unwrap(),
        },
    });
    pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    pod
}

fn annotated(mut pod: Value, annotations: Value) -> Value {
    pod["metadata"]["annotations"] = annotations;
    pod
}

fn read(pod: &Value) -> Pod {
    serde_json::from_value(pod.clone()).unwrap()
}

fn converted_by(pod: &Value, settings: &Settings) -> Value {
    let mut after = pod.clone();
    json_patch::patch(&mut after, &convert(&read(pod), settings).patch).unwrap();
    let again = convert(&read(&after), settings);
    assert_eq!(again.patch, Patch::default(), "conversion of a converted pod changes nothing");
    after
}

fn converted(pod: &Value) -> Value {
    converted_by(pod, &Settings::default())
}

fn annotation<'a>(pod: &'a Value, key: &str) -> &'a Value {
    &pod["metadata"]["annotations"][key]
}

fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    match values {
        [] => json!({"key": key, "operator": operator}),
        values => json!({"key": key, "operator": operator, "values": values}),
    }
}

fn terms(terms: &Value) -> Value {
    json!({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}})
}

#[test]
fn a_pod_that_concerns_no_machine_only_gets_the_toleration() {
    let before = json!({"metadata": {"name": "web"}, "spec": {"containers": []}});
    let after = converted(&before);
    assert_eq!(after["spec"]["tolerations"], serde_json::from_str::<Value>(TOLERATED).unwrap());
    assert_eq!(after["metadata"], before["metadata"]);
    let done = pod(&json!({"nodeSelector": {"type": "virtual-kubelet"}}));
    assert_eq!(converted(&done), done);
}

#[test]
fn keys_of_the_node_selector_move_unless_they_are_upper_keys() {
    let before = pod(&json!({"nodeSelector": {
        "type": "virtual-kubelet", "clusterID": "a", "multicluster.virtual-kubelet.io/cluster": "a",
        "disk": "ssd", "example.com/gpu": "a100", "empty": "",
    }}));
    let after = converted(&before);
    assert_eq!(
        after["spec"]["nodeSelector"],
        json!({"type": "virtual-kubelet", "clusterID": "a", "multicluster.virtual-kubelet.io/cluster": "a"})
    );
    assert_eq!(annotation(&after, names::LOWER_NODES), "disk=ssd,empty=,example.com/gpu=a100");
}

#[test]
fn upper_keys_are_configured() {
    let before = pod(&json!({"nodeSelector": {"type": "x", "disk": "ssd"}}));
    let settings = Settings { upper_keys: vec!["disk".to_owned()], ..Settings::default() };
    let after = converted_by(&before, &settings);
    assert_eq!(after["spec"]["nodeSelector"], json!({"disk": "ssd"}));
    assert_eq!(annotation(&after, names::LOWER_NODES), "type=x");
}

#[test]
fn expressions_of_a_single_term_move_with_every_operator() {
    let before = pod(&terms(&json!([{"matchExpressions": [
        expression("clusterID", "In", &["a", "b"]),
        expression("disk", "In", &["ssd", "nvme"]),
        expression("os", "NotIn", &["windows"]),
        expression("gpu", "Exists", &[]),
        expression("old", "DoesNotExist", &[]),
        expression("generation", "Gt", &["5"]),
        expression("generation", "Lt", &["9"]),
        expression("blank", "In", &[""]),
    ]}])));
    let after = converted(&before);
    assert_eq!(
        annotation(&after, names::LOWER_NODES),
        "!old,blank in (),disk in (ssd,nvme),generation<9,generation>5,gpu,os notin (windows)"
    );
    let kept = json!([{"matchExpressions": [expression("clusterID", "In", &["a", "b"])]}]);
    assert_eq!(after["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"], kept);
}

#[test]
fn a_term_without_expressions_left_is_removed_unless_it_names_nodes() {
    let moved = expression("disk", "Exists", &[]);
    let after = converted(&pod(&terms(&json!([{"matchExpressions": [moved]}]))));
    assert_eq!(after["spec"]["affinity"], json!({"nodeAffinity": {}}));
    let fields = json!([{"key": "metadata.name", "operator": "In", "values": ["vk-a"]}]);
    let after = converted(&pod(&terms(&json!([{"matchExpressions": [moved], "matchFields": fields}]))));
    assert_eq!(
        after["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"],
        json!([{"matchFields": fields}])
    );
    assert_eq!(annotation(&after, names::LOWER_NODES), "disk");
}

#[test]
fn several_terms_without_upper_keys_move_unchanged() {
    let all = json!([
        {"matchExpressions": [expression("disk", "In", &["ssd"]), expression("old", "DoesNotExist", &[])]},
        {"matchExpressions": [expression("gpu", "Exists", &[])]},
    ]);
    let after = converted(&pod(&terms(&all)));
    assert_eq!(after["spec"]["affinity"], json!({"nodeAffinity": {}}));
    let lower: Value = serde_json::from_str(annotation(&after, names::LOWER).as_str().unwrap()).unwrap();
    assert_eq!(lower, terms(&all));
}

#[test]
fn several_terms_with_upper_keys_stay_and_the_pod_says_so_if_they_are_mixed() {
    let upper = json!({"matchExpressions": [expression("clusterID", "In", &["a"])]});
    let named = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["vk-a"]}]});
    let lower = json!({"matchExpressions": [expression("disk", "Exists", &[])]});
    let only_upper = pod(&terms(&json!([upper, named])));
    assert_eq!(converted(&only_upper), only_upper);
    for mixed in [json!([upper, lower]), json!([named, lower])] {
        let before = pod(&terms(&mixed));
        let after = converted(&before);
        assert_eq!(after["spec"], before["spec"]);
        assert_eq!(annotation(&after, names::NOT_CONVERTED), reason::MIXED_TERMS);
        assert_eq!(convert(&read(&before), &Settings::default()).not_converted, [reason::MIXED_TERMS]);
    }
}

#[test]
fn several_terms_stay_if_their_annotation_is_in_use() {
    let lower = |key: &str| json!({"matchExpressions": [expression(key, "Exists", &[])]});
    for key in [names::LOWER, names::CLUSTER_SELECTOR] {
        let before = annotated(pod(&terms(&json!([lower("disk"), lower("gpu")]))), json!({key: "{}"}));
        let after = converted(&before);
        assert_eq!(after["spec"], before["spec"]);
        assert_eq!(annotation(&after, key), "{}");
        assert_eq!(annotation(&after, names::NOT_CONVERTED), reason::LOWER_IS_SET);
    }
}

#[test]
fn what_is_no_label_stays_for_the_api_server_to_refuse() {
    let before = pod(&json!({"nodeSelector": {"a,b": "c", "disk": "two words", "ok": "yes"}}));
    let after = converted(&before);
    assert_eq!(after["spec"]["nodeSelector"], json!({"a,b": "c", "disk": "two words"}));
    assert_eq!(annotation(&after, names::LOWER_NODES), "ok=yes");
    for wrong in [
        expression("disk", "In", &[]),
        expression("disk", "In", &["a,b=c"]),
        expression("disk", "Exists", &["ssd"]),
        expression("disk", "Gt", &["five"]),
        expression("disk", "Gt", &["1", "2"]),
        expression("disk", "Like", &["ssd"]),
    ] {
        for list in [json!([{"matchExpressions": [wrong]}]), json!([{"matchExpressions": [wrong]}, {}])] {
            let before = pod(&terms(&list));
            assert_eq!(converted(&before), before);
        }
    }
}

#[test]
fn a_selector_in_the_annotation_is_appended_to() {
    let selector = json!({"nodeSelector": {"disk": "ssd", "gpu": "a100", "a": "b"}});
    for (before, after) in [
        ("zone in (x,y)", "zone in (x,y),a=b,disk=ssd,gpu=a100"),
        ("disk=ssd,gpu in (disk=ssd,a=b)", "disk=ssd,gpu in (disk=ssd,a=b),a=b,gpu=a100"),
        ("gpu=a100 , disk=ssd, a=b", "gpu=a100 , disk=ssd, a=b"),
        ("no selector at all (", "no selector at all (,a=b,disk=ssd,gpu=a100"),
    ] {
        let pod = annotated(pod(&selector), json!({names::LOWER_NODES: before}));
        assert_eq!(annotation(&converted(&pod), names::LOWER_NODES), after, "{before}");
    }
}

#[test]
fn what_another_webhook_adds_later_is_converted_and_nothing_is_lost() {
    let spread = |key: &str| json!({"topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1});
    let mut pod = converted(&pod(&json!({
        "nodeSelector": {"disk": "ssd"}, "topologySpreadConstraints": [spread(names::HOSTNAME)],
    })));
    pod["spec"]["nodeSelector"]["late"] = json!("x");
    pod["spec"]["topologySpreadConstraints"].as_array_mut().unwrap().push(spread("example.com/rack"));
    let after = converted(&pod);
    assert_eq!(annotation(&after, names::LOWER_NODES), "disk=ssd,late=x");
    assert_eq!(annotation(&after, names::LOWER_SPREAD), "kubernetes.io/hostname,example.com/rack");
    assert_eq!(after["spec"]["nodeSelector"], json!({}));
}

#[test]
fn required_pod_anti_affinity_by_host_name_means_lower_machines() {
    let by = |key: &str| json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": "db"}}});
    let preferred = json!([{"weight": 1, "podAffinityTerm": by(names::HOSTNAME)}]);
    let zone = "topology.kubernetes.io/zone";
    let after = converted(&pod(&json!({"affinity": {
        "podAffinity": {REQUIRED: [by(names::HOSTNAME)]},
        "podAntiAffinity": {
            REQUIRED: [by(zone), by(names::HOSTNAME)],
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        },
    }})));
    assert_eq!(
        after["spec"]["affinity"],
        json!({
            "podAffinity": {REQUIRED: [by(names::HOSTNAME)]},
            "podAntiAffinity": {
                REQUIRED: [by(zone), by(names::MACHINE)],
                "preferredDuringSchedulingIgnoredDuringExecution": preferred,
            },
        })
    );
}

#[test]
fn hard_spreads_over_lower_nodes_become_soft() {
    let spread = |key: &str, when: &str| json!({"topologyKey": key, "whenUnsatisfiable": when, "maxSkew": 1});
    let mut domains = spread("example.com/rack", "DoNotSchedule");
    domains["minDomains"] = json!(3);
    let zone = spread("topology.kubernetes.io/zone", "DoNotSchedule");
    let after = converted(&pod(&json!({"topologySpreadConstraints": [
        zone, spread(names::HOSTNAME, "DoNotSchedule"), domains, spread("example.com/row", "ScheduleAnyway"),
    ]})));
    let soft = |key: &str| spread(key, "ScheduleAnyway");
    assert_eq!(
        after["spec"]["topologySpreadConstraints"],
        json!([zone, soft(names::HOSTNAME), soft("example.com/rack"), soft("example.com/row")])
    );
    assert_eq!(annotation(&after, names::LOWER_SPREAD), "example.com/rack:3,kubernetes.io/hostname");
}

#[test]
fn a_hard_spread_stays_if_there_is_a_soft_one_with_its_key() {
    let spread =
        |when: &str| json!({"topologyKey": names::HOSTNAME, "whenUnsatisfiable": when, "maxSkew": 1});
    let before =
        pod(&json!({"topologySpreadConstraints": [spread("DoNotSchedule"), spread("ScheduleAnyway")]}));
    let after = converted(&before);
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(annotation(&after, names::NOT_CONVERTED), reason::SOFT_EXISTS);
}

#[test]
fn a_toleration_of_the_pod_stands() {
    let add = |own: Value| {
        let list = converted(&pod(&json!({"tolerations": [own]})))["spec"]["tolerations"].clone();
        list.as_array().unwrap().len() == 2
    };
    assert!(!add(json!({"operator": "Exists"})));
    assert!(!add(json!({"key": names::TAINT, "operator": "Equal", "value": "cluster"})));
    assert!(!add(json!({"key": names::TAINT, "operator": "Exists", "effect": "NoSchedule"})));
    assert!(add(json!({"key": names::TAINT, "operator": "Exists", "effect": "NoExecute"})));
    assert!(add(json!({"key": "gpu", "operator": "Exists"})));
}

#[test]
fn pods_stay_on_a_lost_virtual_node_if_it_is_configured() {
    let settings = Settings { tolerate_lost: true, ..Settings::default() };
    let lost = |key: &str, seconds: Option<i64>| {
        let mut toleration = json!({"key": key, "operator": "Exists", "effect": "NoExecute"});
        if let Some(seconds) = seconds {
            toleration["tolerationSeconds"] = json!(seconds);
        }
        toleration
    };
    let [not_ready, unreachable] = names::LOST_TAINTS;
    let ours: Value = serde_json::from_str(TOLERATED).unwrap();
    let limited = json!([ours[0], lost(not_ready, Some(300)), lost(unreachable, Some(300))]);
    let unlimited = json!([ours[0], lost(not_ready, None), lost(unreachable, None)]);
    for before in [limited, ours.clone()] {
        let after = converted_by(&pod(&json!({"tolerations": before})), &settings);
        assert_eq!(after["spec"]["tolerations"], unlimited);
        assert_eq!(annotation(&after, names::TOLERATES_LOST), "true");
    }
    let chosen = pod(&json!({"tolerations": [ours[0], lost(not_ready, Some(30)), lost(unreachable, None)]}));
    assert_eq!(converted_by(&chosen, &settings), chosen, "the choice of the pod");
}

#[test]
fn the_gate_is_added_once_and_beside_others() {
    let settings = Settings { gate: Some(true), ..Settings::default() };
    let ours = json!({"name": names::GATE});
    for (before, after) in [
        (json!({}), json!([ours])),
        (
            json!({"schedulingGates": [{"name": "example.com/quota"}]}),
            json!([{"name": "example.com/quota"}, ours]),
        ),
        (json!({"schedulingGates": [ours]}), json!([ours])),
    ] {
        assert_eq!(converted_by(&pod(&before), &settings)["spec"]["schedulingGates"], after);
    }
}

#[test]
fn pods_with_a_node_of_daemonsets_of_kube_system_and_from_above_are_exempt() {
    let owner = |kind: &str| json!({"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u"});
    let plain = pod(&json!({}));
    assert_eq!(exemption(&read(&plain), "default"), None);
    assert!(exemption(&read(&plain), "kube-system").unwrap().contains("kube-system"));
    assert!(exemption(&read(&pod(&json!({"nodeName": "n"}))), "default").unwrap().contains("bound"));
    for (kind, exempt) in [("DaemonSet", true), ("ReplicaSet", false)] {
        let mut owned = plain.clone();
        owned["metadata"]["ownerReferences"] = json!([owner(kind)]);
        assert_eq!(exemption(&read(&owned), "default").is_some(), exempt);
    }
    let mut copy = plain;
    copy["metadata"]["labels"] = json!({names::ORIGIN: "another"});
    assert!(exemption(&read(&copy), "default").unwrap().contains("another cluster"));
}
