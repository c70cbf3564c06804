//! Converts pods for virtual nodes.
//!
//! A pod that selects machines by labels such as `disk=ssd` fits on no virtual node, because no virtual node has the labels of all its
//! machines. Conversion moves what concerns machines into annotations, and the provider `cluster` restores it in the lower pod:
//!
//! | in the pod | becomes |
//! |---|---|
//! | node selector, and required node affinity with one term, as far as their keys are not [upper keys](Settings::upper_keys) | annotation [`LOWER_NODES`](names::LOWER_NODES), a label selector |
//! | required node affinity with several terms without any upper key | annotation [`LOWER`](names::LOWER) |
//! | required pod anti-affinity by host name | the same by the topology key [`MACHINE`](names::MACHINE) |
//! | hard spread over host names, or over a key that is not an upper one | a soft one, and annotation [`LOWER_SPREAD`](names::LOWER_SPREAD) |
//!
//! It adds the toleration of virtual nodes and, if [configured](Settings), the scheduling gate and tolerations of lost nodes. What cannot be
//! converted stays, and annotation [`NOT_CONVERTED`](names::NOT_CONVERTED) says why.
//!
//! Conversion of a converted pod changes nothing. If a webhook adds something in between, that is converted, and nothing is lost. The
//! [admission policy](crate::policy) has the same rules in CEL, and a test compares both.

mod changes;
mod node_affinity;
mod pod_anti_affinity;
pub(crate) mod reason;
mod settings;
mod spread;
#[cfg(test)]
mod tests;
mod tolerations;

use json_patch::Patch;
use k8s_openapi::api::core::v1::{Pod, PodSchedulingGate, PodSpec};

use self::changes::Changes;
use crate::names;

pub use self::settings::{DEFAULT_UPPER_KEYS, Settings};

/// The conversion of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversion {
    /// The changes, none if the pod is as it should be.
    pub patch: Patch,
    /// What stays as it is although it may keep the pod off every node, and what to do.
    pub not_converted: Vec<&'static str>,
}

/// Why a pod is left alone, whoever asks for conversion; `None` if it can be converted. Bound pods have their node, and pods from another
/// cluster must not be passed on, or clusters that are each other's nodes would pass them in circles.
pub fn exemption(pod: &Pod, namespace: &str) -> Option<&'static str> {
    let bound =
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).is_some_and(|node| !node.is_empty());
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let from_above = pod.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(names::ORIGIN));
    if namespace == names::KUBE_SYSTEM {
        Some("pods of kube-system are not converted")
    } else if bound {
        Some("the pod is bound to a node")
    } else if owners.any(|owner| owner.kind == "DaemonSet") {
        Some("pods of DaemonSets are not converted")
    } else if from_above {
        Some("the pod comes from another cluster")
    } else {
        None
    }
}

/// Converts a pod. Call it only for pods without an [`exemption`].
pub fn convert(pod: &Pod, settings: &Settings) -> Conversion {
    let mut changes = Changes::default();
    if let Some(spec) = &pod.spec {
        node_affinity::convert_selector(spec, settings, &mut changes);
        node_affinity::convert_required(pod, spec, settings, &mut changes);
        pod_anti_affinity::convert(spec, &mut changes);
        spread::convert(spec, settings, &mut changes);
        tolerations::convert(spec, settings, &mut changes);
        if settings.gate == Some(true) {
            add_gate(spec, &mut changes);
        }
    }
    changes.into_conversion(&pod.metadata)
}

fn add_gate(spec: &PodSpec, changes: &mut Changes) {
    let gates = spec.scheduling_gates.as_deref();
    if gates.unwrap_or_default().iter().any(|gate| gate.name == names::GATE) {
        return;
    }
    let gate = PodSchedulingGate { name: names::GATE.to_owned() };
    changes.append("schedulingGates", gates.is_some(), &[gate]);
}
