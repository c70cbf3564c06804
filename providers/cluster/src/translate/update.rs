//! Patches for a lower pod after a change of the upper pod.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod, PodSpec, Toleration};
use serde_json::{Map, Value, json};

use super::{
    ClusterClasses, PodRewriter, Rejection, TranslationPolicy,
    last_applied::{self, LastApplied, ResourceAmounts},
    pod_security, translate,
};
use crate::names::{self, OwnerId};

#[cfg(test)]
mod tests;

/// Strategic merge patches for a lower pod, each bound to its UID. A rejected patch does not prevent the others: values that were not
/// recorded are part of the next update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// For the pod: labels, annotations, images, deadline, tolerations.
    pub metadata_and_spec: Option<Value>,
    /// For `pods/ephemeralcontainers`.
    pub ephemeral_containers: Option<Value>,
    /// For `pods/resize`.
    pub resize: Option<Value>,
    /// For the pod after `resize` succeeded: records it.
    pub resized: Option<Value>,
}

/// The patches that a change of the upper pod requires. They contain only fields that may change while a pod is running, and nothing that
/// others have written. `None` if nothing changed or the lower pod belongs to another upper pod.
pub fn update(
    upper: &Pod,
    lower: &Pod,
    owner: &OwnerId,
    policy: &TranslationPolicy,
    classes: &ClusterClasses,
) -> Result<Option<Update>, Rejection> {
    let rewriter = owner.owns(&lower.metadata)
        && names::label(&lower.metadata, names::ORIGIN_UID) == upper.metadata.uid.as_deref();
    if !rewriter {
        return Ok(None);
    }
    let translated = translate(upper, owner, policy, classes)?;
    let mut update = Update {
        ephemeral_containers: ephemeral_containers(upper, lower, owner, policy)?,
        ..Update::default()
    };
    if names::annotation(&lower.metadata, names::INPUT) != Some(&translated.input) {
        changes(&translated.pod, &translated.input, lower, &mut update);
    }
    Ok((update != Update::default()).then_some(update))
}

fn ephemeral_containers(
    upper: &Pod,
    lower: &Pod,
    owner: &OwnerId,
    policy: &TranslationPolicy,
) -> Result<Option<Value>, Rejection> {
    fn of(pod: &Pod) -> impl Iterator<Item = &EphemeralContainer> {
        pod.spec.iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten())
    }
    let current: BTreeSet<&str> = of(lower).map(|container| container.name.as_str()).collect();
    let mut new: Vec<EphemeralContainer> =
        of(upper).filter(|container| !current.contains(container.name.as_str())).cloned().collect();
    if new.is_empty() {
        return Ok(None);
    }
    if let Some(spec) = &upper.spec {
        pod_security::check_ephemeral(&new, spec, policy.pod_security)?;
    }
    let rewriter = PodRewriter::of(upper, owner, policy)?;
    for container in &mut new {
        rewriter.rewrite_ephemeral(container);
    }
    Ok(Some(patch(lower, Map::new(), Map::from_iter([("ephemeralContainers".to_owned(), json!(new))]))))
}

fn changes(translated: &Pod, input: &str, lower: &Pod, update: &mut Update) {
    let (Some(wanted), Some(current)) = (&translated.spec, &lower.spec) else { return };
    let last = LastApplied::read(&lower.metadata);
    let mut now = LastApplied::of(translated);

    let labels = metadata_patch(
        translated.metadata.labels.as_ref(),
        lower.metadata.labels.as_ref(),
        &last.labels,
        &mut now.labels,
    );
    let mut annotations = metadata_patch(
        translated.metadata.annotations.as_ref(),
        lower.metadata.annotations.as_ref(),
        &last.annotations,
        &mut now.annotations,
    );
    let mut spec = Map::new();
    images(current, &last, &now, &mut spec);
    if let Some(seconds) = now.active_deadline_seconds
        && last.active_deadline_seconds != Some(seconds)
        // The API server only accepts an earlier deadline.
        && current.active_deadline_seconds.is_none_or(|before| seconds < before)
    {
        spec.insert("activeDeadlineSeconds".to_owned(), json!(seconds));
    }
    if let Some(list) = tolerations(wanted, current, &last) {
        spec.insert("tolerations".to_owned(), json!(list));
    }
    let resize = resize(current, &last, &now);

    let unchanged = labels.is_empty() && annotations.is_empty() && spec.is_empty();
    if resize.is_empty() {
        if unchanged && last.resources == now.resources {
            return;
        }
        annotations.extend(record_annotations(&now, Some(input)));
    } else {
        update.resize = Some(patch(lower, Map::new(), resize));
        let whole = Map::from_iter([(
            "annotations".to_owned(),
            Value::Object(record_annotations(&now, Some(input))),
        )]);
        update.resized = Some(patch(lower, whole, Map::new()));
        if unchanged {
            return;
        }
        now.resources = last.resources;
        annotations.extend(record_annotations(&now, None));
    }
    let mut metadata = Map::from_iter([("annotations".to_owned(), Value::Object(annotations))]);
    if !labels.is_empty() {
        metadata.insert("labels".to_owned(), Value::Object(labels));
    }
    update.metadata_and_spec = Some(patch(lower, metadata, spec));
}

/// The annotations that record what was written, with the hash of the input if it is complete.
fn record_annotations(applied: &LastApplied, input: Option<&str>) -> Map<String, Value> {
    let mut annotations = Map::from_iter([(names::APPLIED.to_owned(), json!(applied.to_annotation()))]);
    annotations.extend(input.map(|input| (names::INPUT.to_owned(), json!(input))));
    annotations
}

