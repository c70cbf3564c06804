//! The desired Node, the requests that create it, and the comparison with the existing Node.
//!
//! Each part of the Node is written in a way that preserves the fields of others (tested on a live API server): labels,
//! annotations and conditions by server-side apply, which also removes what we applied before and no longer want; taints,
//! an atomic list, by a patch of the whole list with a resourceVersion precondition; addresses by a strategic merge patch,
//! because apply cannot hold two addresses of one type.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{RoundMode, Timestamp, TimestampRound, Unit};
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition, Taint},
    apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry,
};
use serde_json::{Map, Value, json};
use vk_kube::objects::FIELD_MANAGER;
use vk_provider::{
    NodeTemplate,
    node::{Condition, ConditionStatus},
    quantity::Quantity,
};

use super::template::{NodeConfig, node_may_set_label};

/// Annotation that records our taints as a comma-separated list of `key:effect`. Needed because the taint list has at most
/// one owner, and the controller-manager writes it too.
pub const TAINTS_ANNOTATION: &str = "virtual-kubelet.io/taints";

/// The desired Node without its Ready condition.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredNode {
    name: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    taints: Vec<Taint>,
    provider_id: Option<String>,
    conditions: Vec<Condition>,
    addresses: Value,
    /// The rest of the status, ready to be applied.
    status: Value,
    /// Labels that were skipped because NodeRestriction would refuse them.
    pub refused_labels: Vec<String>,
    restricted: bool,
}

// === impl DesiredNode ===

impl DesiredNode {
    /// Builds the desired Node from the template. `restricted` means that we act as `system:node:NAME`: fields that
    /// NodeRestriction forbids are skipped, because it would refuse the whole request.
    pub fn new(config: &NodeConfig, template: NodeTemplate, restricted: bool) -> Self {
        let allocatable = template.allocatable_or_capacity();
        let system = &template.system;
        let version = template.kubelet_version.as_deref().filter(|version| !version.is_empty());
        let mut status = json!({
            "capacity": quantities(&template.capacity),
            "allocatable": quantities(&allocatable),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": config.kubelet_port}},
            "nodeInfo": {
                "operatingSystem": system.operating_system,
                "architecture": system.architecture,
                "kubeletVersion": version.unwrap_or(&config.kubelet_version),
                "kubeProxyVersion": "",
                "containerRuntimeVersion": system.container_runtime_version,
                "kernelVersion": system.kernel_version,
                "osImage": system.os_image,
                "machineID": system.machine_id,
                "systemUUID": system.system_uuid,
                "bootID": system.boot_id,
            },
        });
        if !template.declared_features.is_empty() {
            // The API server requires a sorted list.
            status["declaredFeatures"] = json!(template.declared_features);
        }
        let (labels, refused): (BTreeMap<_, _>, BTreeMap<_, _>) =
            template.labels.into_iter().partition(|(key, _)| !restricted || node_may_set_label(key));
        Self {
            name: config.name.clone(),
            labels,
            annotations: template.annotations,
            taints: template.taints,
            provider_id: template.provider_id,
            conditions: template
                .conditions
                .into_iter()
                .filter(|condition| condition.kind != "Ready")
                .collect(),
            addresses: json!(template.addresses),
            status,
            refused_labels: refused.into_keys().collect(),
            restricted,
        }
    }

