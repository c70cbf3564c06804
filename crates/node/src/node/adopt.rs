//! Adopting a Node that the Go original registered.
//!
//! The Go original writes the Node by plain patches and remembers what it wrote in two annotations. Its fields belong to
//! a manager with the operation `Update`, so server-side apply would never take away what it set. Turning these entries
//! into ours makes them so: our next apply drops whatever we do not want. What the original set when it created the Node
//! has no owner at all in the status; the second annotation tells what that was.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeStatus};
use serde_json::{Map, Value, json};
use vk_kube::objects::FIELD_MANAGER;

const META_MARK: &str = "virtual-kubelet.io/last-applied-object-meta";
const STATUS_MARK: &str = "virtual-kubelet.io/last-applied-node-status";
const MARKS: [&str; 2] = [META_MARK, STATUS_MARK];

/// The JSON patch that makes the Go original's fields ours, if this Node is one of its.
pub fn migration(node: &Node) -> Option<Value> {
    let annotations = node.metadata.annotations.as_ref()?;
    if !MARKS.iter().any(|mark| annotations.contains_key(*mark)) {
        return None;
    }
    let entries = serde_json::to_value(node.metadata.managed_fields.as_ref()?).ok()?;
    let Value::Array(entries) = entries else { return None };
    // Whichever program wrote the marks is the one to succeed: providers give their binaries many names.
    let owns_marks = |entry: &&Value| {
        MARKS
            .iter()
            .any(|mark| !entry["fieldsV1"]["f:metadata"]["f:annotations"][format!("f:{mark}")].is_null())
    };
    let predecessor = entries.iter().find(owns_marks).map(|entry| entry["manager"].clone());
    let (theirs, mut kept): (Vec<Value>, Vec<Value>) = entries
        .into_iter()
        .partition(|entry| entry["operation"] == "Update" && Some(&entry["manager"]) == predecessor.as_ref());
    let mut metadata = Map::new();
    let mut status = annotations.get(STATUS_MARK).and_then(|text| applied_status(text)).unwrap_or_default();
    for mut entry in theirs {
        // The original wrote labels through the status too. Taints are an atomic list: owning them by apply would mean
        // to wipe other people's; the rest of the spec is not ours either. Addresses are not applied.
        take(&mut metadata, &mut entry["fieldsV1"]["f:metadata"]);
        take(&mut status, &mut entry["fieldsV1"]["f:status"]);
    }
    status.remove("f:addresses");
    own(&mut kept, "f:metadata", &metadata, None);
    own(&mut kept, "f:status", &status, Some("status"));

    let mut operations = vec![json!({
        "op": "test", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version,
    })];
    // Where the owner of the marks is not on record there is nothing to take over; the marks go all the same.
    operations.extend(MARKS.iter().filter(|mark| annotations.contains_key(**mark)).map(
        |mark| json!({"op": "remove", "path": format!("/metadata/annotations/{}", mark.replace('/', "~1"))}),
    ));
    operations.push(json!({"op": "replace", "path": "/metadata/managedFields", "value": kept}));
    Some(Value::Array(operations))
}

/// The fields of a status that the original applied, as far as they are lists and maps with keys: what has one value
/// only, we set anyway. `None` where the text is not a status.
fn applied_status(text: &str) -> Option<Map<String, Value>> {
    let status: NodeStatus = serde_json::from_str(text).ok()?;
    let resources = |all: Option<BTreeMap<String, _>>| -> Map<String, Value> {
        all.into_iter().flatten().map(|(name, _)| (format!("f:{name}"), json!({}))).collect()
    };
    let members =
        [".", "f:type", "f:status", "f:reason", "f:message", "f:lastHeartbeatTime", "f:lastTransitionTime"];
    let members: Map<String, Value> = members.into_iter().map(|name| (name.to_owned(), json!({}))).collect();
    let conditions: Map<String, Value> = status
        .conditions
        .into_iter()
        .flatten()
        .map(|condition| (format!("k:{}", json!({"type": condition.type_})), json!(members)))
        .collect();
    let fields = [
        ("f:capacity", resources(status.capacity)),
        ("f:allocatable", resources(status.allocatable)),
        ("f:conditions", conditions),
    ];
    // An empty set would stand for the whole field.
    let fields = fields.into_iter().filter(|(_, members)| !members.is_empty());
    Some(fields.map(|(name, members)| (name.to_owned(), members.into())).collect())
}

/// Adds fields to our own entry of a subresource, of which there may be one only.
fn own(entries: &mut Vec<Value>, part: &str, fields: &Map<String, Value>, subresource: Option<&str>) {
    if fields.is_empty() {
        return;
    }
    let ours = |entry: &&mut Value| {
        entry["manager"] == FIELD_MANAGER
            && entry["operation"] == "Apply"
            && entry.get("subresource").and_then(Value::as_str) == subresource
    };
    let mut fields = json!({part: fields});
    if let Some(entry) = entries.iter_mut().find(ours) {
        return merge(&mut entry["fieldsV1"], &mut fields);
    }
    let mut entry = json!({
        "manager": FIELD_MANAGER,
        "operation": "Apply",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    });
    if let Some(subresource) = subresource {
        entry["subresource"] = json!(subresource);
    }
    entries.push(entry);
}

fn take(fields: &mut Map<String, Value>, more: &mut Value) {
    for (key, more) in more.as_object_mut().into_iter().flatten() {
        merge(fields.entry(key.as_str()).or_insert_with(|| json!({})), more);
    }
}

/// Sets of fields unite as the objects that they are written as.
fn merge(fields: &mut Value, more: &mut Value) {
    if let (Some(fields), Some(_)) = (fields.as_object_mut(), more.as_object()) {
        take(fields, more);
    }
}

#[cfg(test)]
mod tests;
