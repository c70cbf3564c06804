#![expect(clippy::needless_pass_by_value, reason = "reads better")]

use serde_json::{Value, json};

use super::*;

fn node(more: Value) -> Node {
    let mut node = json!({
        "metadata": {"name": "vk", "labels": {"zone": "a", "cores": "8"}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "3", "example.com/gpu": "1"},
            "nodeInfo": {"operatingSystem": "linux", "architecture": "", "bootID": "", "containerRuntimeVersion": "",
                         "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "",
                         "osImage": "", "systemUUID": ""},
        },
    });
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        node["spec"][key] = value;
    }
    serde_json::from_value(node).expect("a node")
}

fn pod(spec: Value) -> Pod {
    let mut pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "main"}]}});
    for (key, value) in spec.as_object().cloned().unwrap_or_default() {
        pod["spec"][key] = value;
    }
    serde_json::from_value(pod).expect("a pod")
}

fn asking(requests: Value) -> Pod {
    pod(json!({"containers": [{"name": "main", "resources": {"requests": requests}}]}))
}

fn verdict(ledger: &mut ResourceLedger, uid: &str, pod: &Pod) -> Result<(), (String, String)> {
    match ledger.admit(&uid.into(), pod, &node(json!({}))) {
        AdmissionVerdict::Admitted => Ok(()),
        AdmissionVerdict::Rejected { reason, message, .. } => Err((reason, message)),
    }
}

fn reason(spec: Value, node: &Node) -> Option<String> {
    let mut ledger = ResourceLedger::new(Checks::Full, None);
    match ledger.admit(&"u".into(), &pod(spec), node) {
        AdmissionVerdict::Admitted => None,
        AdmissionVerdict::Rejected { reason, .. } => Some(reason),
    }
}

#[test]
fn pods_are_taken_while_there_is_room_and_refused_in_the_kubelets_words_after_that() {
    let mut ledger = ResourceLedger::new(Checks::Full, None);
    assert_eq!(verdict(&mut ledger, "a", &asking(json!({"cpu": "3", "memory": "1Gi"}))), Ok(()));
    let (reason, message) = verdict(&mut ledger, "b", &asking(json!({"cpu": "1500m"}))).expect_err("no room");
    assert_eq!(reason, "OutOfcpu");
    assert_eq!(message, "Node didn't have enough resource: cpu, requested: 1500, used: 3000, capacity: 4000");
    let (reason, message) =
        verdict(&mut ledger, "b", &asking(json!({"memory": "8Gi"}))).expect_err("no room");
    assert_eq!(reason, "OutOfmemory");
    assert!(message.ends_with("requested: 8589934592, used: 1073741824, capacity: 8589934592"), "{message}");
    assert_eq!(verdict(&mut ledger, "b", &asking(json!({"cpu": "1"}))), Ok(()));
    assert_eq!(verdict(&mut ledger, "c", &pod(json!({}))), Ok(()), "nothing asked");
    let (reason, message) = verdict(&mut ledger, "d", &pod(json!({}))).expect_err("three are the most");
    assert_eq!(reason, "OutOfpods");
    assert!(message.ends_with("pods, requested: 1, used: 3, capacity: 3"), "{message}");
    assert!(ledger.release("a"));
    assert!(!ledger.release("a"), "once");
    assert_eq!(verdict(&mut ledger, "d", &asking(json!({"cpu": "3"}))), Ok(()));
}

#[test]
fn a_resource_of_the_node_counts_and_one_of_the_cluster_does_not() {
    let mut ledger = ResourceLedger::new(Checks::Full, None);
    assert_eq!(verdict(&mut ledger, "a", &asking(json!({"example.com/gpu": "1"}))), Ok(()));
    let refused = verdict(&mut ledger, "b", &asking(json!({"example.com/gpu": "1"}))).expect_err("one only");
    assert_eq!(refused.0, "OutOfexample.com/gpu");
    assert_eq!(verdict(&mut ledger, "b", &asking(json!({"example.com/license": "7"}))), Ok(()));
    let refused = verdict(&mut ledger, "c", &asking(json!({"hugepages-2Mi": "2Mi"}))).expect_err("has none");
    assert_eq!(refused.0, "OutOfhugepages-2Mi");
}

