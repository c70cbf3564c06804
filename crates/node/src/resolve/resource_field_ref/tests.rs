use serde_json::{Value, json};
use vk_provider::error::Kind;

use super::*;

fn selector(resource: &str, divisor: Option<&str>, container: Option<&str>) -> ResourceFieldSelector {
    ResourceFieldSelector {
        resource: resource.to_owned(),
        divisor: divisor.map(|divisor| ApiQuantity(divisor.to_owned())),
        container_name: container.map(str::to_owned),
    }
}

fn requirements(resources: Value) -> ResourceRequirements {
    serde_json::from_value(resources).expect("resources")
}

fn pod(spec: Value) -> Pod {
    Pod { spec: Some(serde_json::from_value(spec).expect("a spec")), ..Pod::default() }
}

fn node() -> NodeFacts {
    let allocatable =
        [("cpu", "3500m"), ("memory", "8Gi"), ("ephemeral-storage", "100G"), ("hugepages-2Mi", "64Mi")];
    let amount = |(name, amount): (&str, &str)| (name.to_owned(), amount.parse().expect("a quantity"));
    NodeFacts { allocatable: allocatable.map(amount).into(), ..NodeFacts::default() }
}

fn divided_by(resource: &str, amount: &str, divisor: Option<&str>) -> String {
    let own = requirements(json!({"requests": {resource: amount}}));
    let field = selector(&format!("requests.{resource}"), divisor, None);
    variable(&field, &pod(json!({"containers": []})), Some(&own), &node()).expect("an amount")
}

/// Answers of `ExtractContainerResourceValue` of Kubernetes 1.36.4.
#[test]
fn amounts_are_divided_and_rounded_up() {
    let table = [
        ("cpu", "100m", None, "1"),
        ("cpu", "1500m", None, "2"),
        ("cpu", "1500m", Some("0"), "2"),
        ("cpu", "1500m", Some("1"), "2"),
        ("cpu", "1500m", Some("1m"), "1500"),
        ("cpu", "250m", Some("100m"), "3"),
        ("cpu", "1n", Some("1m"), "1"),
        ("cpu", "2", Some("1k"), "1"),
        ("cpu", "0", Some("1m"), "0"),
        ("memory", "1Gi", None, "1073741824"),
        ("memory", "1Gi", Some("1Mi"), "1024"),
        ("memory", "1Gi", Some("1M"), "1074"),
        ("memory", "1G", Some("1Mi"), "954"),
        ("memory", "1.5Gi", Some("1Gi"), "2"),
        ("memory", "1Ki", Some("1Gi"), "1"),
        ("memory", "123456789", Some("1k"), "123457"),
        // A divisor finer than a unit is a unit, except for processors.
        ("memory", "1Ki", Some("1m"), "1024"),
        ("memory", "100m", None, "1"),
        ("ephemeral-storage", "100k", Some("1Ki"), "98"),
        ("hugepages-2Mi", "4Mi", Some("1Mi"), "4"),
        ("hugepages-1Gi", "1Gi", None, "1073741824"),
    ];
    for (resource, amount, divisor, wanted) in table {
        assert_eq!(divided_by(resource, amount, divisor), wanted, "{resource} {amount} / {divisor:?}");
    }
}

#[test]
fn the_largest_amount_does_not_overflow() {
    assert_eq!(divided_by("memory", "9223372036854775807", None), i64::MAX.to_string());
    assert_eq!(divided_by("cpu", "9223372036854775807", Some("1m")), i64::MAX.to_string());
}

#[test]
fn an_unset_limit_is_the_nodes_amount_and_an_unset_request_is_zero() {
    let pod = pod(json!({"containers": []}));
    let of = |own: Value, resource: &str| {
        variable(&selector(resource, None, None), &pod, Some(&requirements(own)), &node()).expect("an amount")
    };
    for unset in [json!({}), json!({"limits": {"cpu": "0", "memory": "0", "ephemeral-storage": "0"}})] {
        assert_eq!(of(unset.clone(), "limits.cpu"), "4");
        assert_eq!(of(unset.clone(), "limits.memory"), "8589934592");
        assert_eq!(of(unset.clone(), "limits.ephemeral-storage"), "100000000000");
        assert_eq!(of(unset.clone(), "limits.hugepages-2Mi"), "0");
        assert_eq!(of(unset.clone(), "requests.cpu"), "0");
        assert_eq!(of(unset, "requests.memory"), "0");
    }
    assert_eq!(of(json!({"limits": {"cpu": "1", "memory": "1Ki"}}), "limits.memory"), "1024");
    let nothing = variable(&selector("limits.cpu", None, None), &pod, None, &NodeFacts::default());
    assert_eq!(nothing.expect("an amount"), "0");
}

#[test]
fn the_pod_level_limit_takes_precedence_over_the_nodes_for_variables_only() {
    let pod = pod(json!({
        "containers": [{"name": "c"}],
        "resources": {"limits": {"cpu": "2", "memory": "0", "ephemeral-storage": "1G"}},
    }));
    let of = |resource: &str| {
        let variable = variable(&selector(resource, None, None), &pod, None, &node()).expect("an amount");
        let file = file(&selector(resource, None, Some("c")), &pod, &node()).expect("an amount");
        (variable, file)
    };
    assert_eq!(of("limits.cpu"), ("2".to_owned(), "4".to_owned()));
    assert_eq!(of("limits.memory"), ("8589934592".to_owned(), "8589934592".to_owned()));
    // Not one of the resources that a pod as a whole can be limited in.
    assert_eq!(of("limits.ephemeral-storage"), ("100000000000".to_owned(), "100000000000".to_owned()));
}

#[test]
fn another_container_may_be_named() {
    let resources = json!({"limits": {"cpu": "2"}});
    let pod = pod(json!({
        "containers": [{"name": "main", "resources": resources}, {"name": "bare"}],
        "initContainers": [{"name": "init"}],
        "ephemeralContainers": [{"name": "debug"}],
    }));
    let of = |name: &str| {
        let field = selector("limits.cpu", None, Some(name));
        let variable = variable(&field, &pod, None, &node()).map_err(|error| error.to_string());
        (variable, file(&field, &pod, &node()).map_err(|error| error.to_string()))
    };
    assert_eq!(of("main"), (Ok("2".to_owned()), Ok("2".to_owned())));
    assert_eq!(of("bare"), (Ok("4".to_owned()), Ok("4".to_owned())));
    // The kubelet gives init containers the node's limits in files and not in variables.
    assert_eq!(of("init"), (Ok("0".to_owned()), Ok("4".to_owned())));
    let nobody = |name: &str| Err(format!("container {name} not found"));
    assert_eq!(of("debug"), (nobody("debug"), nobody("debug")));
    let unnamed = file(&selector("limits.cpu", None, None), &pod, &node()).expect_err("no name");
    assert_eq!(unnamed.message(), "container  not found");
}

#[test]
fn unsupported_resources_are_rejected() {
    for resource in
        ["limits.pods", "limits.example.com/gpu", "cpu", "", "limits.", "status.cpu", "limits.cpu.x"]
    {
        let error = variable(&selector(resource, None, None), &pod(json!({"containers": []})), None, &node());
        let error = error.expect_err(resource);
        assert_eq!(error.kind(), &Kind::Invalid);
        assert_eq!(error.message(), format!("unsupported container resource : {resource}"));
    }
}
