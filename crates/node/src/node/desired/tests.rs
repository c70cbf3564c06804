use super::*;

const NOW: &str = "2026-01-01T00:10:00.9Z";

fn taint(key: &str, value: &str, effect: &str) -> Taint {
    let value = (!value.is_empty()).then(|| value.to_owned());
    Taint { key: key.to_owned(), value, effect: effect.to_owned(), time_added: None }
}

fn config() -> NodeConfig {
    NodeConfig {
        name: "node".to_owned(),
        internal_ip: [192, 0, 2, 1].into(),
        external_ip: None,
        hostname: None,
        kubelet_port: 10_250,
        operating_system: "linux".to_owned(),
        kubelet_version: "v1".to_owned(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        taints: Vec::new(),
        declared_features: None,
    }
}

fn template() -> NodeTemplate {
    let address = |kind: &str, address: &str| k8s_openapi::api::core::v1::NodeAddress {
        type_: kind.to_owned(),
        address: address.to_owned(),
    };
    NodeTemplate {
        labels: BTreeMap::from([("type".to_owned(), "virtual-kubelet".to_owned())]),
        capacity: BTreeMap::from([("cpu".to_owned(), "2".parse().unwrap())]),
        addresses: vec![address("InternalIP", "192.0.2.1"), address("InternalIP", "2001:db8::1")],
        conditions: vec![condition("MemoryPressure", ConditionStatus::False)],
        ..NodeTemplate::default()
    }
}

fn condition(kind: &str, status: ConditionStatus) -> Condition {
    Condition { kind: kind.to_owned(), status, reason: "Because".to_owned(), message: "so".to_owned() }
}

fn desired(edit: impl FnOnce(&mut NodeTemplate)) -> DesiredNode {
    restricted(false, edit)
}

fn restricted(restricted: bool, edit: impl FnOnce(&mut NodeTemplate)) -> DesiredNode {
    let mut template = template();
    edit(&mut template);
    DesiredNode::new(&config(), template, restricted)
}

fn node(body: Value) -> Node {
    serde_json::from_value(body).unwrap()
}

/// A Node with these taints, on which we remember `ours`.
fn tainted(taints: &[Taint], ours: &str) -> Node {
    node(json!({
        "metadata": {"name": "node", "uid": "u", "resourceVersion": "3", "annotations": {TAINTS_ANNOTATION: ours}},
        "spec": {"taints": taints},
    }))
}

fn ids(taints: &[Taint]) -> Vec<String> {
    taints
        .iter()
        .map(|taint| format!("{}={}:{}", taint.key, taint.value.as_deref().unwrap_or(""), taint.effect))
        .collect()
}

/// What is there, what we remember as ours, what we want, and what becomes of it; `None` is nothing to do.
type Case = (&'static str, Vec<Taint>, &'static str, Vec<Taint>, Option<Vec<&'static str>>);

#[test]
fn our_taints_are_updated_and_those_of_others_are_kept() {
    let (no, run) = ("NoSchedule", "NoExecute");
    let a = || taint("a", "1", no);
    let cases: [Case; 10] = [
        ("none", vec![], "", vec![], None),
        ("as wanted", vec![a()], "a:NoSchedule", vec![a()], None),
        ("as wanted, among others", vec![taint("x", "", run), a()], "a:NoSchedule", vec![a()], None),
        ("missing", vec![], "", vec![a()], Some(vec!["a=1:NoSchedule"])),
        ("other value", vec![taint("a", "0", no)], "", vec![a()], Some(vec!["a=1:NoSchedule"])),
        ("other effect", vec![taint("a", "1", run)], "a:NoExecute", vec![a()], Some(vec!["a=1:NoSchedule"])),
        (
            "the same key with an effect that is somebody else's",
            vec![taint("a", "1", run)],
            "",
            vec![a()],
            Some(vec!["a=1:NoExecute", "a=1:NoSchedule"]),
        ),
        ("unwanted", vec![taint("x", "", no), a()], "a:NoSchedule", vec![], Some(vec!["x=:NoSchedule"])),
        ("somebody else's", vec![a()], "", vec![], None),
        ("remembered and gone", vec![], "a:NoSchedule,b:NoExecute", vec![], None),
    ];
    for (why, there, ours, wanted, result) in cases {
        let node = tainted(&there, ours);
        let change = desired(|template| template.taints = wanted).spec_patch(&node);
        let taints = change.as_ref().map(|change| {
            assert_eq!(change["metadata"], json!({"uid": "u", "resourceVersion": "3"}), "{why}");
            ids(&serde_json::from_value::<Vec<Taint>>(change["spec"]["taints"].clone()).unwrap())
        });
        let result = result.map(|all| all.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(taints, result, "{why}");
    }
}

#[test]
fn an_empty_value_is_no_value() {
    let there = Taint { value: Some(String::new()), ..taint("a", "", "NoSchedule") };
    let desired = desired(|template| template.taints = vec![taint("a", "", "NoSchedule")]);
    assert_eq!(desired.spec_patch(&tainted(&[there], "a:NoSchedule")), None);
}

#[test]
fn a_restricted_identity_never_sends_taints_but_detects_differences() {
    let wanted = |template: &mut NodeTemplate| template.taints = vec![taint("a", "", "NoSchedule")];
    let desired = restricted(true, wanted);
    assert_eq!(desired.spec_patch(&tainted(&[], "")), None);
    assert!(desired.taints_are_protected(&tainted(&[], "")));
    assert!(!desired.taints_are_protected(&tainted(&[taint("a", "", "NoSchedule")], "")));
    assert_eq!(desired.registration()["spec"]["taints"][0]["key"], "a", "but at its registration it may");
}

#[test]
fn stale_taints_stay_recorded_until_they_are_removed() {
    let desired = desired(|template| template.taints = vec![taint("new", "", "NoSchedule")]);
    let remembered = |node: &Node| {
        desired.metadata(node)["metadata"]["annotations"][TAINTS_ANNOTATION].as_str().unwrap().to_owned()
    };
    let old = taint("old", "", "NoSchedule");
    assert_eq!(remembered(&tainted(&[old], "old:NoSchedule")), "new:NoSchedule,old:NoSchedule");
    assert_eq!(remembered(&tainted(&[], "old:NoSchedule")), "new:NoSchedule");
    let none = self::desired(|_| {}).metadata(&tainted(&[], "old:NoSchedule"));
    assert_eq!(none["metadata"]["annotations"], json!({}), "nothing to remember");
}

#[test]
fn a_provider_id_is_written_once() {
    let desired = desired(|template| template.provider_id = Some("mock://1".to_owned()));
    let change = desired.spec_patch(&node(json!({"metadata": {}}))).unwrap();
    assert_eq!(change["spec"], json!({"providerID": "mock://1"}));
    assert_eq!(desired.spec_patch(&node(json!({"metadata": {}, "spec": {"providerID": "other"}}))), None);
}

#[test]
fn the_transition_time_moves_only_with_the_status() {
    let desired = desired(|_| {});
    let now: Timestamp = NOW.parse().unwrap();
    let since = "2025-12-31T00:00:00Z";
    let before = |status: &str| {
        node(json!({"metadata": {}, "status": {"conditions": [{
            "type": "Ready", "status": status, "reason": "Other", "message": "other",
            "lastTransitionTime": since, "lastHeartbeatTime": since,
        }]}}))
    };
    let times = |node: &Node, status: ConditionStatus| {
        let body = desired.status(node, &condition("Ready", status), now);
        let conditions = body["status"]["conditions"].as_array().unwrap().clone();
        assert_eq!(conditions.len(), 2, "ours, and Ready");
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready").unwrap();
        assert_eq!(ready["lastHeartbeatTime"], "2026-01-01T00:10:00Z", "whole seconds, and none to come");
        ready["lastTransitionTime"].as_str().unwrap().to_owned()
    };
    assert_eq!(times(&before("True"), ConditionStatus::True), since);
    assert_eq!(times(&before("False"), ConditionStatus::False), since);
    assert_eq!(times(&before("False"), ConditionStatus::True), "2026-01-01T00:10:00Z");
    assert_eq!(times(&before("Unknown"), ConditionStatus::True), "2026-01-01T00:10:00Z");
    assert_eq!(times(&node(json!({"metadata": {}})), ConditionStatus::True), "2026-01-01T00:10:00Z");
}

#[test]
fn a_restricted_identity_skips_labels_that_it_may_not_set() {
    let edit = |template: &mut NodeTemplate| {
        template.labels.insert("kubernetes.io/role".to_owned(), "agent".to_owned());
        template.labels.insert("kubernetes.io/os".to_owned(), "linux".to_owned());
    };
    let node = node(json!({"metadata": {}}));
    let open = desired(edit);
    assert_eq!(open.metadata(&node)["metadata"]["labels"].as_object().unwrap().len(), 3);
    assert!(open.refused_labels.is_empty());
    let restricted = restricted(true, edit);
    assert_eq!(
        restricted.metadata(&node)["metadata"]["labels"],
        json!({"type": "virtual-kubelet", "kubernetes.io/os": "linux"})
    );
    assert_eq!(restricted.refused_labels, ["kubernetes.io/role"]);
}

#[test]
fn a_restricted_identity_keeps_our_labels_that_it_may_not_remove() {
    let labels =
        json!({"kubernetes.io/role": "agent", "x.k8s.io/ours": "1", "x.k8s.io/theirs": "2", "old": "3"});
    let fields =
        json!({"f:metadata": {"f:labels": {"f:kubernetes.io/role": {}, "f:x.k8s.io/ours": {}, "f:old": {}}}});
    let entry = |manager: &str, operation: &str| json!({"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields});
    let with = |entry: Value| node(json!({"metadata": {"labels": labels, "managedFields": [entry]}}));
    let sent = |desired: &DesiredNode, node: &Node| desired.metadata(node)["metadata"]["labels"].clone();
    let ours = with(entry("virtual-kubelet", "Apply"));
    assert_eq!(
        sent(&restricted(true, |_| {}), &ours),
        json!({"type": "virtual-kubelet", "kubernetes.io/role": "agent", "x.k8s.io/ours": "1"})
    );
    let bare = json!({"type": "virtual-kubelet"});
    assert_eq!(sent(&desired(|_| {}), &ours), bare);
    for theirs in [entry("kubectl", "Apply"), entry("virtual-kubelet", "Update")] {
        assert_eq!(sent(&restricted(true, |_| {}), &with(theirs)), bare);
    }
}

#[test]
fn addresses_replace_the_list_and_are_compared_in_order() {
    let desired = desired(|_| {});
    let with = |addresses: Value| node(json!({"metadata": {"uid": "u"}, "status": {"addresses": addresses}}));
    let list = json!([
        {"type": "InternalIP", "address": "192.0.2.1"}, {"type": "InternalIP", "address": "2001:db8::1"},
    ]);
    let empty = with(json!([]));
    assert!(desired.addresses_differ(&empty) && desired.addresses_differ(&node(json!({"metadata": {}}))));
    assert!(!desired.addresses_differ(&with(list.clone())));
    assert!(desired.addresses_differ(&with(json!([list[1], list[0]]))));
    let patch = desired.addresses(&empty);
    assert_eq!(patch["metadata"], json!({"uid": "u"}));
    assert_eq!(patch["status"]["addresses"], json!([{"$patch": "replace"}, list[0], list[1]]));
}

#[test]
fn only_our_fields_are_compared() {
    let desired = desired(|template| {
        template.annotations.insert("note".to_owned(), "x".to_owned());
    });
    let body = |label: &str, theirs: &str, time: &str, cpu: &str, pressure: &str| {
        node(json!({
            "metadata": {"labels": {"type": label, "theirs": theirs}, "annotations": {"note": "x", "theirs": theirs}},
            "status": {
                "capacity": {"cpu": cpu, "theirs": theirs.len().to_string()},
                "conditions": [
                    {"type": "MemoryPressure", "status": pressure, "lastHeartbeatTime": time, "lastTransitionTime": time},
                    {"type": "Theirs", "status": theirs},
                ],
                "addresses": [{"type": "Hostname", "address": theirs}],
                "images": [{"names": [theirs]}],
            },
        }))
    };
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z");
    let before = body("virtual-kubelet", "a", early, "2", "False");
    let unchanged = body("virtual-kubelet", "bb", late, "2", "False");
    assert_eq!(desired.observed_metadata(&before), desired.observed_metadata(&unchanged));
    assert_eq!(desired.observed_status(&before), desired.observed_status(&unchanged));

    let relabelled = body("other", "a", early, "2", "False");
    assert_ne!(desired.observed_metadata(&before), desired.observed_metadata(&relabelled));
    for changed in [
        body("virtual-kubelet", "a", early, "3", "False"),
        body("virtual-kubelet", "a", early, "2", "Unknown"),
        node(json!({"metadata": {}})),
    ] {
        assert_ne!(desired.observed_status(&before), desired.observed_status(&changed));
    }
    let bare = desired.observed_metadata(&node(json!({"metadata": {}})));
    assert_ne!(desired.observed_metadata(&before), bare);
}

#[test]
fn the_provider_cannot_set_the_ready_condition() {
    let desired = desired(|template| template.conditions.push(condition("Ready", ConditionStatus::True)));
    let ready = condition("Ready", ConditionStatus::False);
    let body = desired.status(&node(json!({"metadata": {}})), &ready, NOW.parse().unwrap());
    let all = body["status"]["conditions"].as_array().unwrap();
    let states: Vec<&Value> = all
        .iter()
        .filter(|condition| condition["type"] == "Ready")
        .map(|condition| &condition["status"])
        .collect();
    assert_eq!(states, [&json!("False")]);
}

#[test]
fn the_compared_status_has_no_timestamps() {
    let (first, second) = (desired(|_| {}), desired(|_| {}));
    let ready = condition("Ready", ConditionStatus::True);
    assert_eq!(first.wanted_status(&ready), second.wanted_status(&ready));
    assert_ne!(
        first.wanted_status(&ready),
        first.wanted_status(&Condition { reason: "Other".to_owned(), ..ready.clone() })
    );
    let more = desired(|template| {
        template.capacity.insert("cpu".to_owned(), "3".parse().unwrap());
    });
    assert_ne!(first.wanted_status(&ready), more.wanted_status(&ready));
}

#[test]
fn the_provider_can_override_the_kubelet_version() {
    let claimed = |version: Option<&str>| {
        let desired = desired(|template| template.kubelet_version = version.map(str::to_owned));
        desired.status["nodeInfo"]["kubeletVersion"].clone()
    };
    assert_eq!(claimed(None), "v1");
    assert_eq!(claimed(Some("v1.18.15")), "v1.18.15");
    assert_eq!(claimed(Some("")), "v1", "nothing is no version");
}