#[test]
fn what_a_pod_requests_is_counted_as_the_scheduler_counts_it() {
    let requests_of = |spec: Value| {
        let all = requests(&pod(spec));
        all.into_iter().map(|(name, amount)| (name, amount.to_milli())).collect::<Vec<_>>()
    };
    let cpu = |milli: i64| vec![("cpu".to_owned(), milli)];
    let one = |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
    let mut sidecar = one("log", "100m");
    sidecar["restartPolicy"] = json!("Always");
    assert_eq!(requests_of(json!({"containers": [one("a", "1"), one("b", "500m")]})), cpu(1500));
    let init = json!({"containers": [one("a", "1")], "initContainers": [one("i", "3"), one("j", "2")]});
    assert_eq!(requests_of(init), cpu(3000), "the largest step, and not the sum");
    let both = json!({"containers": [one("a", "1")], "initContainers": [sidecar, one("j", "2")]});
    assert_eq!(requests_of(both), cpu(2100), "a sidecar runs beside the steps after it");
    let sidecar_only = json!({"containers": [one("a", "1")], "initContainers": [one("i", "200m"), sidecar]});
    assert_eq!(requests_of(sidecar_only), cpu(1100));
    let whole = json!({
        "containers": [one("a", "1")], "resources": {"requests": {"cpu": "2"}}, "overhead": {"cpu": "250m"},
    });
    assert_eq!(requests_of(whole), cpu(2250), "the pod as a whole, and the runtime's overhead");
}

#[test]
fn a_pod_that_wants_to_be_elsewhere_is_refused() {
    let here = node(json!({}));
    let affinity = |term: Value| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [term]}}}})
    };
    let expression = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
    let by = |key: &str, operator: &str, values: &[&str]| {
        affinity(json!({"matchExpressions": [expression(key, operator, values)]}))
    };
    let fine = [
        json!({"nodeSelector": {"zone": "a"}}),
        by("zone", "In", &["b", "a"]),
        by("zone", "NotIn", &["b"]),
        by("rack", "NotIn", &["b"]),
        by("zone", "Exists", &[]),
        by("rack", "DoesNotExist", &[]),
        by("cores", "Gt", &["7"]),
        by("cores", "Lt", &["9"]),
        affinity(json!({"matchFields": [expression("metadata.name", "In", &["vk"])]})),
    ];
    for spec in fine {
        assert_eq!(reason(spec.clone(), &here), None, "{spec}");
    }
    let wrong = [
        json!({"nodeSelector": {"zone": "b"}}),
        by("zone", "In", &["b"]),
        by("zone", "NotIn", &["a"]),
        by("rack", "Exists", &[]),
        by("zone", "DoesNotExist", &[]),
        by("cores", "Gt", &["8"]),
        by("zone", "Gt", &["1"]),
        affinity(json!({})),
        affinity(json!({"matchFields": [expression("metadata.name", "In", &["other"])]})),
    ];
    for spec in wrong {
        assert_eq!(reason(spec.clone(), &here).as_deref(), Some("NodeAffinity"), "{spec}");
    }
    assert_eq!(reason(json!({"os": {"name": "windows"}}), &here).as_deref(), Some("PodOSNotSupported"));
}

#[test]
fn only_taints_that_drive_pods_away_count_and_only_where_they_are_not_tolerated() {
    let taint = |effect: &str| json!({"key": "down", "value": "yes", "effect": effect});
    let tainted = node(json!({"taints": [taint("NoExecute"), taint("NoSchedule")]}));
    let tolerating = |toleration: Value| json!({"tolerations": [toleration]});
    for good in [
        json!({"operator": "Exists"}),
        json!({"key": "down", "operator": "Exists", "effect": "NoExecute"}),
        json!({"key": "down", "value": "yes"}),
    ] {
        assert_eq!(reason(tolerating(good.clone()), &tainted), None, "{good}");
    }
    for bad in [
        json!({"key": "down", "value": "no"}),
        json!({"key": "other", "operator": "Exists"}),
        json!({"operator": "Exists", "effect": "NoSchedule"}),
    ] {
        let seen = reason(tolerating(bad.clone()), &tainted);
        assert_eq!(seen.as_deref(), Some("TaintToleration"), "{bad}");
    }
    assert_eq!(reason(json!({}), &node(json!({"taints": [taint("NoSchedule")]}))), None);
}

#[test]
fn two_pods_do_not_get_one_port_of_the_machine() {
    let with = |ports: Value| pod(json!({"containers": [{"name": "main", "ports": ports}]}));
    let mut ledger = ResourceLedger::new(Checks::Full, None);
    let web = with(json!([{"containerPort": 80, "hostPort": 8080}]));
    assert_eq!(verdict(&mut ledger, "a", &web), Ok(()));
    assert_eq!(verdict(&mut ledger, "a", &web), Ok(()), "its own port");
    assert_eq!(verdict(&mut ledger, "b", &web).expect_err("taken").0, "NodePorts");
    let local = with(json!([{"containerPort": 80, "hostPort": 8080, "hostIP": "127.0.0.1"}]));
    assert_eq!(verdict(&mut ledger, "b", &local).expect_err("taken on all addresses").0, "NodePorts");
    let other = with(json!([{"containerPort": 80, "hostPort": 8080, "protocol": "UDP"}]));
    assert_eq!(verdict(&mut ledger, "b", &other), Ok(()));
    ledger.release("a");
    assert_eq!(verdict(&mut ledger, "c", &web), Ok(()));
}

