use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::translate::tests::{
    annotate, below_by, label, owner, permissive, pod,
    properties::{pods, policies},
};

fn below(upper: &Pod) -> Pod {
    below_by(upper, &permissive())
}

fn update(upper: &Pod, lower: &Pod) -> Option<Update> {
    super::update(upper, lower, &owner(), &permissive(), &ClusterClasses::default()).unwrap()
}

/// The patch for the pod, without the annotations that record it.
fn patch(upper: &Pod, lower: &Pod) -> Value {
    let mut patch = update(upper, lower).unwrap().metadata_and_spec.unwrap();
    let annotations = patch["metadata"]["annotations"].as_object_mut().unwrap();
    assert!(annotations.remove(names::APPLIED).is_some());
    annotations.remove(names::INPUT);
    if annotations.is_empty() {
        patch["metadata"].as_object_mut().unwrap().remove("annotations");
    }
    if patch["metadata"].as_object().unwrap().is_empty() {
        patch.as_object_mut().unwrap().remove("metadata");
    }
    patch
}

/// Applies the patches like the API server.
fn apply(lower: &Pod, update: &Update) -> Pod {
    let mut pod = serde_json::to_value(lower).unwrap();
    let patches = [&update.metadata_and_spec, &update.ephemeral_containers, &update.resize, &update.resized];
    for patch in patches.into_iter().flatten() {
        merge(&mut pod, patch);
    }
    serde_json::from_value(pod).unwrap()
}

fn merge(into: &mut Value, patch: &Value) {
    let (Value::Object(fields), Value::Object(patch)) = (&mut *into, patch) else {
        *into = patch.clone();
        return;
    };
    for (name, value) in patch {
        match value {
            Value::Null => {
                fields.remove(name);
            }
            Value::Array(items) if name.ends_with("ontainers") => {
                let list = fields.entry(name).or_insert_with(|| json!([])).as_array_mut().unwrap();
                for item in items {
                    match list.iter_mut().find(|old| old["name"] == item["name"]) {
                        Some(old) => merge(old, item),
                        None => list.push(item.clone()),
                    }
                }
            }
            value => merge(fields.entry(name).or_insert_with(|| json!({})), value),
        }
    }
}

fn set(pod: &mut Pod, change: &Value) {
    let mut value = serde_json::to_value(&*pod).unwrap();
    merge(&mut value, &json!({"spec": change}));
    *pod = serde_json::from_value(value).unwrap();
}

#[test]
fn an_unchanged_pod_needs_no_update() {
    let upper = pod(json!({}));
    assert_eq!(update(&upper, &below(&upper)), None);
}

#[test]
fn patches_are_bound_to_the_uid() {
    let mut upper = pod(json!({}));
    let mut lower = below(&upper);
    lower.metadata.uid = Some("lower-uid".to_owned());
    label(&mut upper, "a", "1");
    set(
        &mut upper,
        &json!({
            "containers": [{"name": "web", "resources": {"requests": {"cpu": "1"}}}],
            "ephemeralContainers": [{"name": "debug"}],
        }),
    );
    let update = update(&upper, &lower).unwrap();
    for patch in [update.metadata_and_spec, update.ephemeral_containers, update.resize, update.resized] {
        assert_eq!(patch.unwrap()["metadata"]["uid"], "lower-uid");
    }
}

#[test]
fn a_lower_pod_of_another_upper_pod_is_not_updated() {
    let mut upper = pod(json!({}));
    let lower = below(&upper);
    upper.metadata.uid = Some("uid-2".to_owned());
    label(&mut upper, "a", "1");
    assert_eq!(update(&upper, &lower), None);
}

#[test]
fn a_changed_image_is_patched() {
    let mut upper = pod(json!({
        "containers": [{"name": "web", "image": "web:1"}, {"name": "log", "image": "log:1"}],
        "initContainers": [{"name": "init", "image": "init:1"}],
    }));
    let lower = below(&upper);
    set(
        &mut upper,
        &json!({
            "containers": [{"name": "log", "image": "log:2"}], "initContainers": [{"name": "init", "image": "init:2"}],
        }),
    );
    assert_eq!(
        patch(&upper, &lower),
        json!({"spec": {
            "containers": [{"name": "log", "image": "log:2"}],
            "initContainers": [{"name": "init", "image": "init:2"}],
        }})
    );
}