    /// The object that registers the node. It only has what cannot be set later or must be there from the start; the rest is
    /// applied, so that each field has one owner.
    pub fn registration(&self) -> Value {
        let mut spec = Map::new();
        if !self.taints.is_empty() {
            spec.insert("taints".to_owned(), json!(self.taints));
        }
        if let Some(id) = &self.provider_id {
            spec.insert("providerID".to_owned(), json!(id));
        }
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}, "spec": spec})
    }

    /// Apply request for labels and annotations.
    pub fn metadata(&self, node: &Node) -> Value {
        let mut annotations = self.annotations.clone();
        let ours: BTreeSet<String> =
            self.taints.iter().map(taint_id).chain(self.stale_taints(node)).collect();
        if !ours.is_empty() {
            annotations.insert(TAINTS_ANNOTATION.to_owned(), Vec::from_iter(ours).join(","));
        }
        let mut labels = self.labels.clone();
        labels.extend(self.protected_labels(node));
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "uid": node.metadata.uid, "labels": labels, "annotations": annotations},
        })
    }

    /// Labels that we own from an earlier run with another identity and that this identity may not remove. Omitting them
    /// would cause NodeRestriction to refuse the whole request.
    fn protected_labels(&self, node: &Node) -> BTreeMap<String, String> {
        let labels = node.metadata.labels.iter().flatten().filter(|(key, _)| {
            self.restricted
                && !node_may_set_label(key)
                && applied_fields(node).any(|fields| owns_label(fields, key))
        });
        labels.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// IDs of existing taints that we set and no longer want.
    fn stale_taints(&self, node: &Node) -> BTreeSet<String> {
        let wanted: BTreeSet<String> = self.taints.iter().map(taint_id).collect();
        let remembered = node.metadata.annotations.as_ref().and_then(|all| all.get(TAINTS_ANNOTATION));
        let remembered: BTreeSet<&str> = remembered.map_or("", String::as_str).split(',').collect();
        taints(node)
            .iter()
            .map(taint_id)
            .filter(|id| remembered.contains(id.as_str()) && !wanted.contains(id))
            .collect()
    }

    /// The patch that the spec needs, if any. Only our own taints are changed.
    pub fn spec_patch(&self, node: &Node) -> Option<Value> {
        let mut spec = Map::new();
        if !self.restricted
            && let Some(taints) = self.wanted_taints(node)
        {
            spec.insert("taints".to_owned(), json!(taints));
        }
        let has_id =
            node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).is_some_and(|id| !id.is_empty());
        if let (Some(id), false) = (&self.provider_id, has_id) {
            spec.insert("providerID".to_owned(), json!(id));
        }
        let metadata = json!({"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version});
        (!spec.is_empty()).then(|| json!({"metadata": metadata, "spec": spec}))
    }

    /// Whether both have the same taints.
    pub fn has_same_taints(&self, other: &Self) -> bool {
        self.taints == other.taints
    }

    /// Whether the taints differ and we are not allowed to change them.
    pub fn taints_are_protected(&self, node: &Node) -> bool {
        self.restricted && self.wanted_taints(node).is_some()
    }

    /// The complete desired list of taints; `None` if the Node already has it.
    fn wanted_taints(&self, node: &Node) -> Option<Vec<Taint>> {
        let stale = self.stale_taints(node);
        let current = taints(node);
        let mut wanted: Vec<Taint> =
            current.iter().filter(|taint| !stale.contains(&taint_id(taint))).cloned().collect();
        for taint in &self.taints {
            match wanted.iter_mut().find(|known| taint_id(known) == taint_id(taint)) {
                Some(known)
                    if known.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or("") => {}
                Some(known) => *known = taint.clone(),
                None => wanted.push(taint.clone()),
            }
        }
        (wanted != current).then_some(wanted)
    }

    /// Apply request for the status: our conditions with correct transition times, and the rest.
    pub fn status(&self, node: &Node, ready: &Condition, now: Timestamp) -> Value {
        let current =
            node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let conditions: Vec<Value> = self
            .conditions
            .iter()
            .chain([ready])
            .map(|condition| condition_body(condition, current, now))
            .collect();
        let mut status = self.status.clone();
        status["conditions"] = json!(conditions);
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "uid": node.metadata.uid},
            "status": status,
        })
    }

    /// Patch request for the addresses.
    pub fn addresses(&self, node: &Node) -> Value {
        let mut list = vec![json!({"$patch": "replace"})];
        list.extend(self.addresses.as_array().cloned().unwrap_or_default());
        json!({"metadata": {"uid": node.metadata.uid}, "status": {"addresses": list}})
    }

    /// The current values of our labels and annotations on the Node.
    pub fn observed_metadata(&self, node: &Node) -> Value {
        let pick =
            |there: Option<&BTreeMap<String, String>>, keys: &mut dyn Iterator<Item = &String>| -> Value {
                keys.map(|key| (key.clone(), json!(there.and_then(|there| there.get(key)))))
                    .collect::<Map<_, _>>()
                    .into()
            };
        let taints = TAINTS_ANNOTATION.to_owned();
        json!([
            pick(node.metadata.labels.as_ref(), &mut self.labels.keys()),
            pick(node.metadata.annotations.as_ref(), &mut self.annotations.keys().chain([&taints])),
        ])
    }

    /// The current values of our part of the status, without times.
    pub fn observed_status(&self, node: &Node) -> Value {
        let empty = Vec::new();
        let status = node.status.clone().unwrap_or_default();
        let conditions: Map<String, Value> = status
            .conditions
            .as_ref()
            .unwrap_or(&empty)
            .iter()
            .filter(|there| {
                there.type_ == "Ready" || self.conditions.iter().any(|ours| ours.kind == there.type_)
            })
            .map(|there| (there.type_.clone(), json!([there.status, there.reason, there.message])))
            .collect();
        let resources = |kind: &str, there: Option<&BTreeMap<String, _>>| -> Map<String, Value> {
            let ours = self.status[kind].as_object();
            ours.into_iter()
                .flatten()
                .map(|(key, _)| (key.clone(), json!(there.and_then(|all| all.get(key)))))
                .collect()
        };
        json!([
            conditions,
            resources("capacity", status.capacity.as_ref()),
            resources("allocatable", status.allocatable.as_ref()),
            status.node_info,
            status.daemon_endpoints,
            status.declared_features,
        ])
    }

    /// The desired values of our part of the status, without times. A change requires a write.
    pub fn wanted_status(&self, ready: &Condition) -> Value {
        let conditions: Vec<Value> = self
            .conditions
            .iter()
            .chain([ready])
            .map(|condition| {
                json!([condition.kind, condition.status.as_str(), condition.reason, condition.message])
            })
            .collect();
        json!([conditions, self.status])
    }

    /// Whether the Node's addresses differ from the desired ones.
    pub fn addresses_differ(&self, node: &Node) -> bool {
        let there = node.status.as_ref().and_then(|status| status.addresses.as_ref());
        json!(there.map_or(&[][..], Vec::as_slice)) != self.addresses
    }
}

