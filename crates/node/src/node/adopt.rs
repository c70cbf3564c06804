//! Adopting a Node that the Go original registered.
//!
//! The Go original writes the Node by plain patches and remembers what it wrote in two annotations. Its fields belong to
//! a manager with the operation `Update`, so server-side apply would never take away what it set. Turning these entries
//! into ours makes them so: our next apply drops whatever we do not want, the two annotations included.

use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use vk_kube::objects::FIELD_MANAGER;

const MARKS: [&str; 2] =
    ["virtual-kubelet.io/last-applied-object-meta", "virtual-kubelet.io/last-applied-node-status"];

/// The JSON patch that makes the Go original's fields ours, if this Node is one of its.
pub fn migration(node: &Node) -> Option<Value> {
    let annotations = node.metadata.annotations.as_ref()?;
    if !MARKS.iter().any(|mark| annotations.contains_key(*mark)) {
        return None;
    }
    let mut entries = serde_json::to_value(node.metadata.managed_fields.as_ref()?).ok()?;
    let list = entries.as_array_mut()?;
    // Whichever program wrote the marks is the one to succeed: providers give their binaries many names.
    let owns_marks = |entry: &Value| {
        MARKS
            .iter()
            .any(|mark| !entry["fieldsV1"]["f:metadata"]["f:annotations"][format!("f:{mark}")].is_null())
    };
    let predecessor = list.iter().find(|entry| owns_marks(entry)).map(|entry| entry["manager"].clone());
    let mut seen = Vec::new();
    list.retain_mut(|entry| {
        let is_predecessor =
            Some(&entry["manager"]) == predecessor.as_ref() && entry["operation"] == "Update";
        if is_predecessor {
            entry["manager"] = json!(FIELD_MANAGER);
            entry["operation"] = json!("Apply");
            // Taints are an atomic list: owning them by apply would mean to wipe other people's. The rest of the spec
            // is not ours either.
            if let Some(fields) = entry["fieldsV1"].as_object_mut() {
                fields.remove("f:spec");
            }
        }
        // Two entries of one manager for one subresource are not valid.
        let key = (entry["manager"].clone(), entry["operation"].clone(), entry["subresource"].clone());
        let first = !seen.contains(&key);
        seen.push(key);
        first && (!is_predecessor || entry["fieldsV1"].as_object().is_some_and(|fields| !fields.is_empty()))
    });
    // Where the owner of the marks is not on record there is nothing to take over; the marks go all the same.
    let mut operations = vec![json!({
        "op": "test", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version,
    })];
    operations.extend(MARKS.iter().filter(|mark| annotations.contains_key(**mark)).map(
        |mark| json!({"op": "remove", "path": format!("/metadata/annotations/{}", mark.replace('/', "~1"))}),
    ));
    operations.push(json!({"op": "replace", "path": "/metadata/managedFields", "value": entries}));
    Some(Value::Array(operations))
}
