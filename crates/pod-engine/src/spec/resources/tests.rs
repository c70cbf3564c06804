use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::spec::tests::{pod, settings};

const GIGA: i64 = 1_000_000_000;

fn score(pod: &Pod, name: &str, capacity: i64) -> i64 {
    oom_score(pod, &crate::containers::find_container(pod, name).unwrap(), capacity)
}

fn memory(amount: i64) -> Value {
    json!({ "requests": { "memory": amount.to_string() } })
}

#[test]
fn quotas_and_shares_are_the_kubelets() {
    for (milli, micros) in [
        (0, 0),
        (5, 1000),
        (9, 1000),
        (10, 1000),
        (200, 20_000),
        (500, 50_000),
        (1000, 100_000),
        (1500, 150_000),
    ] {
        assert_eq!(quota(milli), micros, "{milli}m");
    }
    for (milli, weight) in [
        (0, 2),
        (1, 2),
        (2, 2),
        (100, 102),
        (999, 1022),
        (1000, 1024),
        (256_000, 262_144),
        (1_000_000, 262_144),
    ] {
        assert_eq!(shares(milli), weight, "{milli}m");
    }
}

#[test]
fn scores_are_the_kubelets() {
    let container =
        |resources: Value| pod(json!({ "containers": [{ "name": "c", "resources": resources }] }));
    let whole = 8 * GIGA;
    for (resources, capacity, expected) in [
        (json!({ "limits": { "cpu": "10" } }), 4 * GIGA, 999),
        (json!({ "limits": { "memory": "10" }, "requests": { "memory": "0", "cpu": "5m" } }), whole, 999),
        (json!({ "limits": { "memory": "0" } }), 7_230_457_451, 1000),
        (json!({}), 4 * GIGA, 1000),
        (
            json!({ "limits": { "cpu": "5m", "memory": "10" }, "requests": { "cpu": "5m", "memory": "10" } }),
            123_456_789,
            -997,
        ),
        (
            json!({ "limits": { "memory": "10" }, "requests": { "memory": (whole / 2).to_string(), "cpu": "5m" } }),
            whole,
            500,
        ),
        (json!({ "requests": { "memory": (whole - 1).to_string(), "cpu": "5m" } }), whole, 3),
    ] {
        assert_eq!(score(&container(resources.clone()), "c", capacity), expected, "{resources}");
    }
    for (class, expected) in [("system-cluster-critical", 1000), ("system-node-critical", -997)] {
        let pod = pod(
            json!({ "containers": [{ "name": "c" }], "priority": 2_000_001_000, "priorityClassName": class }),
        );
        assert_eq!(score(&pod, "c", 4 * GIGA), expected, "{class}");
    }
}

#[test]
fn a_sidecar_is_not_killed_before_those_who_live_on_it() {
    let whole = 8 * GIGA;
    for (sidecar, expected) in [(whole / 20, 875), (whole / 8, 875), (whole / 2, 500)] {
        let pod = pod(json!({
            "initContainers": [
                { "name": "init", "resources": memory(whole / 8) },
                { "name": "side", "restartPolicy": "Always", "resources": memory(sidecar) },
            ],
            "containers": [{ "name": "main", "resources": memory(whole / 8) }],
        }));
        assert_eq!((score(&pod, "init", whole), score(&pod, "main", whole)), (875, 875));
        assert_eq!(score(&pod, "side", whole), expected);
    }
}

#[test]
fn what_a_pod_asks_for_as_a_whole_is_divided_among_its_containers() {
    let with = |containers: Value, whole: i64| {
        pod(json!({ "containers": containers, "resources": { "requests": { "memory": whole.to_string() } } }))
    };
    let none = with(json!([{ "name": "a" }, { "name": "b" }]), 2 * GIGA);
    assert_eq!((score(&none, "a", 4 * GIGA), score(&none, "b", 4 * GIGA)), (750, 750));
    let one = with(json!([{ "name": "a", "resources": memory(GIGA) }, { "name": "b" }]), 2 * GIGA);
    assert_eq!((score(&one, "a", 4 * GIGA), score(&one, "b", 4 * GIGA)), (625, 875));
}

fn made(container: Value, whole: Option<Value>, features: &HostFeatures) -> Resources {
    let mut spec = json!({ "containers": [{ "name": "c" }] });
    spec["containers"][0]["resources"] = container;
    if let Some(whole) = whole {
        spec["resources"] = whole;
    }
    let pod = pod(spec);
    of_container(&pod, &crate::containers::find_container(&pod, "c").unwrap(), &settings(), features)
}

