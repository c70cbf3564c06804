mod translation;

use std::sync::Arc;

use serde_json::{Value, json};
use vk_fit::{Query, Snapshot};
use vk_provider::{
    host_port::host_ports as ports_in_use,
    placement::{MAX_QUERY_BYTES, MAX_QUERY_OBJECTS},
};

use super::*;
use crate::{held_pods::MAX_HELD, watched_pod::WatchedPod};

fn pod(change: &Value) -> Pod {
    let mut pod = json!({
        "metadata": {"name": "web", "namespace": "team", "uid": "u"},
        "spec": {"containers": [{"name": "main", "image": "web:1"}]},
    });
    json_patch::merge(&mut pod, change);
    serde_json::from_value(pod).unwrap()
}

fn text(pod: &Pod) -> String {
    serde_json::to_string(pod).unwrap()
}

/// Pods that anybody can make, of about a megabyte.
fn huge() -> Vec<(&'static str, Pod)> {
    let main = |fields: &Value| {
        let mut container = json!({"name": "main", "resources": {"requests": {"cpu": "3"}}});
        json_patch::merge(&mut container, fields);
        container
    };
    let many = |count: usize, one: &dyn Fn(usize) -> Value| (0..count).map(one).collect::<Vec<_>>();
    let tolerations =
        many(20_000, &|number| json!({"key": format!("example.com/taint-{number}"), "operator": "Exists"}));
    let small_tolerations = many(600, &|_| json!({}));
    let ports = many(20_000, &|number| json!({"containerPort": number + 1, "hostPort": number + 1}));
    let requests: serde_json::Map<String, Value> =
        (0..20_000).map(|number| (format!("example.com/resource-{number}"), json!("1"))).collect();
    let mut containers =
        many(5_000, &|number| json!({"name": format!("c{number}"), "image": "i".repeat(200)}));
    containers.push(main(&json!({})));
    let selector: serde_json::Map<String, Value> =
        (0..20_000).map(|number| (format!("example.com/label-{number}"), json!("x"))).collect();
    let of = |spec: Value| {
        let mut all = json!({"spec": {"containers": [main(&json!({}))]}});
        json_patch::merge(&mut all, &json!({"spec": spec}));
        pod(&all)
    };
    vec![
        ("tolerations", of(json!({"tolerations": tolerations}))),
        ("small tolerations", of(json!({"tolerations": small_tolerations}))),
        ("node selector", of(json!({"nodeSelector": selector}))),
        ("containers", of(json!({"containers": containers}))),
        ("ports", of(json!({"containers": [main(&json!({"ports": ports}))]}))),
        ("resources", of(json!({"containers": [main(&json!({"resources": {"requests": requests}}))]}))),
    ]
}

#[test]
fn a_held_pod_has_a_limited_size_and_its_requests_whatever_it_is_made_of() {
    for (what, pod) in huge() {
        let held = held(&pod);
        let json = text(&held);
        assert!(json.len() <= MAX_HELD_BYTES, "{what}: {} bytes", json.len());
        assert!(
            json_objects(json.as_bytes()) <= MAX_HELD_OBJECTS,
            "{what}: {} objects",
            json_objects(json.as_bytes())
        );
        assert_eq!(requests(&held)["cpu"], requests(&pod)["cpu"], "{what}");
        assert_eq!(held.metadata, identity(&pod), "{what}");
    }
}

#[test]
fn all_held_pods_and_a_group_fit_into_a_query() {
    /// Names of fields, commas and brackets.
    const SYNTAX: usize = 4 << 10;
    const { assert!(MAX_HELD * MAX_HELD_BYTES + MAX_GROUP_BYTES + SYNTAX <= MAX_QUERY_BYTES) };
    const { assert!(MAX_HELD * MAX_HELD_OBJECTS <= MAX_QUERY_OBJECTS / 2) };
}

#[test]
fn a_large_held_pod_keeps_its_host_ports_and_what_it_requests() {
    let tolerations: Vec<Value> =
        (0..1000).map(|number| json!({"key": format!("example.com/taint-{number}")})).collect();
    let port = |number: i32| json!([{"containerPort": 1, "hostPort": number, "protocol": "UDP", "hostIP": "192.0.2.1"}]);
    let container = |name: &str, cpu: &str, port_number: i32| json!({"name": name, "ports": port(port_number), "resources": {"requests": {"cpu": cpu, "example.com/gpu": "1"}, "limits": {"memory": "1Gi"}}});
    let pod = pod(&json!({"spec": {
        "tolerations": tolerations, "hostNetwork": true, "overhead": {"cpu": "1"}, "priority": 7,
        "initContainers": [{"name": "init", "resources": {"requests": {"cpu": "5"}}}],
        "containers": [container("a", "1", 80), container("b", "2", 81)],
    }}));
    let held = held(&pod);
    assert_eq!(held.spec.as_ref().unwrap().tolerations, None, "it is reduced");
    assert_eq!((requests(&held), limits(&held)), (requests(&pod), limits(&pod)));
    assert_eq!(ports_in_use(&held), ports_in_use(&pod));
    let spec = held.spec.unwrap();
    assert_eq!((spec.containers.len(), spec.host_network, spec.priority), (1, Some(true), Some(7)));
}