#[test]
fn an_image_rewritten_in_the_lower_cluster_stays_until_the_upper_one_changes() {
    let mut upper = pod(json!({}));
    let mut lower = below(&upper);
    set(&mut lower, &json!({"containers": [{"name": "web", "image": "mirror.example.com/web:1"}]}));
    label(&mut upper, "a", "1");
    assert_eq!(patch(&upper, &lower), json!({"metadata": {"labels": {"a": "1"}}}));
    set(&mut upper, &json!({"containers": [{"name": "web", "image": "web:2"}]}));
    assert_eq!(patch(&upper, &lower)["spec"], json!({"containers": [{"name": "web", "image": "web:2"}]}));
}

#[test]
fn containers_and_labels_added_by_others_stay() {
    let mut upper = pod(json!({}));
    label(&mut upper, "app", "web");
    let mut lower = below(&upper);
    set(&mut lower, &json!({"containers": [{"name": "sidecar", "image": "mesh:1"}]}));
    label(&mut lower, "mesh", "on");
    annotate(&mut lower, "mesh/status", "injected");
    label(&mut lower, "app", "renamed");
    // Later the upper pod uses the same names.
    label(&mut upper, "mesh", "off");
    annotate(&mut upper, "mesh/status", "none");
    label(&mut upper, "new", "1");
    assert_eq!(patch(&upper, &lower), json!({"metadata": {"labels": {"new": "1"}}}));
    let updated = apply(&lower, &update(&upper, &lower).unwrap());
    for key in ["mesh", "mesh/status"] {
        upper.metadata.labels.as_mut().unwrap().remove(key);
    }
    upper.metadata.annotations = None;
    assert_eq!(update(&upper, &updated), None, "they stay when the upper pod drops them");
}

#[test]
fn removed_labels_are_removed_if_we_set_them() {
    let mut upper = pod(json!({}));
    label(&mut upper, "ours", "1");
    label(&mut upper, "taken", "1");
    annotate(&mut upper, "note", "1");
    let mut lower = below(&upper);
    label(&mut lower, "theirs", "1");
    label(&mut lower, "taken", "over");
    upper.metadata.labels = None;
    upper.metadata.annotations = None;
    assert_eq!(
        patch(&upper, &lower),
        json!({"metadata": {"labels": {"ours": null}, "annotations": {"note": null}}})
    );
    let updated = apply(&lower, &update(&upper, &lower).unwrap());
    assert_eq!(names::label(&updated.metadata, "theirs"), Some("1"));
    assert_eq!(names::label(&updated.metadata, names::ORIGIN), Some("upper"), "our own marks are there");
}

#[test]
fn a_changed_label_is_patched() {
    let mut upper = pod(json!({}));
    label(&mut upper, "app", "1");
    let mut lower = below(&upper);
    label(&mut lower, "app", "changed below");
    label(&mut upper, "app", "2");
    assert_eq!(patch(&upper, &lower), json!({"metadata": {"labels": {"app": "2"}}}));
}

#[test]
fn a_deadline_can_be_set_and_shortened() {
    let mut upper = pod(json!({}));
    let lower = below(&upper);
    set(&mut upper, &json!({"activeDeadlineSeconds": 60}));
    assert_eq!(patch(&upper, &lower), json!({"spec": {"activeDeadlineSeconds": 60}}));
    let mut lower = apply(&lower, &update(&upper, &lower).unwrap());
    set(&mut lower, &json!({"activeDeadlineSeconds": 10}));
    set(&mut upper, &json!({"activeDeadlineSeconds": 30}));
    assert_eq!(update(&upper, &lower), None, "an earlier deadline was set in the lower cluster");
}

