use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;

/// ECI's sizes.
const TABLE: SizeTable = SizeTable {
    rows: &[
        (250, &[512, 1024]),
        (500, &[1024, 2048]),
        (1000, &[2048, 4096, 8192]),
        (2000, &[1024, 2048, 4096, 8192, 16384]),
        (4000, &[2048, 4096, 8192, 16384, 32768]),
    ],
    default_cpu_milli: 2000,
    default_memory_mib: 4096,
};

/// CCI's steps.
const STEPS: SizeSteps = SizeSteps {
    cpu_step_milli: 250,
    cpu_min_milli: 250,
    cpu_max_milli: 32_000,
    memory_step_mib: 512,
    memory_min_mib: 512,
    memory_max_mib: 256 << 10,
    min_mib_per_cpu: 2048,
    max_mib_per_cpu: Some(8192),
};

fn pod(spec: Value) -> Pod {
    let mut pod = json!({});
    pod["spec"] = spec;
    serde_json::from_value(pod).unwrap()
}

fn container(name: &str, resources: Value) -> Value {
    let mut container = json!({"name": name});
    container["resources"] = resources;
    container
}

fn given(rule: SizeRule, cpu: i64, memory: i64) -> Option<(i64, i64)> {
    let size = rule.round_up(Resources::new(cpu, memory)).ok()?;
    Some((size.cpu.to_milli(), mib(size.memory)))
}

#[test]
fn a_table_gives_the_smallest_size_that_is_large_enough() {
    let rule = SizeRule::Table(TABLE);
    for (requested, expected) in [
        ((250, 512), (250, 512)),
        ((100, 1), (250, 512)),
        ((251, 512), (500, 1024)),
        ((250, 1025), (500, 2048)),
        ((1500, 3072), (2000, 4096)),
        ((1000, 8193), (2000, 16384)),
        ((0, 20_000), (4000, 32768)),
        ((3000, 0), (4000, 2048)),
        ((0, 0), (2000, 4096)),
    ] {
        assert_eq!(given(rule, requested.0, requested.1), Some(expected), "{requested:?}");
    }
}

#[test]
fn a_size_of_the_table_is_given_as_it_is() {
    for (cpu, memory) in TABLE.sizes() {
        assert_eq!(given(SizeRule::Table(TABLE), cpu, memory), Some((cpu, memory)));
    }
}

#[test]
fn steps_keep_the_ratio_of_memory_to_cpus() {
    let rule = SizeRule::Steps(STEPS);
    for (requested, expected) in [
        ((0, 0), (250, 512)),
        ((300, 600), (500, 1024)),
        ((2000, 1024), (2000, 4096)),
        ((250, 8192), (1000, 8192)),
        ((1000, 8193), (1250, 8704)),
    ] {
        assert_eq!(given(rule, requested.0, requested.1), Some(expected), "{requested:?}");
    }
}

#[test]
fn a_pod_that_is_larger_than_every_size_is_refused_with_the_largest() {
    let pod =
        pod(json!({"containers": [container("a", json!({"requests": {"cpu": "5", "memory": "1Gi"}}))]}));
    let mut diagnostics = Diagnostics::default();
    assert_eq!(group_size(&pod, &SizeRule::Table(TABLE), &mut diagnostics), None);
    let error = &diagnostics.errors()[0];
    assert_eq!(error.field, "spec.containers[*].resources.requests");
    assert_eq!(error.message, "5 cpu, 1Gi is more than the largest size, 4 cpu, 32Gi: request less");
}

#[test]
fn limits_stand_for_requests_that_are_missing() {
    let pod = pod(json!({"containers": [
        container("a", json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "2", "memory": "1Gi"}})),
        container("b", json!({"limits": {"cpu": "1", "memory": "2Gi"}})),
    ]}));
    let requested = requested(&pod);
    assert_eq!(requested.total, Resources::new(1500, 3072));
    assert_eq!(requested.init, None);
}

#[test]
fn init_containers_count_with_the_largest_and_sidecars_with_the_sum() {
    let mut sidecar = container("s", json!({"requests": {"cpu": "250m", "memory": "256Mi"}}));
    sidecar["restartPolicy"] = json!("Always");
    let pod = pod(json!({
        "initContainers": [
            sidecar,
            container("i", json!({"requests": {"cpu": "3", "memory": "64Mi"}})),
            container("j", json!({"limits": {"cpu": "1", "memory": "1Gi"}})),
        ],
        "containers": [container("a", json!({"requests": {"cpu": "1", "memory": "2Gi"}}))],
    }));
    let requested = requested(&pod);
    assert_eq!(requested.total, Resources::new(3250, 2304));
    assert_eq!(requested.init, Some(Resources::new(3000, 1024)));
}

#[test]
fn pod_level_requests_override_the_containers() {
    let pod = pod(json!({
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
        "containers": [container("a", json!({"requests": {"cpu": "3", "memory": "2Gi"}}))],
    }));
    assert_eq!(requested(&pod).total, Resources::new(1000, 1024));
}

#[test]
fn a_size_says_whether_it_is_more_than_requested() {
    let of = |cpu: &str| {
        let spec =
            json!({"containers": [container("a", json!({"requests": {"cpu": cpu, "memory": "4Gi"}}))]});
        group_size(&pod(spec), &SizeRule::Table(TABLE), &mut Diagnostics::default()).unwrap()
    };
    assert!(of("1500m").is_rounded() && !of("2").is_rounded());
    assert_eq!(of("1500m").effective.to_string(), "2-4Gi");
}

proptest::proptest! {
    #[test]
    fn no_size_is_smaller_than_what_was_requested(cpu in 0_i64..40_000, memory in 0_i64..300_000) {
        for rule in [SizeRule::Table(TABLE), SizeRule::Steps(STEPS)] {
            if let Some((given_cpu, given_memory)) = given(rule, cpu, memory) {
                proptest::prop_assert!(given_cpu >= cpu && given_memory >= memory);
            }
        }
    }

    #[test]
    fn steps_are_steps_within_the_ratio(cpu in 0_i64..32_000, memory in 0_i64..256_000) {
        let Some((cpu, memory)) = given(SizeRule::Steps(STEPS), cpu, memory) else { return Ok(()) };
        proptest::prop_assert_eq!((cpu % 250, memory % 512), (0, 0));
        proptest::prop_assert!(memory * 1000 >= cpu * 2048 && memory * 1000 <= cpu * 8192);
    }
}
