//! A fake API server with one Node and one lease. Its rules for writes were tested against a real API server.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Taint},
};
use serde_json::{Value, json};
use vk_kube::{Error, Kind, lease::LeaseCall};

use crate::node::state_machine::NodeCall;

/// Wall-clock time at the start of a simulation.
pub(super) const START: &str = "2026-01-01T00:00:00Z";
/// Name of a label, a taint and a condition that others set.
pub(super) const FOREIGN: &str = "example.com/foreign";

#[derive(Default)]
pub(super) struct FakeServer {
    node: Option<Value>,
    lease: Option<Value>,
    /// The decoded lease, cached because most calls read it.
    read: Option<Lease>,
    version: u64,
    uids: u64,
    applied_labels: BTreeSet<String>,
    foreign: bool,
}

pub(super) fn taint(key: &str, value: &str) -> Taint {
    Taint { key: key.into(), value: Some(value.into()), effect: "NoSchedule".into(), time_added: None }
}

impl FakeServer {
    pub(super) fn node(&self) -> Option<Node> {
        self.node.clone().map(|node| serde_json::from_value(node).expect("a Node"))
    }

    pub(super) fn lease(&self) -> Option<Lease> {
        self.lease.clone().map(|lease| serde_json::from_value(lease).expect("a Lease"))
    }

    fn next_version(&mut self) -> Value {
        self.version += 1;
        json!(self.version.to_string())
    }

    fn next_uid(&mut self) -> Value {
        self.uids += 1;
        json!(format!("uid-{}", self.uids))
    }

    pub(super) fn delete_node(&mut self) {
        self.node = None;
        self.foreign = false;
        self.applied_labels.clear();
    }

    pub(super) fn delete_lease(&mut self) {
        (self.lease, self.read) = (None, None);
    }

    pub(super) fn edit(&mut self, edit: impl FnOnce(&mut Value)) {
        let version = self.next_version();
        if let Some(node) = &mut self.node {
            edit(node);
            node["metadata"]["resourceVersion"] = version;
            // The edit may have emptied a list with foreign entries: restore them, it was not our change.
            if self.foreign {
                put_foreign_fields(node);
            }
        }
    }

    pub(super) fn add_foreign_fields(&mut self) {
        self.foreign = self.node.is_some();
        self.edit(put_foreign_fields);
    }

    pub(super) fn foreign_fields_survive(&self) -> bool {
        let Some(node) = self.node.as_ref().filter(|_| self.foreign) else { return true };
        let has = |list: &Value, key: &str| {
            list.as_array().is_some_and(|all| all.iter().any(|one| one[key] == FOREIGN))
        };
        node["metadata"]["labels"][FOREIGN] == "yes"
            && has(&node["spec"]["taints"], "key")
            && has(&node["status"]["conditions"], "type")
    }

    pub(super) fn node_call(&mut self, call: &NodeCall) -> Result<Option<Node>, Error> {
        let version = self.next_version();
        match call {
            NodeCall::Read => {}
            NodeCall::Create(body) => {
                if self.node.is_some() {
                    return Err(Error::new(Kind::AlreadyExists, "exists"));
                }
                let mut node = body.clone();
                node["metadata"]["uid"] = self.next_uid();
                node["status"] = json!({"conditions": [], "capacity": {}});
                self.node = Some(node);
            }
            NodeCall::Metadata(body) => {
                let previous = std::mem::take(&mut self.applied_labels);
                let node = precondition(self.node.as_mut(), body)?;
                let labels = body["metadata"]["labels"].as_object().expect("labels");
                for key in previous {
                    node["metadata"]["labels"].as_object_mut().expect("labels").remove(&key);
                }
                for (key, value) in labels {
                    node["metadata"]["labels"][key] = value.clone();
                    self.applied_labels.insert(key.clone());
                }
                for (key, value) in body["metadata"]["annotations"].as_object().expect("annotations") {
                    node["metadata"]["annotations"][key] = value.clone();
                }
            }
            NodeCall::Spec(body) => {
                let node = precondition(self.node.as_mut(), body)?;
                node["spec"]["taints"] = body["spec"]["taints"].clone();
            }
            NodeCall::Status(body) => {
                let node = precondition(self.node.as_mut(), body)?;
                for (key, value) in body["status"].as_object().expect("status") {
                    if key == "conditions" {
                        merge_conditions(&mut node["status"]["conditions"], value);
                    } else {
                        node["status"][key] = value.clone();
                    }
                }
            }
            NodeCall::Addresses(body) => {
                let node = precondition(self.node.as_mut(), body)?;
                let list = body["status"]["addresses"].as_array().expect("addresses");
                node["status"]["addresses"] = list.iter().skip(1).cloned().collect();
            }
            NodeCall::Migrate(_) => panic!("there is nothing to migrate"),
            NodeCall::Delete { .. } => self.delete_node(),
        }
        let node = self.node.as_mut().ok_or_else(|| Error::new(Kind::NotFound, "no such node"))?;
        if *call != NodeCall::Read {
            node["metadata"]["resourceVersion"] = version;
        }
        Ok(self.node())
    }

