use serde_json::{Value, json};

use super::*;

fn pod(spec: Value) -> Pod {
    Pod { spec: Some(serde_json::from_value(spec).unwrap()), ..Pod::default() }
}

fn class(spec: Value) -> &'static str {
    qos(&pod(spec)).as_str()
}

fn containers(resources: &[Value]) -> Value {
    let containers = resources.iter().map(|resources| json!({ "name": "c", "resources": resources }));
    json!({ "containers": containers.collect::<Vec<_>>() })
}

#[test]
fn the_class_follows_from_all_containers() {
    let same = json!({ "requests": { "cpu": "100m", "memory": "100Mi" }, "limits": { "cpu": "0.1", "memory": "104857600" } });
    let limits_only = json!({ "limits": { "cpu": "100m", "memory": "100Mi" } });
    let container = json!({ "requests": { "cpu": "100m" }, "limits": { "cpu": "100m" } });
    let zero = json!({ "requests": { "cpu": "0", "memory": "0" } });
    let other = json!({ "requests": { "example.com/gpu": "1" }, "limits": { "example.com/gpu": "1" } });
    for (resources, expected) in [
        (vec![json!({})], "BestEffort"),
        (vec![zero.clone()], "BestEffort"),
        (vec![other], "BestEffort"),
        (vec![same.clone()], "Guaranteed"),
        (vec![same.clone(), same.clone()], "Guaranteed"),
        (vec![limits_only], "Burstable"),
        (vec![container], "Burstable"),
        (vec![same.clone(), json!({})], "Burstable"),
        (vec![same.clone(), zero], "Burstable"),
    ] {
        assert_eq!(class(containers(&resources)), expected, "{resources:?}");
    }
    let mut with_init = containers(std::slice::from_ref(&same));
    with_init["initContainers"] = json!([{ "name": "i" }]);
    assert_eq!(class(with_init), "Burstable");
}

#[test]
fn resources_of_the_pod_as_a_whole_win() {
    let mut spec = containers(&[json!({ "requests": { "cpu": "1" } })]);
    spec["resources"] =
        json!({ "requests": { "cpu": "2", "memory": "1Gi" }, "limits": { "cpu": "2", "memory": "1Gi" } });
    assert_eq!(class(spec.clone()), "Guaranteed");
    spec["resources"] = json!({ "limits": { "cpu": "2" }, "requests": { "cpu": "2" } });
    assert_eq!(class(spec.clone()), "Burstable");
    spec["resources"] = json!({ "requests": { "cpu": "2", "memory": "1Gi" } });
    assert_eq!(class(spec.clone()), "Burstable");
    spec["resources"] = json!({});
    assert_eq!(class(spec), "BestEffort");
}

#[test]
fn a_class_in_the_status_stays() {
    let mut pod = pod(containers(&[json!({})]));
    pod.status = serde_json::from_value(json!({ "qosClass": "Guaranteed" })).unwrap();
    assert_eq!(qos(&pod), Qos::Guaranteed);
}
