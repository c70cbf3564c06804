//! Migration of a Node that the Go original registered.
//!
//! The Go original writes the Node with plain patches and records what it wrote in two annotations. Its fields belong to a
//! field manager with the operation `Update`, so server-side apply would never remove them. The migration makes us the
//! owner of these fields; our next apply then removes those that we do not want. Status fields that the original set when
//! it created the Node have no owner; the second annotation lists them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeStatus};
use serde_json::{Map, Value, json};
use vk_kube::objects::FIELD_MANAGER;

const META_ANNOTATION: &str = "virtual-kubelet.io/last-applied-object-meta";
const STATUS_ANNOTATION: &str = "virtual-kubelet.io/last-applied-node-status";
const ANNOTATIONS: [&str; 2] = [META_ANNOTATION, STATUS_ANNOTATION];

/// The JSON patch that makes us the owner of the Go original's fields; `None` if it did not register this Node.
pub fn patch(node: &Node) -> Option<Value> {
    let annotations = node.metadata.annotations.as_ref()?;
    if !ANNOTATIONS.iter().any(|annotation| annotations.contains_key(*annotation)) {
        return None;
    }
    let entries = serde_json::to_value(node.metadata.managed_fields.as_ref()?).ok()?;
    let Value::Array(entries) = entries else { return None };
    // The field manager that owns the annotations is the predecessor; its name differs by provider binary.
    let owns_annotations = |entry: &&Value| {
        ANNOTATIONS.iter().any(|annotation| {
            !entry["fieldsV1"]["f:metadata"]["f:annotations"][format!("f:{annotation}")].is_null()
        })
    };
    let predecessor = entries.iter().find(owns_annotations).map(|entry| entry["manager"].clone());
    let (theirs, mut kept): (Vec<Value>, Vec<Value>) = entries
        .into_iter()
        .partition(|entry| entry["operation"] == "Update" && Some(&entry["manager"]) == predecessor.as_ref());
    let mut metadata = Map::new();
    let mut status =
        annotations.get(STATUS_ANNOTATION).and_then(|text| applied_status(text)).unwrap_or_default();
    for mut entry in theirs {
        // The original also wrote labels through the status. Taints are an atomic list: owning it through apply would remove
        // taints of others. The rest of the spec is not ours either. Addresses are not applied.
        merge_into(&mut metadata, &mut entry["fieldsV1"]["f:metadata"]);
        merge_into(&mut status, &mut entry["fieldsV1"]["f:status"]);
    }
    status.remove("f:addresses");
    add_to_our_entry(&mut kept, "f:metadata", &metadata, None);
    add_to_our_entry(&mut kept, "f:status", &status, Some("status"));

    let mut operations = vec![json!({
        "op": "test", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version,
    })];
    // Remove the annotations even if their owner is not on record and there is nothing to take over.
    operations.extend(ANNOTATIONS.iter().filter(|annotation| annotations.contains_key(**annotation)).map(
        |annotation| json!({"op": "remove", "path": format!("/metadata/annotations/{}", annotation.replace('/', "~1"))}),
    ));
    operations.push(json!({"op": "replace", "path": "/metadata/managedFields", "value": kept}));
    Some(Value::Array(operations))
}

/// The list and map fields of a status that the original applied. Scalar fields are always set by us. `None` if the text is
/// not a status.
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
    // An empty set would mean the whole field.
    let fields = fields.into_iter().filter(|(_, members)| !members.is_empty());
    Some(fields.map(|(name, members)| (name.to_owned(), members.into())).collect())
}

/// Adds fields to our managedFields entry for a subresource, creating it if needed (only one may exist).
fn add_to_our_entry(
    entries: &mut Vec<Value>,
    part: &str,
    fields: &Map<String, Value>,
    subresource: Option<&str>,
) {
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

fn merge_into(fields: &mut Map<String, Value>, more: &mut Value) {
    for (key, more) in more.as_object_mut().into_iter().flatten() {
        merge(fields.entry(key.as_str()).or_insert_with(|| json!({})), more);
    }
}

/// Merges two field sets in their JSON form.
fn merge(fields: &mut Value, more: &mut Value) {
    if let (Some(fields), Some(_)) = (fields.as_object_mut(), more.as_object()) {
        merge_into(fields, more);
    }
}

#[cfg(test)]
mod tests;