#[test]
fn a_container_is_limited_by_its_own_numbers_or_the_pods() {
    let features = HostFeatures::default();
    let requests = json!({ "memory": "128Mi", "cpu": "1" });
    let limits = json!({ "memory": "256Mi", "cpu": "3" });
    let both = made(json!({ "requests": requests, "limits": limits }), None, &features);
    let numbers = |r: &Resources| (r.cpu_period, r.cpu_quota, r.cpu_shares, r.memory_limit);
    assert_eq!(numbers(&both), (100_000, 300_000, 1024, 256 << 20));
    let open = made(json!({ "requests": { "memory": "128Mi", "cpu": "2" } }), None, &features);
    assert_eq!(numbers(&open), (100_000, 0, 2048, 0));
    let held = made(json!({ "requests": requests }), Some(json!({ "limits": limits })), &features);
    assert_eq!(numbers(&held), (100_000, 300_000, 1024, 256 << 20));
    let limit_only = made(json!({ "limits": { "cpu": "500m" } }), None, &features);
    assert_eq!(numbers(&limit_only), (100_000, 50_000, 512, 0));
    assert_eq!(numbers(&made(json!({}), None, &features)), (100_000, 0, 2, 0));
}

#[test]
fn swap_is_forbidden_in_the_way_of_the_machines_cgroups() {
    let limits = json!({ "limits": { "memory": "1Mi" } });
    let none = made(limits.clone(), None, &HostFeatures::default());
    assert_eq!((none.memory_swap_limit, none.unified.len()), (0, 0));
    let v1 = made(limits.clone(), None, &HostFeatures { swap: true, ..HostFeatures::default() });
    assert_eq!((v1.memory_swap_limit, v1.unified.len()), (1 << 20, 0));
    let v2 = made(limits, None, &HostFeatures { swap: true, unified: true, ..HostFeatures::default() });
    assert_eq!(v2.memory_swap_limit, 0);
    let unified: Vec<_> = v2.unified.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(unified, [("memory.oom.group", "1"), ("memory.swap.max", "0")]);
}

#[test]
fn huge_pages_are_limited_for_each_size_that_the_machine_has() {
    let features =
        HostFeatures { huge_pages: vec!["1GB".to_owned(), "2MB".to_owned()], ..HostFeatures::default() };
    let pages = |container: Value, whole: Option<Value>| {
        let made = made(json!({ "limits": container }), whole, &features).hugepages;
        (made["1GB"], made["2MB"])
    };
    assert_eq!(pages(json!({}), None), (0, 0));
    assert_eq!(pages(json!({ "hugepages-2Mi": "4Mi", "hugepages-64Ki": "64Ki" }), None), (0, 4 << 20));
    let whole = json!({ "limits": { "hugepages-2Mi": "8Mi", "hugepages-1Gi": "1Gi" } });
    assert_eq!(pages(json!({ "hugepages-2Mi": "4Mi" }), Some(whole)), (1 << 30, 4 << 20));
    for (bytes, text) in
        [(2 << 20, Some("2MB")), (1 << 30, Some("1GB")), (3 << 29, None), (0, None), (512, Some("512B"))]
    {
        assert_eq!(unit(bytes).as_deref(), text, "{bytes}");
    }
}

#[test]
fn a_sandbox_is_told_the_largest_moment_of_its_pod() {
    let cpu = |cpu: &str| json!({ "requests": { "cpu": cpu }, "limits": { "cpu": cpu, "memory": "1Gi" } });
    let spec = |inits: Value| {
        let spec = json!({
            "initContainers": inits,
            "containers": [{ "name": "a", "resources": cpu("1") }, { "name": "b", "resources": cpu("1") }],
        });
        let made = of_sandbox(pod(spec).spec.as_ref().unwrap(), &HostFeatures::default());
        (made.cpu_shares, made.cpu_quota, made.memory_limit >> 30)
    };
    assert_eq!(spec(json!([])), (2048, 200_000, 2));
    assert_eq!(spec(json!([{ "name": "i", "resources": cpu("3") }])), (3072, 300_000, 2));
    let side = json!({ "name": "s", "restartPolicy": "Always", "resources": cpu("1") });
    assert_eq!(spec(json!([side, { "name": "i", "resources": cpu("3") }])), (4096, 400_000, 3));
    assert_eq!(spec(json!([{ "name": "i", "resources": cpu("3") }, side])), (3072, 300_000, 3));
    let whole = json!({ "containers": [{ "name": "a", "resources": cpu("1") }], "resources": { "limits": { "cpu": "4" } } });
    let made = of_sandbox(pod(whole).spec.as_ref().unwrap(), &HostFeatures::default());
    assert_eq!((made.cpu_shares, made.cpu_quota), (1024, 400_000));
}

/// Quota, shares and memory of a pod's cgroup.
fn pod_numbers(spec: Value) -> (i64, i64, i64) {
    let made = pod_limits(&pod(spec), &HostFeatures::default());
    (made.cpu_quota, made.cpu_shares, made.memory_limit)
}