#[test]
fn new_tolerations_are_added() {
    let gpu = json!({"key": "gpu", "operator": "Exists"});
    let spot = |seconds: i64| json!({"key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
    let by_admission =
        json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"});
    let mut upper = pod(json!({"tolerations": [spot(5)]}));
    let mut lower = below(&upper);
    set(&mut lower, &json!({"tolerations": [spot(5), by_admission]}));
    set(&mut upper, &json!({"tolerations": [spot(5), gpu]}));
    assert_eq!(patch(&upper, &lower), json!({"spec": {"tolerations": [spot(5), by_admission, gpu]}}));
    let lower = apply(&lower, &update(&upper, &lower).unwrap());
    set(&mut upper, &json!({"tolerations": [spot(9), gpu]}));
    assert_eq!(patch(&upper, &lower), json!({"spec": {"tolerations": [spot(9), by_admission, gpu]}}));
    let mut ours = pod(json!({"tolerations": []}));
    let lower = below(&ours);
    set(&mut ours, &json!({"tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}]}));
    assert_eq!(update(&ours, &lower), None, "ours is not for the lower cluster");
}

#[test]
fn changed_requests_are_a_resize_and_values_set_by_others_stay() {
    let mut upper = pod(json!({
        "containers": [{"name": "web", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
        "initContainers": [{"name": "side", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}],
        "resources": {"requests": {"cpu": "4"}},
    }));
    let mut lower = below(&upper);
    // By a LimitRange, and by an autoscaler in the lower cluster.
    set(
        &mut lower,
        &json!({"containers": [
            {"name": "web", "resources": {"limits": {"cpu": "8"}, "requests": {"memory": "2Gi"}}},
        ]}),
    );
    set(
        &mut upper,
        &json!({
            "containers": [{"name": "web", "resources": {"requests": {"cpu": "2"}}}],
            "initContainers": [{"name": "side", "resources": {"limits": {"cpu": "3"}}}],
            "resources": {"requests": {"cpu": "5"}},
        }),
    );
    let resized = update(&upper, &lower).unwrap();
    assert_eq!(
        resized.resize,
        Some(json!({"spec": {
            "containers": [{"name": "web", "resources": {"requests": {"cpu": "2"}}}],
            "initContainers": [{"name": "side", "resources": {"limits": {"cpu": "3"}}}],
            "resources": {"requests": {"cpu": "5"}},
        }}))
    );
    assert_eq!(resized.metadata_and_spec, None);
    let lower = apply(&lower, &resized);
    assert_eq!(update(&upper, &lower), None);
    set(&mut upper, &json!({"initContainers": [{"name": "side", "resources": {"limits": null}}]}));
    assert_eq!(
        update(&upper, &lower).unwrap().resize,
        Some(json!({"spec": {"initContainers": [{"name": "side", "resources": {"limits": {"cpu": null}}}]}}))
    );
}

#[test]
fn a_removed_request_stays_if_somebody_changed_it() {
    let amounts = json!([{"name": "web", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]);
    let mut upper = pod(json!({"containers": amounts}));
    let mut lower = below(&upper);
    set(&mut lower, &json!({"containers": [{"name": "web", "resources": {"requests": {"memory": "2Gi"}}}]}));
    set(&mut upper, &json!({"containers": [{"name": "web", "resources": {"requests": null}}]}));
    assert_eq!(
        update(&upper, &lower).unwrap().resize,
        Some(json!({"spec": {"containers": [{"name": "web", "resources": {"requests": {"cpu": null}}}]}}))
    );
}

#[test]
fn a_rejected_resize_does_not_block_other_changes_and_is_retried() {
    let mut upper = pod(json!({}));
    let lower = below(&upper);
    label(&mut upper, "a", "1");
    set(&mut upper, &json!({"containers": [{"name": "web", "resources": {"requests": {"cpu": "64"}}}]}));
    let both = update(&upper, &lower).unwrap();
    assert!(both.resize.is_some() && both.resized.is_some());
    assert_eq!(patch(&upper, &lower), json!({"metadata": {"labels": {"a": "1"}}}));
    let refused = Update { resize: None, resized: None, ..both.clone() };
    let labelled = apply(&lower, &refused);
    assert_eq!(names::label(&labelled.metadata, "a"), Some("1"));
    let again = update(&upper, &labelled).unwrap();
    assert_eq!((&again.resize, &again.metadata_and_spec), (&both.resize, &None));
    // The process ended between the two patches.
    let taken = apply(&labelled, &Update { resized: None, ..again });
    let remembered = update(&upper, &taken).unwrap();
    assert_eq!(remembered.resize, None);
    assert_eq!(update(&upper, &apply(&taken, &remembered)), None);
}

#[test]
fn an_ephemeral_container_is_added_once_and_rewritten() {
    let mut upper = pod(json!({
        "volumes": [
            {"name": "kube-api-access-1", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            {"name": "data", "emptyDir": {}},
        ],
    }));
    let lower = below(&upper);
    let mount = |name: &str| json!({"name": name, "mountPath": "/m"});
    set(
        &mut upper,
        &json!({"ephemeralContainers": [{
            "name": "debug", "image": "busybox", "targetContainerName": "web",
            "env": [{"name": "UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
            "volumeMounts": [mount("kube-api-access-1"), mount("data")],
        }]}),
    );
    let put = update(&upper, &lower).unwrap();
    assert_eq!((&put.metadata_and_spec, &put.resize), (&None, &None));
    assert_eq!(
        put.ephemeral_containers,
        Some(json!({"spec": {"ephemeralContainers": [{
            "name": "debug", "image": "busybox", "targetContainerName": "web",
            "env": [{"name": "UID", "value": "uid-1"}],
            "volumeMounts": [mount("data")],
        }]}}))
    );
    assert_eq!(update(&upper, &apply(&lower, &put)), None);
}

#[test]
fn an_ephemeral_container_with_host_access_is_rejected_if_it_is_not_allowed() {
    let closed = TranslationPolicy::default();
    let mut upper = pod(json!({}));
    let lower = below(&upper);
    set(
        &mut upper,
        &json!({"ephemeralContainers": [{"name": "debug", "securityContext": {"privileged": true}}]}),
    );
    let why =
        super::update(&upper, &lower, &owner(), &closed, &ClusterClasses::default()).unwrap_err().to_string();
    assert!(why.contains("container debug (privileged)"), "{why}");
}

#[test]
fn a_policy_change_of_immutable_fields_writes_nothing() {
    let upper = pod(json!({}));
    let policy =
        TranslationPolicy { node_selector: [("pool".to_owned(), "b".to_owned())].into(), ..permissive() };
    let translated = translate(&upper, &owner(), &policy, &ClusterClasses::default()).unwrap();
    assert_ne!(Some(translated.input.as_str()), names::annotation(&below(&upper).metadata, names::INPUT));
    assert_eq!(
        super::update(&upper, &below(&upper), &owner(), &policy, &ClusterClasses::default()),
        Ok(None)
    );
}

#[test]
fn a_lower_pod_without_our_annotations_is_still_updated() {
    let mut upper = pod(json!({}));
    label(&mut upper, "app", "web");
    let mut lower = below(&upper);
    for key in [names::APPLIED, names::INPUT] {
        annotate(&mut lower, key, "spoilt");
    }
    label(&mut upper, "new", "1");
    assert_eq!(patch(&upper, &lower), json!({"metadata": {"labels": {"new": "1"}}}));
}

proptest! {
    #[test]
    fn a_new_or_updated_pod_needs_no_update(before in pods(), mut after in pods(), policy in policies()) {
        let update = |upper: &Pod, lower: &Pod| super::update(upper, lower, &owner(), &policy, &ClusterClasses::default()).unwrap();
        let lower = translate(&before, &owner(), &policy, &ClusterClasses::default()).unwrap().pod;
        let first = update(&before, &lower).unwrap_or_default();
        prop_assert_eq!((&first.resize, &first.metadata_and_spec), (&None, &None));
        let lower = apply(&lower, &first);
        prop_assert_eq!(update(&before, &lower), None);
        // Ephemeral containers are never removed.
        let debug = before.spec.as_ref().and_then(|spec| spec.ephemeral_containers.clone());
        let spec = after.spec.as_mut().unwrap();
        spec.ephemeral_containers = debug.or_else(|| spec.ephemeral_containers.take());
        let second = update(&after, &lower).unwrap_or_default();
        let lower = apply(&lower, &second);
        prop_assert_eq!(update(&after, &lower), None);
        let wanted = translate(&after, &owner(), &policy, &ClusterClasses::default()).unwrap().pod;
        prop_assert_eq!(&lower.metadata.labels, &wanted.metadata.labels);
        let images = |pod: &Pod| pod.spec.as_ref().map(|spec| last_applied::containers(spec).map(|one| one.image.clone()).collect::<Vec<_>>());
        prop_assert_eq!(images(&lower), images(&wanted));
    }
}