/// The labels or annotations to set, or to remove (null). Those of others are not recorded as ours.
fn metadata_patch(
    wanted: Option<&BTreeMap<String, String>>,
    current: Option<&BTreeMap<String, String>>,
    last: &BTreeMap<String, String>,
    now: &mut BTreeMap<String, String>,
) -> Map<String, Value> {
    let current = |key: &str| current.and_then(|current| current.get(key));
    let mut patch = Map::new();
    for (key, value) in wanted.into_iter().flatten().filter(|(key, _)| last_applied::is_user_key(key)) {
        match (last.get(key), current(key)) {
            (Some(before), _) if *before == last_applied::short_hash(value) => {}
            (None, Some(_)) => {
                now.remove(key);
            }
            (_, Some(same)) if same == value => {}
            _ => {
                patch.insert(key.clone(), json!(value));
            }
        }
    }
    for (key, before) in last {
        let gone = wanted.is_none_or(|wanted| !wanted.contains_key(key));
        if gone && current(key).is_some_and(|value| last_applied::short_hash(value) == *before) {
            patch.insert(key.clone(), Value::Null);
        }
    }
    patch
}

fn images(current: &PodSpec, last: &LastApplied, now: &LastApplied, spec: &mut Map<String, Value>) {
    let changed = |container: &Container| {
        let image = now.images.get(&container.name)?;
        let old = last.images.get(&container.name) == Some(image) || container.image.as_ref() == Some(image);
        (!old).then(|| json!({"name": container.name, "image": image}))
    };
    for (field, containers) in lists(current) {
        let list: Vec<Value> = containers.iter().filter_map(changed).collect();
        if !list.is_empty() {
            spec.insert(field.to_owned(), json!(list));
        }
    }
}

fn lists(spec: &PodSpec) -> [(&'static str, &[Container]); 2] {
    [
        ("containers", &spec.containers),
        ("initContainers", spec.init_containers.as_deref().unwrap_or_default()),
    ]
}

/// The complete list with the new tolerations. The API server only allows additions and changes of `tolerationSeconds`.
fn tolerations(wanted: &PodSpec, current: &PodSpec, last: &LastApplied) -> Option<Vec<Toleration>> {
    let mut list = current.tolerations.clone().unwrap_or_default();
    let alike = |one: &Toleration, other: &Toleration| {
        Toleration { toleration_seconds: None, ..one.clone() }
            == Toleration { toleration_seconds: None, ..other.clone() }
    };
    for new in wanted.tolerations.iter().flatten() {
        if last.tolerations.contains(&last_applied::toleration_hash(new)) {
            continue;
        }
        match list.iter_mut().find(|old| alike(old, new)) {
            Some(old) => *old = new.clone(),
            None => list.push(new.clone()),
        }
    }
    (list != current.tolerations.clone().unwrap_or_default()).then_some(list)
}

fn resize(current: &PodSpec, last: &LastApplied, now: &LastApplied) -> Map<String, Value> {
    let none = ResourceAmounts::new();
    let of = |name: &str, current: &ResourceAmounts| {
        let last = last.resources.get(name).unwrap_or(&none);
        let now = now.resources.get(name).unwrap_or(&none);
        amounts(current, last, now)
    };
    let mut spec = Map::new();
    for (field, containers) in lists(current) {
        let resized = |container: &Container| {
            let changed = of(&container.name, &last_applied::resources_of(container.resources.as_ref()));
            (!changed.is_empty()).then(|| json!({"name": container.name, "resources": changed}))
        };
        let list: Vec<Value> = containers.iter().filter_map(resized).collect();
        if !list.is_empty() {
            spec.insert(field.to_owned(), json!(list));
        }
    }
    let changed = of("", &last_applied::resources_of(current.resources.as_ref()));
    if !changed.is_empty() {
        spec.insert("resources".to_owned(), json!(changed));
    }
    spec
}

/// The requests and limits to set, or to remove (null).
fn amounts(current: &ResourceAmounts, last: &ResourceAmounts, now: &ResourceAmounts) -> Map<String, Value> {
    let mut patch = Map::new();
    for field in ["requests", "limits"] {
        let of = |all: &ResourceAmounts, name: &String| {
            all.get(field).and_then(|amounts| amounts.get(name)).cloned()
        };
        let names = [last, now].into_iter().filter_map(|all| all.get(field)).flat_map(BTreeMap::keys);
        let mut changed = Map::new();
        for name in names.collect::<BTreeSet<_>>() {
            match (of(last, name), of(now, name), of(current, name)) {
                (last, now, _) if last == now => {}
                (_, Some(now), current) if current.as_ref() != Some(&now) => {
                    changed.insert(name.clone(), json!(now));
                }
                (last, None, current) if current == last => {
                    changed.insert(name.clone(), Value::Null);
                }
                _ => {}
            }
        }
        if !changed.is_empty() {
            patch.insert(field.to_owned(), Value::Object(changed));
        }
    }
    patch
}

/// Builds a patch. The UID makes it fail for another pod of the same name.
fn patch(lower: &Pod, mut metadata: Map<String, Value>, spec: Map<String, Value>) -> Value {
    if let Some(uid) = &lower.metadata.uid {
        metadata.insert("uid".to_owned(), json!(uid));
    }
    let mut patch = Map::new();
    if !metadata.is_empty() {
        patch.insert("metadata".to_owned(), Value::Object(metadata));
    }
    if !spec.is_empty() {
        patch.insert("spec".to_owned(), Value::Object(spec));
    }
    Value::Object(patch)
}