    pub(super) fn lease_call(&mut self, call: &LeaseCall) -> Result<Option<Lease>, Error> {
        let version = self.next_version();
        if *call != LeaseCall::Read {
            self.read = None;
        }
        match call {
            LeaseCall::Read => {}
            LeaseCall::Create(body) => {
                if self.lease.is_some() {
                    return Err(Error::new(Kind::AlreadyExists, "exists"));
                }
                let mut lease = body.clone();
                lease["metadata"]["uid"] = self.next_uid();
                lease["metadata"]["resourceVersion"] = version;
                self.lease = Some(lease);
            }
            LeaseCall::Renew(body) | LeaseCall::Release(body) => {
                let lease = precondition(self.lease.as_mut(), body)?;
                merge(lease, body);
                lease["metadata"]["resourceVersion"] = version;
            }
            LeaseCall::Delete { .. } => self.lease = None,
        }
        self.lease.as_ref().ok_or_else(|| Error::new(Kind::NotFound, "no such lease"))?;
        if self.read.is_none() {
            self.read = self.lease();
        }
        Ok(self.read.clone())
    }
}

/// Checks that UID and resourceVersion of a body are those of the object.
fn precondition<'a>(object: Option<&'a mut Value>, body: &Value) -> Result<&'a mut Value, Error> {
    let object = object.ok_or_else(|| Error::new(Kind::NotFound, "gone"))?;
    for field in ["uid", "resourceVersion"] {
        let asked = &body["metadata"][field];
        if !asked.is_null() && *asked != object["metadata"][field] {
            return Err(Error::new(Kind::Conflict, format!("{field} differs")));
        }
    }
    Ok(object)
}

/// A JSON merge patch.
fn merge(there: &mut Value, patch: &Value) {
    let (Some(map), Some(changes)) = (there.as_object_mut(), patch.as_object()) else {
        return there.clone_from(patch);
    };
    for (key, value) in changes {
        if value.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key).or_insert_with(|| json!({})), value);
        }
    }
}

fn merge_conditions(there: &mut Value, given: &Value) {
    let Some(list) = there.as_array_mut() else {
        *there = given.clone();
        return;
    };
    for condition in given.as_array().into_iter().flatten() {
        list.retain(|known| known["type"] != condition["type"]);
        list.push(condition.clone());
    }
}

fn put_foreign_fields(node: &mut Value) {
    node["metadata"]["labels"][FOREIGN] = "yes".into();
    let mut add = |pointer: [&str; 2], key: &str, entry: Value| {
        let list = &mut node[pointer[0]][pointer[1]];
        if list.is_null() {
            *list = json!([]);
        }
        let list = list.as_array_mut().expect("a list");
        if !list.iter().any(|one| one[key] == FOREIGN) {
            list.push(entry);
        }
    };
    add(["spec", "taints"], "key", json!({"key": FOREIGN, "effect": "NoExecute"}));
    add(["status", "conditions"], "type", json!({"type": FOREIGN, "status": "True"}));
}
