//! Pods as they are read from the API server and from kube-scheduler.
//!
//! Anybody can make pods of a megabyte, which take a hundred times as much in memory: an empty volume takes 3 KiB. So what decides nothing is not
//! decoded, and of what decides only so much is kept as any reasonable pod has.

use std::io;

use k8s_openapi::{
    api::core::v1::{Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::Serialize;
use vk_kube::{DecodeRule, Field, Partial};
use vk_provider::placement::{TRIAL_LABEL, TRIAL_UNTIL_ANNOTATION};

use crate::{
    names, pod_state,
    query_pod::{self, UNDISCLOSED},
};

/// Limit of what decides where a pod may go, in bytes.
const MAX_BYTES: usize = 64 << 10;
/// Limit of the values in each field of the spec, and of the metadata.
const MAX_VALUES: usize = 10_000;
/// What a pod that is too large keeps of its metadata.
const KEPT_LABELS: [&str; 2] = [TRIAL_LABEL, names::GROUP];
const KEPT_ANNOTATIONS: [&str; 4] =
    [TRIAL_UNTIL_ANNOTATION, names::PINNED, names::GROUP_SIZE, names::DESCHEDULE];
/// Limit of an annotation that such a pod keeps.
const MAX_ANNOTATION: usize = 100;

/// A pod without what does not decide where it may go. One that is too large is reduced to what it uses.
pub(crate) type WatchedPod = Partial<DecidingFields>;

/// Decodes what decides where a pod may go, and its status.
#[derive(Clone, Debug)]
pub(crate) struct DecidingFields;

/// Counts what is written.
#[derive(Default)]
struct Counter(usize);

// === impl DecidingFields ===

impl DecodeRule for DecidingFields {
    type Object = Pod;
    const SKIPPED: &'static [Field] = UNDISCLOSED;
    const MAX_ELEMENTS: usize = MAX_VALUES;

    fn finish(pod: &mut Pod, is_cut: bool) {
        if let Some(annotations) = &mut pod.metadata.annotations {
            annotations.retain(|key, _| query_pod::decides(key) && key != names::TOO_LARGE);
        }
        let bytes = json_bytes(&(&pod.metadata, &pod.spec));
        let excess = if is_cut {
            format!("has a field with more than {MAX_VALUES} values")
        } else if bytes > MAX_BYTES {
            format!(
                "has {bytes} bytes that decide where it may go, and placement handles at most {MAX_BYTES}"
            )
        } else {
            return;
        };
        reduce(pod, format!("the pod is too large: it {excess}"));
    }
}

// === impl Counter ===

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The length of a value as JSON.
pub(crate) fn json_bytes(value: &impl Serialize) -> usize {
    let mut counter = Counter::default();
    // What cannot be serialized cannot be sent either.
    drop(serde_json::to_writer(&mut counter, value));
    counter.0
}

/// Keeps what the pod uses, and what says where it is.
fn reduce(pod: &mut Pod, why: String) {
    let held = query_pod::held(pod);
    let controller = pod_state::controller(pod).cloned();
    let before = std::mem::take(&mut pod.metadata);
    let mut labels = held.metadata.labels.unwrap_or_default();
    labels.extend(before.labels.into_iter().flatten().filter(|(key, _)| KEPT_LABELS.contains(&key.as_str())));
    let mut annotations = held.metadata.annotations.unwrap_or_default();
    annotations.extend(
        before
            .annotations
            .into_iter()
            .flatten()
            .filter(|(key, value)| KEPT_ANNOTATIONS.contains(&key.as_str()) && value.len() <= MAX_ANNOTATION),
    );
    annotations.insert(names::TOO_LARGE.to_owned(), why);
    pod.metadata = ObjectMeta {
        name: before.name,
        namespace: before.namespace,
        uid: before.uid,
        resource_version: before.resource_version,
        creation_timestamp: before.creation_timestamp,
        deletion_timestamp: before.deletion_timestamp,
        owner_references: controller.map(|owner| vec![owner]),
        labels: Some(labels),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    };
    if let Some(spec) = pod.spec.take() {
        let mut gates = spec.scheduling_gates;
        // Whether there are others beside ours matters, and not how many.
        if let Some(gates) = &mut gates {
            gates.sort_by_key(|gate| gate.name != names::GATE);
            gates.truncate(2);
        }
        pod.spec = Some(PodSpec {
            node_name: spec.node_name,
            priority: spec.priority,
            scheduling_gates: gates,
            ..held.spec.unwrap_or_default()
        });
    }
}

#[cfg(test)]
mod tests;