#[test]
fn an_elastic_node_asks_only_where_a_pod_wants_to_be() {
    let mut ledger = ResourceLedger::new(Checks::Placement, None);
    for uid in ["a", "b", "c", "d"] {
        assert_eq!(verdict(&mut ledger, uid, &asking(json!({"cpu": "100"}))), Ok(()));
    }
    let refused = verdict(&mut ledger, "e", &pod(json!({"nodeSelector": {"zone": "b"}})));
    assert_eq!(refused.expect_err("elsewhere").0, "NodeAffinity");
    let mut off = ResourceLedger::new(Checks::Off, None);
    assert_eq!(verdict(&mut off, "a", &pod(json!({"nodeSelector": {"zone": "b"}}))), Ok(()));
}

#[test]
fn a_pod_that_was_admitted_before_is_not_asked_again() {
    let mut ledger = ResourceLedger::new(Checks::Full, None);
    let large = asking(json!({"cpu": "100"}));
    assert_ne!(verdict(&mut ledger, "a", &large), Ok(()));
    assert_eq!(ledger.readmit(&"a".into(), &large), AdmissionVerdict::Admitted);
    assert_eq!(verdict(&mut ledger, "b", &asking(json!({"cpu": "1"}))).expect_err("all taken").0, "OutOfcpu");
}

#[test]
fn pods_of_daemon_sets_are_left_out_where_that_is_wanted() {
    let owner = |kind: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": "d", "uid": "1", "controller": true}]);
    let owned = |kind: &str| -> Pod {
        let pod =
            json!({"metadata": {"name": "d-1", "ownerReferences": owner(kind)}, "spec": {"containers": []}});
        serde_json::from_value(pod).expect("a pod")
    };
    let mut ledger = ResourceLedger::new(Checks::Off, Some(RejectionPolicy::Hold));
    let readmitted = ledger.readmit(&"a".into(), &owned("DaemonSet"));
    assert!(
        matches!(&readmitted, AdmissionVerdict::Rejected { reason, refused: RejectionPolicy::Hold, .. } if reason == "DaemonSetNotSupported"),
        "{readmitted:?}"
    );
    assert_eq!(
        verdict(&mut ledger, "b", &owned("DaemonSet")).expect_err("left out").0,
        "DaemonSetNotSupported"
    );
    assert_eq!(verdict(&mut ledger, "b", &owned("ReplicaSet")), Ok(()));
}

#[test]
fn a_pod_that_was_admitted_before_has_its_room_also_while_the_node_is_not_known() {
    let mut admission = NodeAdmission::new(Checks::Full, None);
    let large = asking(json!({"cpu": "3"}));
    assert_eq!(admission.admit(&"new".into(), &large, false), None, "the Node must be read");
    assert_eq!(admission.admit(&"old".into(), &large, true), Some(AdmissionVerdict::Admitted));
    let verdict = admission.admit_with(&"new".into(), &large, false, Ok(Box::new(node(json!({})))));
    assert!(
        matches!(&verdict, AdmissionVerdict::Rejected { reason, .. } if reason == "OutOfcpu"),
        "{verdict:?}"
    );
}

#[test]
fn another_size_is_had_when_there_is_room_put_off_when_there_is_not_and_infeasible_when_there_never_is() {
    let mut ledger = ResourceLedger::new(Checks::Full, None);
    let node = node(json!({}));
    let (small, large) = (asking(json!({"cpu": "1"})), asking(json!({"cpu": "3"})));
    assert_eq!(verdict(&mut ledger, "a", &small), Ok(()));
    assert_eq!(verdict(&mut ledger, "b", &asking(json!({"cpu": "2"}))), Ok(()));
    let uid: Arc<str> = "a".into();
    let delay = ledger.resize(&uid, &large, &node).expect_err("not now");
    assert!(!delay.infeasible, "{delay:?}");
    let delay = ledger.resize(&uid, &asking(json!({"cpu": "5"})), &node).expect_err("never");
    assert!(delay.infeasible, "{delay:?}");
    ledger.release("b");
    assert_eq!(ledger.resize(&uid, &large, &node), Ok(()));
    assert_eq!(verdict(&mut ledger, "b", &asking(json!({"cpu": "2"}))).expect_err("grown").0, "OutOfcpu");
    assert_eq!(ledger.resize(&uid, &small, &node), Ok(()), "smaller always fits");
    assert_eq!(verdict(&mut ledger, "b", &asking(json!({"cpu": "2"}))), Ok(()));
}
