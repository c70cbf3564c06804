use k8s_openapi::api::core::v1::{Container, EnvVar, Node, Volume};
use serde_json::{Value, json};
use vk_provider::requests::requests;

use super::*;
use crate::{
    cluster_state::ClusterState,
    explain::Candidate,
    pod_state::{Gating, gating, node, shape, too_large},
};

fn read(text: &str) -> Pod {
    let Partial(pod): WatchedPod = serde_json::from_str(text).unwrap();
    pod
}

fn watched(value: &Value) -> Pod {
    read(&value.to_string())
}

#[test]
fn what_decides_nothing_is_not_kept() {
    let with = |entries: usize| {
        watched(&json!({
            "metadata": {"name": "a", "annotations": {"example.com/note": "x".repeat(entries), names::LOWER_NODES: "disk=ssd"}},
            "spec": {"containers": [{
                "name": "main", "args": vec!["a"; entries], "env": vec![json!({"name": "a"}); entries],
                "resources": {"requests": {"cpu": "1"}},
            }]},
        }))
    };
    let (small, large) = (with(1), with(200_000));
    assert_eq!(small.spec, large.spec);
    assert_eq!(small.metadata.annotations, large.metadata.annotations);
    assert_eq!(shape(&small), shape(&large));
    assert_eq!((too_large(&large), &*requests(&large)["cpu"].to_string()), (None, "1"));
    assert_eq!(large.metadata.annotations.unwrap()[names::LOWER_NODES], "disk=ssd");
}

#[test]
fn a_pod_that_is_too_large_costs_little_and_no_node_takes_it() {
    let numbered = |count: usize, one: &dyn Fn(usize) -> Value| (0..count).map(one).collect::<Vec<_>>();
    let empty = json!({});
    for (what, many) in [
        (
            "volumes",
            json!({"volumes": numbered(100_000, &|n| json!({"name": format!("v{n}"), "emptyDir": empty}))}),
        ),
        ("tolerations", json!({"tolerations": vec![json!({"operator": "Exists"}); 100_000]})),
        ("selector", json!({"nodeSelector": {"example.com/text": "x".repeat(100_000)}})),
        ("init containers", json!({"initContainers": vec![json!({"name": "a"}); 100_000]})),
        ("gates", json!({"schedulingGates": numbered(100_000, &|n| json!({"name": n.to_string()}))})),
    ] {
        let mut pod = json!({
            "metadata": {"name": "a", "namespace": "team", "uid": "u", "resourceVersion": "7", "labels": {names::GROUP: "g"}},
            "spec": {
                "schedulingGates": [{"name": names::GATE}], "nodeName": "vk",
                "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
            },
        });
        json_patch::merge(&mut pod, &json!({"spec": many}));
        let pod = watched(&pod);
        assert!(json_bytes(&pod) < 10_000, "{what}");
        let gates = if what == "gates" { Gating::Open } else { Gating::Ours };
        assert_eq!(
            (gating(&pod), node(&pod), &*pod_state::version(&pod)),
            (gates, Some("vk"), "7"),
            "{what}"
        );
        assert_eq!(
            (requests(&pod)["cpu"].to_string(), pod_state::group(&pod)),
            ("1".to_owned(), Some("team/g".to_owned()))
        );
        let obstacle = Candidate::obstacle_of(&Node::default(), &pod).unwrap();
        assert!(obstacle.starts_with("the pod is too large: it has "), "{what}: {obstacle}");
        let mut cluster = ClusterState::default();
        let machine = json!({
            "metadata": {"name": "machine"},
            "status": {"allocatable": {"cpu": "8", "pods": "9"}, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        cluster.apply_node(serde_json::from_value(machine).unwrap());
        let verdict = cluster.local_verdict(&std::sync::Arc::new(pod)).unwrap().verdict;
        assert_eq!(verdict.to_string(), obstacle);
    }
}

#[test]
fn a_user_does_not_say_that_a_pod_is_too_large() {
    let pod = watched(&json!({"metadata": {"annotations": {names::TOO_LARGE: "x"}}}));
    assert_eq!(too_large(&pod), None);
}

#[test]
fn a_large_pod_with_a_reason_is_kept_as_it_is() {
    let container = |number: usize| {
        json!({
            "name": format!("c{number}"), "image": "registry.example.com/team/image:1.2.3",
            "ports": vec![json!({"containerPort": 80, "protocol": "TCP"}); 10],
            "volumeMounts": vec![json!({"name": "data", "mountPath": "/var/lib/data"}); 20],
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
            "readinessProbe": {"tcpSocket": {"port": "http"}},
        })
    };
    let pod = json!({
        "metadata": {"name": "a", "labels": {"app": "a"}},
        "spec": {"containers": (0..20).map(container).collect::<Vec<_>>(), "volumes": vec![json!({"name": "data"}); 50]},
        "status": {"phase": "Pending"},
    });
    assert_eq!(watched(&pod), serde_json::from_value(pod).unwrap());
}

#[test]
#[ignore = "a measurement, for a process of its own"]
fn measure_four_pods_of_each_kind() {
    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        status.lines().find(|line| line.starts_with("VmHWM")).unwrap().to_owned()
    };
    let many = |one: &str, count: usize| vec![one; count].join(",");
    let env = many(r#"{"name":"a"}"#, 200_000);
    let env = format!(r#"{{"spec": {{"containers": [{{"name": "a", "env": [{env}]}}]}}}}"#);
    let volumes = many(r#"{"name":"a","emptyDir":{}}"#, 100_000);
    let volumes = format!(r#"{{"spec": {{"volumes": [{volumes}]}}}}"#);
    let sizes = [size_of::<EnvVar>(), size_of::<Volume>(), size_of::<Container>()];
    println!("bytes of a variable, a volume and a container: {sizes:?}; before: {}", peak());
    for text in [env, volumes] {
        let pods: Vec<Pod> = (0..4).map(|_| read(&text)).collect();
        println!("{} pods of {} bytes: {}", pods.len(), text.len(), peak());
    }
}
