//! The Node object that we want, as the requests that bring it about, and whether the one that is there needs them.
//!
//! Each part of the Node is written in the way that leaves other people's fields alone (tried on a live API server):
//! labels, annotations and conditions by server-side apply, which also takes away what we applied before and no longer
//! want; taints, an atomic list, by a patch of the whole list under a resourceVersion precondition; addresses, which
//! apply cannot hold twice by type, by a strategic patch.

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

use super::template::{Base, node_may_set_label};

/// Where we remember which taints are ours: a list of `key:effect`, with commas. Needed because the list has one owner
/// at most, and the controller-manager writes it too.
pub const TAINTS_ANNOTATION: &str = "virtual-kubelet.io/taints";

/// The Node that we want, without Ready.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    name: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    taints: Vec<Taint>,
    provider_id: Option<String>,
    conditions: Vec<Condition>,
    addresses: Value,
    /// Everything else of the status, ready to be applied.
    facts: Value,
    /// What NodeRestriction would refuse, and was left out.
    pub left_out: Vec<String>,
    restricted: bool,
}

// === impl Desired ===

impl Desired {
    /// The Node that the template describes. `restricted` when we act as `system:node:NAME`: then what NodeRestriction
    /// forbids is left out, because it would refuse the whole request.
    pub fn new(base: &Base, template: NodeTemplate, restricted: bool) -> Self {
        let allocatable = template.allocatable_or_capacity();
        let system = &template.system;
        let version = template.kubelet_version.as_deref().filter(|version| !version.is_empty());
        let mut facts = json!({
            "capacity": quantities(&template.capacity),
            "allocatable": quantities(&allocatable),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": base.kubelet_port}},
            "nodeInfo": {
                "operatingSystem": system.operating_system,
                "architecture": system.architecture,
                "kubeletVersion": version.unwrap_or(&base.kubelet_version),
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
            // Sorted, as the API server demands: the set is. Older ones do not know the field, and refuse what has it.
            facts["declaredFeatures"] = json!(template.declared_features);
        }
        let (labels, refused): (BTreeMap<_, _>, BTreeMap<_, _>) =
            template.labels.into_iter().partition(|(key, _)| !restricted || node_may_set_label(key));
        Self {
            name: base.name.clone(),
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
            facts,
            left_out: refused.into_keys().collect(),
            restricted,
        }
    }

    /// The object that registers the node. Only what cannot be set later, or must hold from the first moment: the rest
    /// is applied, so that there is one owner of each field.
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

    /// Labels and annotations, to be applied.
    pub fn metadata(&self, node: &Node) -> Value {
        let mut annotations = self.annotations.clone();
        let ours: BTreeSet<String> = self.taints.iter().map(taint_id).chain(self.leftovers(node)).collect();
        if !ours.is_empty() {
            annotations.insert(TAINTS_ANNOTATION.to_owned(), Vec::from_iter(ours).join(","));
        }
        let mut labels = self.labels.clone();
        labels.extend(self.out_of_reach(node));
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "uid": node.metadata.uid, "labels": labels, "annotations": annotations},
        })
    }

    /// Labels that we own since we ran under another identity, and that this one may not take away: leaving them out
    /// would get the whole request refused.
    fn out_of_reach(&self, node: &Node) -> BTreeMap<String, String> {
        let labels = node.metadata.labels.iter().flatten().filter(|(key, _)| {
            self.restricted
                && !node_may_set_label(key)
                && applied_by_us(node).any(|fields| owns_label(fields, key))
        });
        labels.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Ids of taints that we set once, that are still there, and that we want no more.
    fn leftovers(&self, node: &Node) -> BTreeSet<String> {
        let wanted: BTreeSet<String> = self.taints.iter().map(taint_id).collect();
        let remembered = node.metadata.annotations.as_ref().and_then(|all| all.get(TAINTS_ANNOTATION));
        let remembered: BTreeSet<&str> = remembered.map_or("", String::as_str).split(',').collect();
        taints_of(node)
            .iter()
            .map(taint_id)
            .filter(|id| remembered.contains(id.as_str()) && !wanted.contains(id))
            .collect()
    }

    /// The change to the spec that the node needs, if any. Only our own taints are touched.
    pub fn spec_change(&self, node: &Node) -> Option<Value> {
        let mut spec = Map::new();
        if !self.restricted
            && let Some(taints) = self.taints_wanted(node)
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

    /// Whether both want the same taints.
    pub fn has_taints_of(&self, other: &Self) -> bool {
        self.taints == other.taints
    }

    /// Whether the taints differ and we may not change them.
    pub fn taints_out_of_reach(&self, node: &Node) -> bool {
        self.restricted && self.taints_wanted(node).is_some()
    }

    /// The whole list of taints as it should be, when it is not.
    fn taints_wanted(&self, node: &Node) -> Option<Vec<Taint>> {
        let leftovers = self.leftovers(node);
        let there = taints_of(node);
        let mut wanted: Vec<Taint> =
            there.iter().filter(|taint| !leftovers.contains(&taint_id(taint))).cloned().collect();
        for taint in &self.taints {
            match wanted.iter_mut().find(|known| taint_id(known) == taint_id(taint)) {
                Some(known)
                    if known.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or("") => {}
                Some(known) => *known = taint.clone(),
                None => wanted.push(taint.clone()),
            }
        }
        (wanted != there).then_some(wanted)
    }

    /// The status to be applied: our conditions with their times kept right, and the facts.
    pub fn status(&self, node: &Node, ready: &Condition, now: Timestamp) -> Value {
        let there = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let conditions: Vec<Value> = self
            .conditions
            .iter()
            .chain([ready])
            .map(|condition| condition_body(condition, there, now))
            .collect();
        let mut status = self.facts.clone();
        status["conditions"] = json!(conditions);
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "uid": node.metadata.uid},
            "status": status,
        })
    }

    /// The addresses, to be patched in.
    pub fn addresses(&self, node: &Node) -> Value {
        let mut list = vec![json!({"$patch": "replace"})];
        list.extend(self.addresses.as_array().cloned().unwrap_or_default());
        json!({"metadata": {"uid": node.metadata.uid}, "status": {"addresses": list}})
    }

    /// Our labels and annotations as the node has them now.
    pub fn metadata_there(&self, node: &Node) -> Value {
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

    /// Our part of the status as the node has it now, without times.
    pub fn status_there(&self, node: &Node) -> Value {
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
            let ours = self.facts[kind].as_object();
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

    /// Our part of the status as we want it, without times: what makes a write necessary when it changes.
    pub fn status_wanted(&self, ready: &Condition) -> Value {
        let conditions: Vec<Value> = self
            .conditions
            .iter()
            .chain([ready])
            .map(|condition| {
                json!([condition.kind, condition.status.as_str(), condition.reason, condition.message])
            })
            .collect();
        json!([conditions, self.facts])
    }

    /// Whether the node has other addresses than we want.
    pub fn addresses_differ(&self, node: &Node) -> bool {
        let there = node.status.as_ref().and_then(|status| status.addresses.as_ref());
        json!(there.map_or(&[][..], Vec::as_slice)) != self.addresses
    }
}

/// The fields of the Node's own part that we applied. [`super::watch`] keeps them.
fn applied_by_us(node: &Node) -> impl Iterator<Item = &Value> {
    let entries = node.metadata.managed_fields.iter().flatten().filter(|entry| is_our_apply(entry));
    entries.filter_map(|entry| entry.fields_v1.as_ref()).map(|fields| &fields.0)
}

/// Whether these are the fields of the Node's own part, not of its status, that we applied.
pub(super) fn is_our_apply(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(FIELD_MANAGER)
        && entry.operation.as_deref() == Some("Apply")
        && entry.subresource.as_deref().unwrap_or_default().is_empty()
}

fn owns_label(fields: &Value, key: &str) -> bool {
    !fields["f:metadata"]["f:labels"][format!("f:{key}")].is_null()
}

/// `key:effect`, which tells a taint from all others.
fn taint_id(taint: &Taint) -> String {
    format!("{}:{}", taint.key, taint.effect)
}

fn taints_of(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

fn quantities(all: &BTreeMap<String, Quantity>) -> Map<String, Value> {
    all.iter().map(|(name, quantity)| (name.clone(), json!(quantity))).collect()
}

fn condition_body(condition: &Condition, there: &[NodeCondition], now: Timestamp) -> Value {
    let same =
        |known: &&NodeCondition| known.type_ == condition.kind && known.status == condition.status.as_str();
    let since = there
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

/// A time as Kubernetes writes it: whole seconds, and never one that is still to come.
pub fn seconds(time: Timestamp) -> String {
    let whole = TimestampRound::new().smallest(Unit::Second).mode(RoundMode::Floor);
    time.round(whole).unwrap_or(time).to_string()
}

/// The Ready condition.
pub fn ready(status: ConditionStatus, reason: &str, message: impl Into<String>) -> Condition {
    Condition { kind: "Ready".to_owned(), status, reason: reason.to_owned(), message: message.into() }
}

#[cfg(test)]
mod tests;
