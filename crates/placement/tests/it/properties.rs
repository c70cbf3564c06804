//! What holds for the conversion of every pod.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use vk_placement::convert::{Settings, convert};

use crate::generator;

const PODS: u64 = 3_000;

pub(crate) fn read(pod: &Value) -> Pod {
    serde_json::from_value(pod.clone()).unwrap_or_else(|error| panic!("{error}: {pod}"))
}

/// The converted pod.
pub(crate) fn converted(pod: &Value, settings: &Settings) -> Value {
    let mut after = pod.clone();
    let patch = convert(&read(pod), settings).patch;
    json_patch::patch(&mut after, &patch).unwrap_or_else(|error| panic!("{error}: {patch:?} of {pod}"));
    after
}

/// Every combination of settings, by seed.
pub(crate) fn settings(seed: u64) -> Settings {
    let upper_keys = match seed % 5 {
        0 => vec!["type".to_owned(), "rack".to_owned()],
        _ => Settings::default().upper_keys,
    };
    Settings { upper_keys, gate: Some(seed.is_multiple_of(2)), tolerate_lost: seed.is_multiple_of(3) }
}

#[test]
fn conversion_of_a_converted_pod_changes_nothing() {
    for seed in 0..PODS {
        let settings = settings(seed);
        let once = converted(&generator::pod(seed), &settings);
        assert_eq!(converted(&once, &settings), once, "seed {seed}");
    }
}

#[test]
fn only_annotations_and_scheduling_change() {
    for seed in 0..PODS {
        let mut before = generator::pod(seed);
        let mut after = converted(&before, &settings(seed));
        for pod in [&mut before, &mut after] {
            pod["metadata"].as_object_mut().unwrap().remove("annotations");
            for field in
                ["nodeSelector", "affinity", "topologySpreadConstraints", "tolerations", "schedulingGates"]
            {
                pod["spec"].as_object_mut().unwrap().remove(field);
            }
        }
        assert_eq!(after, before, "seed {seed}");
    }
}

#[test]
fn annotations_of_others_and_what_is_in_ours_stay() {
    for seed in 0..PODS {
        let before = generator::pod(seed);
        let after = converted(&before, &settings(seed));
        for (key, value) in before["metadata"]["annotations"].as_object().into_iter().flatten() {
            let (value, now) =
                (value.as_str().unwrap(), after["metadata"]["annotations"][key].as_str().unwrap());
            assert!(now.starts_with(value), "seed {seed}: {key}: {value} became {now}");
        }
    }
}

#[test]
fn keys_that_are_added_in_between_give_the_same_selection_as_before() {
    for seed in 0..PODS {
        let settings = settings(seed);
        let mut late = converted(&generator::pod(seed), &settings);
        late["spec"]["nodeSelector"]["late"] = json!("x");
        let late = converted(&late, &settings);
        let text =
            late["metadata"]["annotations"]["multicluster.virtual-kubelet.io/lower-nodes"].as_str().unwrap();
        assert_eq!(text.matches("late=x").count(), 1, "seed {seed}: {text}");
        let mut early = generator::pod(seed);
        early["spec"]["nodeSelector"]["late"] = json!("x");
        let early = converted(&early, &settings);
        assert_eq!(early["spec"], late["spec"], "seed {seed}");
    }
}
