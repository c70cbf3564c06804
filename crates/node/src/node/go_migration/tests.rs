use super::*;

const GO: &str = "virtual-kubelet";

fn entry(manager: &str, operation: &str, subresource: &str, fields: &Value) -> Value {
    let mut entry = json!({
        "manager": manager, "operation": operation, "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": fields,
    });
    if !subresource.is_empty() {
        entry["subresource"] = json!(subresource);
    }
    entry
}

/// The managedFields of a Node that the original created and then patched.
fn entries(manager: &str) -> Vec<Value> {
    let ready = "k:{\"type\":\"Ready\"}";
    vec![
        entry(
            manager,
            "Update",
            "",
            &json!({
                "f:metadata": {"f:labels": {".": {}, "f:type": {}, "f:old-label": {}}},
                "f:spec": {"f:taints": {}},
            }),
        ),
        entry(
            "kube-controller-manager",
            "Update",
            "",
            &json!({"f:metadata": {"f:annotations": {"f:node.alpha.kubernetes.io/ttl": {}}}, "f:spec": {"f:podCIDR": {}}}),
        ),
        entry(
            manager,
            "Update",
            "status",
            &json!({
                "f:metadata": {
                    "f:annotations": {".": {}, format!("f:{META_ANNOTATION}"): {}, format!("f:{STATUS_ANNOTATION}"): {}},
                    "f:labels": {"f:later": {}},
                },
                "f:status": {
                    "f:addresses": {"k:{\"type\":\"InternalIP\"}": {".": {}, "f:address": {}}},
                    "f:capacity": {"f:cpu": {}},
                    "f:conditions": {ready: {"f:lastHeartbeatTime": {}}},
                },
            }),
        ),
    ]
}

fn node(annotations: &Value, entries: &[Value]) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": "node", "resourceVersion": "7", "annotations": annotations, "managedFields": entries},
    }))
    .unwrap()
}

fn annotations(status: &str) -> Value {
    json!({META_ANNOTATION: "{}", STATUS_ANNOTATION: status, "theirs": "x"})
}

/// The entries after the patch.
fn migrated(node: &Node) -> Vec<Value> {
    let patch = super::patch(node).expect("a patch");
    let last = patch.as_array().unwrap().last().unwrap();
    assert_eq!((&last["op"], &last["path"]), (&json!("replace"), &json!("/metadata/managedFields")));
    last["value"].as_array().unwrap().clone()
}

fn ours<'a>(entries: &'a [Value], subresource: Option<&str>) -> &'a Value {
    let mut found = entries.iter().filter(|entry| {
        entry["manager"] == FIELD_MANAGER
            && entry["operation"] == "Apply"
            && entry.get("subresource").and_then(Value::as_str) == subresource
    });
    let first = found.next().expect("an entry of ours");
    assert_eq!(found.next(), None, "exactly one");
    &first["fieldsV1"]
}

#[test]
fn a_node_without_the_annotations_is_not_migrated() {
    assert_eq!(super::patch(&node(&json!({"theirs": "x"}), &entries(GO))), None);
    assert_eq!(super::patch(&node(&Value::Null, &entries(GO))), None);
}

#[test]
fn the_annotations_are_removed_with_a_version_precondition() {
    let patch = super::patch(&node(&annotations("{}"), &entries(GO))).unwrap();
    let operations = patch.as_array().unwrap();
    assert_eq!(operations[0], json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"}));
    let path = |annotation: &str| json!({"op": "remove", "path": format!("/metadata/annotations/{}", annotation.replace('/', "~1"))});
    assert_eq!(operations[1..3], [path(META_ANNOTATION), path(STATUS_ANNOTATION)]);
    let one = super::patch(&node(&json!({META_ANNOTATION: "{}"}), &entries(GO))).unwrap();
    assert_eq!(one.as_array().unwrap().len(), 3, "only existing annotations can be removed");
}

#[test]
fn fields_of_the_original_become_ours_whatever_its_field_manager_is_called() {
    for manager in [GO, "virtual-kubelet-azure"] {
        let entries = migrated(&node(&annotations("{}"), &entries(manager)));
        assert!(
            !entries.iter().any(|entry| entry["manager"] == manager && entry["operation"] == "Update"),
            "{entries:?}"
        );
        let metadata = ours(&entries, None);
        assert_eq!(
            metadata["f:metadata"]["f:labels"],
            json!({".": {}, "f:type": {}, "f:old-label": {}, "f:later": {}}),
            "labels that it wrote through the status are labels too"
        );
        assert_eq!(metadata.get("f:spec"), None);
        let status = ours(&entries, Some("status"));
        assert_eq!(status["f:status"]["f:capacity"]["f:cpu"], json!({}));
        assert_eq!(status["f:status"].get("f:addresses"), None, "addresses are not applied");
        assert_eq!(status.get("f:metadata"), None);
    }
}

#[test]
fn fields_of_others_stay_theirs() {
    let before = entries(GO);
    let after = migrated(&node(&annotations("{}"), &before));
    assert!(after.contains(&before[1]), "{after:?}");
    assert_eq!(after.len(), 3);
}

#[test]
fn what_the_original_created_without_an_owner_becomes_ours_too() {
    let applied = json!({
        "capacity": {"cpu": "2", "example.com/old": "1"},
        "allocatable": {"example.com/old": "1"},
        "conditions": [{"type": "OutOfDisk", "status": "False"}],
    });
    let entries = migrated(&node(&annotations(&applied.to_string()), &entries(GO)));
    let status = &ours(&entries, Some("status"))["f:status"];
    assert_eq!(status["f:capacity"], json!({"f:cpu": {}, "f:example.com/old": {}}));
    assert_eq!(status["f:allocatable"], json!({"f:example.com/old": {}}));
    let gone = &status["f:conditions"]["k:{\"type\":\"OutOfDisk\"}"];
    assert_eq!((&gone["."], &gone["f:status"]), (&json!({}), &json!({})));
    assert!(status["f:conditions"].get("k:{\"type\":\"Ready\"}").is_some(), "and what had an owner");
}

#[test]
fn an_annotation_that_is_not_json_still_starts_the_migration() {
    let entries = migrated(&node(&annotations("{not json"), &entries(GO)));
    assert_eq!(ours(&entries, Some("status"))["f:status"]["f:capacity"], json!({"f:cpu": {}}));
}

#[test]
fn a_node_that_was_ours_before_gets_one_entry_per_subresource() {
    let mut all = entries(GO);
    all.push(entry(FIELD_MANAGER, "Apply", "", &json!({"f:metadata": {"f:labels": {"f:first": {}}}})));
    all.push(entry(FIELD_MANAGER, "Apply", "status", &json!({"f:status": {"f:capacity": {"f:pods": {}}}})));
    let entries = migrated(&node(&annotations("{}"), &all));
    assert_eq!(ours(&entries, None)["f:metadata"]["f:labels"]["f:first"], json!({}));
    assert_eq!(ours(&entries, None)["f:metadata"]["f:labels"]["f:old-label"], json!({}));
    assert_eq!(ours(&entries, Some("status"))["f:status"]["f:capacity"], json!({"f:cpu": {}, "f:pods": {}}));
}

#[test]
fn annotations_without_a_recorded_owner_are_removed_and_nothing_else_changes() {
    let others = vec![entries(GO)[1].clone()];
    assert_eq!(migrated(&node(&annotations("{}"), &others)), others);
}