#[test]
fn held_pods_count_in_the_quotas_that_count_the_pods_themselves() {
    let quota = |name: &str, spec: Value| {
        let (hard, used) = (json!({"pods": "1"}), json!({"pods": "0"}));
        let mut quota = json!({"metadata": {"namespace": "team", "name": name}, "spec": {"hard": hard},
            "status": {"hard": hard, "used": used}});
        json_patch::merge(&mut quota, &json!({"spec": spec}));
        serde_json::from_value(quota).unwrap()
    };
    let mut snapshot = Snapshot::default();
    let node = json!({
        "metadata": {"name": "a"},
        "status": {"allocatable": {"cpu": "8", "pods": "10"}, "conditions": [{"type": "Ready", "status": "True"}]},
    });
    snapshot.apply_node(&serde_json::from_value(node).unwrap());
    let high = json!([{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]);
    snapshot.apply_quota(&quota("unlimited", json!({"scopes": ["NotTerminating"]})));
    snapshot.apply_quota(&quota("high", json!({"scopeSelector": {"matchExpressions": high}})));
    let many: Vec<Value> = (0..1000).map(|number| json!({"key": format!("example.com/{number}")})).collect();
    for (size, tolerations) in [("small", json!([])), ("large", json!(many))] {
        let fits = |present: Value, asked: Value| {
            let mut present = pod(&json!({"spec": present}));
            present.metadata.uid = Some("present".to_owned());
            present.spec.as_mut().unwrap().tolerations = serde_json::from_value(tolerations.clone()).unwrap();
            let query = Query {
                held: &[Arc::new(held(&present))],
                pods: &[Arc::new(pod(&json!({"spec": asked})))],
                ..Query::default()
            };
            snapshot.fit(&query).remove(0).fits()
        };
        let job = json!({"activeDeadlineSeconds": 60});
        assert!(fits(job.clone(), json!({})), "{size}");
        assert!(!fits(json!({}), json!({})), "{size}");
        let important = json!({"activeDeadlineSeconds": 60, "priorityClassName": "high"});
        assert!(!fits(important.clone(), important.clone()), "{size}");
        assert!(fits(job, important), "{size}");
    }
}

#[test]
fn nodes_see_no_values_commands_or_annotations_of_others() {
    let probe = json!({"exec": {"command": ["hush"]}});
    let http = json!({"httpGet": {"port": 80, "host": "192.0.2.1", "httpHeaders": [{"name": "Authorization", "value": "hush"}]}});
    let container = |name: &str| {
        json!({
            "name": name, "image": "web:1", "command": ["hush"], "args": ["hush"], "workingDir": "/hush",
            "env": [{"name": "A", "value": "hush"}],
            "envFrom": [{"secretRef": {"name": "hush"}}],
            "livenessProbe": probe, "readinessProbe": http, "startupProbe": probe,
            "lifecycle": {"postStart": probe, "preStop": http},
            "securityContext": {"privileged": true},
        })
    };
    let secretive = pod(&json!({
        "metadata": {
            "annotations": {
                "example.com/token": "hush",
                "kubectl.kubernetes.io/last-applied-configuration": "hush",
                "multicluster.virtual-kubelet.io/lower-nodes": "disk=ssd",
                "clusterSelector": "{}",
                "container.apparmor.security.beta.kubernetes.io/main": "unconfined",
                "mock.virtual-kubelet.io/run": "10s",
            },
            "labels": {"app": "web"},
            "finalizers": ["example.com/hush"],
            "managedFields": [{"manager": "hush"}],
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "web", "uid": "1", "controller": true}],
        },
        "spec": {
            "containers": [container("main")], "initContainers": [container("init")],
            "ephemeralContainers": [container("debug")], "nodeSelector": {"a": "b"},
        },
        "status": {"message": "hush"},
    }));
    assert!(text(&secretive).contains("hush"));
    let decoded: WatchedPod = serde_json::from_str(&text(&secretive)).unwrap();
    let seen = disclosed(&secretive);
    assert_eq!(decoded.0.spec, seen.spec, "placement does not keep it either");
    assert_eq!(decoded.0.metadata.annotations, seen.metadata.annotations);
    assert!(!text(&seen).contains("hush"), "{}", text(&seen));
    let seen = serde_json::to_value(&seen).unwrap();
    let annotations: Vec<&String> = seen["metadata"]["annotations"].as_object().unwrap().keys().collect();
    assert_eq!(
        annotations,
        [
            "clusterSelector",
            "container.apparmor.security.beta.kubernetes.io/main",
            "mock.virtual-kubelet.io/run",
            "multicluster.virtual-kubelet.io/lower-nodes",
        ]
    );
    assert_eq!(seen["metadata"]["ownerReferences"][0]["kind"], "DaemonSet");
    assert_eq!(seen["spec"]["nodeSelector"], json!({"a": "b"}));
    for container in [&seen["spec"]["containers"][0], &seen["spec"]["initContainers"][0]] {
        assert_eq!(container["readinessProbe"]["httpGet"]["host"], "192.0.2.1");
        assert_eq!(container["lifecycle"]["preStop"]["httpGet"]["host"], "192.0.2.1");
        assert_ne!(container["livenessProbe"]["exec"], Value::Null, "a probe without a command is still one");
        assert_eq!(container["securityContext"]["privileged"], true);
    }
}
