//! The provider `cluster` restores in the lower pod what conversion moved: what moved and what stayed is what was there.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodAntiAffinity, PodSpec, TopologySpreadConstraint};
use vk_placement::convert::{Settings, convert};
use vk_provider::node_selector;
use vk_provider_cluster::{
    names::OwnerId,
    translate::{ClusterClasses, TranslationPolicy, translate},
};

use crate::{
    generator::{self, LOWER_KEYS, NUMBERS, Numbers, UPPER_KEYS, VALUES},
    properties::{converted, read},
};

const PODS: u64 = 3_000;
const NODES: usize = 20;

type Labels = BTreeMap<&'static str, &'static str>;

/// A generated pod without annotations, after conversion, and in the lower cluster; `None` if something could not be converted.
fn three_pods(seed: u64) -> Option<[PodSpec; 3]> {
    let mut before = generator::pod(seed);
    before["metadata"].as_object_mut().unwrap().remove("annotations");
    before["metadata"]["name"] = "web".into();
    before["metadata"]["namespace"] = "shop".into();
    before["metadata"]["uid"] = "uid".into();
    let settings = Settings::default();
    if !convert(&read(&before), &settings).not_converted.is_empty() {
        return None;
    }
    let upper = read(&converted(&before, &settings));
    let owner = OwnerId { origin: "upper".to_owned(), node: "vk-a".to_owned() };
    let lower = translate(&upper, &owner, &TranslationPolicy::default(), &ClusterClasses::default());
    let lower = lower.unwrap_or_else(|error| panic!("seed {seed}: {error}")).pod;
    Some([read(&before), upper, lower].map(|pod: Pod| pod.spec.unwrap()))
}

fn labels(numbers: &mut Numbers, keys: &[&'static str]) -> Labels {
    let mut labels = Labels::new();
    for key in keys {
        if numbers.percent(70) {
            let values = if numbers.percent(30) { &NUMBERS[..] } else { &VALUES[..] };
            labels.insert(key, numbers.one(values));
        }
    }
    labels
}

fn selects(pod: &PodSpec, labels: &Labels, name: &str) -> bool {
    let affinity = node_selector::required_affinity(pod);
    node_selector::selects(pod.node_selector.as_ref(), affinity, &|key| labels.get(key).copied(), name)
}

#[test]
fn both_clusters_together_select_the_nodes_that_the_pod_selects() {
    let (mut compared, mut selected) = (0, 0);
    for seed in 0..PODS {
        let Some([before, upper, lower]) = three_pods(seed) else { continue };
        let mut numbers = Numbers::of(seed + 1_000_000);
        for _ in 0..NODES {
            let above = labels(&mut numbers, &UPPER_KEYS);
            let below = labels(&mut numbers, &LOWER_KEYS);
            let name = numbers.one(&["vk-a", "vk-b"]);
            let both: Labels = above.iter().chain(&below).map(|(key, value)| (*key, *value)).collect();
            let expected = selects(&before, &both, name);
            let actual = selects(&upper, &above, name) && selects(&lower, &below, "lower-1");
            assert_eq!(
                actual, expected,
                "seed {seed}: {above:?} {below:?}\n{before:?}\n{upper:?}\n{lower:?}"
            );
            compared += 1;
            selected += usize::from(expected);
        }
    }
    assert!(compared > 20_000 && selected * 20 > compared, "{selected} of {compared} were selected");
}

/// The spread constraints of one kind, by key.
fn spreads(pod: &PodSpec, when: &str) -> BTreeMap<String, TopologySpreadConstraint> {
    let all = pod.topology_spread_constraints.iter().flatten();
    let some = all.filter(|one| one.when_unsatisfiable == when);
    some.map(|one| (one.topology_key.clone(), one.clone())).collect()
}

#[test]
fn every_spread_constraint_is_hard_in_the_cluster_that_has_its_nodes() {
    let is_lower = |key: &str| key == "kubernetes.io/hostname" || !Settings::default().is_upper(key);
    for seed in 0..PODS {
        let Some([before, upper, lower]) = three_pods(seed) else { continue };
        let (mut below, mut above) = (spreads(&before, "DoNotSchedule"), spreads(&before, "DoNotSchedule"));
        below.retain(|key, _| is_lower(key));
        above.retain(|key, _| !is_lower(key));
        assert_eq!(spreads(&lower, "DoNotSchedule"), below, "seed {seed}");
        assert_eq!(spreads(&upper, "DoNotSchedule"), above, "seed {seed}");
        assert_eq!(spreads(&lower, "ScheduleAnyway"), spreads(&before, "ScheduleAnyway"), "seed {seed}");
    }
}

#[test]
fn pod_anti_affinity_and_preferences_are_the_same_in_the_lower_pod() {
    fn anti_affinity(pod: &PodSpec) -> Option<&PodAntiAffinity> {
        pod.affinity.as_ref()?.pod_anti_affinity.as_ref()
    }
    for seed in 0..PODS {
        let Some([before, _, lower]) = three_pods(seed) else { continue };
        assert_eq!(anti_affinity(&lower), anti_affinity(&before), "seed {seed}");
        let preferred = |pod: &PodSpec| {
            let affinity = pod.affinity.as_ref()?.node_affinity.as_ref()?;
            affinity.preferred_during_scheduling_ignored_during_execution.clone()
        };
        assert_eq!(preferred(&lower), preferred(&before), "seed {seed}");
    }
}