/// The fields of the main resource that we applied. [`super::watch`] keeps their entries.
fn applied_fields(node: &Node) -> impl Iterator<Item = &Value> {
    let entries = node.metadata.managed_fields.iter().flatten().filter(|entry| is_our_apply(entry));
    entries.filter_map(|entry| entry.fields_v1.as_ref()).map(|fields| &fields.0)
}

/// Whether this managedFields entry is our apply of the main resource (not of the status).
pub(super) fn is_our_apply(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(FIELD_MANAGER)
        && entry.operation.as_deref() == Some("Apply")
        && entry.subresource.as_deref().unwrap_or_default().is_empty()
}

fn owns_label(fields: &Value, key: &str) -> bool {
    !fields["f:metadata"]["f:labels"][format!("f:{key}")].is_null()
}

/// `key:effect`, which identifies a taint.
fn taint_id(taint: &Taint) -> String {
    format!("{}:{}", taint.key, taint.effect)
}

fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

fn quantities(all: &BTreeMap<String, Quantity>) -> Map<String, Value> {
    all.iter().map(|(name, quantity)| (name.clone(), json!(quantity))).collect()
}

fn condition_body(condition: &Condition, current: &[NodeCondition], now: Timestamp) -> Value {
    let same =
        |known: &&NodeCondition| known.type_ == condition.kind && known.status == condition.status.as_str();
    let since = current
        .iter()
        .find(same)
        .and_then(|known| known.last_transition_time.as_ref())
        .map_or(now, |time| time.0);
    json!({
        "type": condition.kind,
        "status": condition.status.as_str(),
        "reason": condition.reason,
        "message": condition.message,
        "lastHeartbeatTime": seconds(now),
        "lastTransitionTime": seconds(since),
    })
}

/// Formats a time like Kubernetes: whole seconds, rounded down so that it is never in the future.
pub fn seconds(time: Timestamp) -> String {
    let whole = TimestampRound::new().smallest(Unit::Second).mode(RoundMode::Floor);
    time.round(whole).unwrap_or(time).to_string()
}

/// A Ready condition.
pub fn ready(status: ConditionStatus, reason: &str, message: impl Into<String>) -> Condition {
    Condition { kind: "Ready".to_owned(), status, reason: reason.to_owned(), message: message.into() }
}

#[cfg(test)]
mod tests;