#[test]
fn a_pod_is_limited_as_a_whole_only_where_every_container_or_the_pod_itself_is() {
    let both =
        json!({ "limits": { "cpu": "1", "memory": "1Mi" }, "requests": { "cpu": "500m", "memory": "1Mi" } });
    let memory = json!({ "limits": { "memory": "1Mi" }, "requests": { "memory": "1Mi" } });
    let of = |containers: &[&Value]| {
        let named = containers.iter().enumerate();
        let containers: Vec<Value> = named
            .map(|(number, resources)| json!({ "name": format!("c{number}"), "resources": resources }))
            .collect();
        json!({ "containers": containers })
    };
    assert_eq!(pod_numbers(of(&[&both])), (100_000, 512, 1 << 20));
    assert_eq!(pod_numbers(of(&[&both, &both])), (200_000, 1024, 2 << 20));
    assert_eq!(pod_numbers(of(&[&both, &memory])), (0, 512, 2 << 20), "one may use all processors");
    assert_eq!(pod_numbers(of(&[&both, &json!({})])), (0, 512, 0), "one has no limit at all");
    assert_eq!(pod_numbers(of(&[&json!({})])), (0, 2, 0), "best effort");
    let mut zero = of(&[&both, &json!({ "limits": { "memory": "0", "cpu": "0" } })]);
    assert_eq!(pod_numbers(zero.clone()), (0, 512, 0), "0 is no limit");
    // The pod's own limits hold whatever its containers have.
    zero["resources"] = json!({ "limits": { "cpu": "3", "memory": "4Mi" }, "requests": { "cpu": "2" } });
    assert_eq!(pod_numbers(zero.clone()), (300_000, 2048, 4 << 20));
    zero["resources"] = json!({ "limits": { "memory": "4Mi" } });
    assert_eq!(pod_numbers(zero.clone()), (0, 512, 4 << 20), "each resource by itself");
    // An init container without limits is a container without limits.
    let mut init = of(&[&both]);
    init["initContainers"] = json!([{ "name": "i" }]);
    assert_eq!(pod_numbers(init.clone()), (0, 512, 0));
    init["initContainers"] = json!([{ "name": "i", "resources": {
        "limits": { "cpu": "3", "memory": "512Ki" }, "requests": { "cpu": "3" },
    } }]);
    assert_eq!(pod_numbers(init.clone()), (300_000, 3072, 1 << 20), "the largest moment");
    init["overhead"] = json!({ "cpu": "1", "memory": "1Mi" });
    assert_eq!(pod_numbers(init), (400_000, 4096, 2 << 20));
}

#[test]
fn the_limits_of_a_pod_are_not_what_the_runtime_is_told_of_its_sandbox() {
    let spec = json!({ "containers": [
        { "name": "a", "resources": { "limits": { "cpu": "1", "memory": "1Mi" } } },
        { "name": "b" },
    ] });
    let told = of_sandbox(pod(spec.clone()).spec.as_ref().unwrap(), &HostFeatures::default());
    assert_eq!((told.cpu_quota, told.memory_limit), (100_000, 1 << 20), "as a kubelet tells it");
    assert_eq!(pod_numbers(spec).2, 0);
}

#[test]
fn huge_pages_of_a_pod_are_limited_to_its_requests() {
    let features =
        HostFeatures { huge_pages: vec!["1GB".to_owned(), "2MB".to_owned()], ..HostFeatures::default() };
    let container =
        |name: &str| json!({ "name": name, "resources": { "requests": { "hugepages-2Mi": "4Mi" } } });
    let made = pod_limits(&pod(json!({ "containers": [container("a"), container("b")] })), &features);
    assert_eq!(made.hugepages, [("1GB".to_owned(), 0), ("2MB".to_owned(), 8 << 20)].into());
}

proptest! {
    #[test]
    fn shares_stay_between_the_kernels_limits_and_never_fall(milli in any::<i64>(), more in 0i64..1_000_000) {
        let weight = shares(milli);
        prop_assert!((MIN_SHARES..=MAX_SHARES).contains(&weight));
        prop_assert!(shares(milli.saturating_add(more)) >= weight);
    }

    #[test]
    fn a_quota_is_the_same_share_of_its_period(milli in 10i64..10_000_000) {
        prop_assert_eq!(quota(milli), milli * 100);
    }

    #[test]
    fn no_amount_of_processor_breaks_the_arithmetic(milli in any::<i64>()) {
        let micros = quota(milli);
        prop_assert!(micros == 0 && milli == 0 || micros >= MIN_QUOTA);
    }

    #[test]
    fn burstable_containers_are_between_the_classes_and_who_asks_for_more_is_killed_later(
        request in 1i64..=i64::MAX, less in 0i64..=i64::MAX, capacity in 0i64..=i64::MAX,
    ) {
        let of = |request: i64| {
            let pod = pod(json!({ "containers": [
                { "name": "c", "resources": { "requests": { "memory": request.to_string(), "cpu": "1" } } },
            ] }));
            score(&pod, "c", capacity)
        };
        let adjusted = of(request);
        prop_assert!((3..=999).contains(&adjusted));
        prop_assert!(of((request - less).max(0)) >= adjusted);
    }
}
