use serde_json::{Value, json};

use super::*;

fn mount(more: &Value) -> VolumeMount {
    let mut mount = json!({ "name": "v", "mountPath": "/m" });
    mount.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(mount).unwrap()
}

#[test]
fn propagation_is_private_unless_it_is_asked_for() {
    for (mode, expected) in [
        (json!({}), Ok(Propagation::Private)),
        (json!({ "mountPropagation": "None" }), Ok(Propagation::Private)),
        (json!({ "mountPropagation": "HostToContainer" }), Ok(Propagation::HostToContainer)),
        (json!({ "mountPropagation": "Bidirectional" }), Ok(Propagation::Bidirectional)),
        (json!({ "mountPropagation": "Odd" }), Err("invalid MountPropagation mode: \"Odd\"".to_owned())),
    ] {
        assert_eq!(propagation(&mount(&mode)), expected, "{mode}");
    }
}

#[test]
fn recursive_read_only_is_refused_where_it_cannot_be() {
    let able = RuntimeHandler { recursive_read_only: true, ..RuntimeHandler::default() };
    let unable = RuntimeHandler::default();
    for (fields, handler, expected) in [
        (json!({}), None, Ok(false)),
        (json!({ "recursiveReadOnly": "Disabled" }), Some(&able), Ok(false)),
        (json!({ "recursiveReadOnly": "IfPossible", "readOnly": true }), Some(&able), Ok(true)),
        (json!({ "recursiveReadOnly": "IfPossible", "readOnly": true }), Some(&unable), Ok(false)),
        (json!({ "recursiveReadOnly": "IfPossible", "readOnly": true }), None, Ok(false)),
        (
            json!({ "recursiveReadOnly": "Enabled", "readOnly": true, "mountPropagation": "None" }),
            Some(&able),
            Ok(true),
        ),
        (
            json!({ "recursiveReadOnly": "Enabled", "readOnly": true }),
            None,
            Err("volume \"v\" requested recursive read-only mode, but it is not supported by the runtime"),
        ),
        (
            json!({ "recursiveReadOnly": "Enabled" }),
            Some(&able),
            Err("volume \"v\" requested recursive read-only mode, but it is not read-only"),
        ),
        (
            json!({ "recursiveReadOnly": "Enabled", "readOnly": true, "mountPropagation": "Bidirectional" }),
            Some(&able),
            Err(
                "volume \"v\" requested recursive read-only mode, but it is not compatible with propagation \"Bidirectional\"",
            ),
        ),
        (
            json!({ "recursiveReadOnly": "Odd", "readOnly": true }),
            Some(&able),
            Err("unknown recursive read-only mode \"Odd\""),
        ),
    ] {
        assert_eq!(recursive(&mount(&fields), handler), expected.map_err(ToOwned::to_owned), "{fields}");
    }
}
