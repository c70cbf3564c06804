mod origin;
mod projected;

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};
use vk_provider::error::Kind;

use super::{super::fetched_objects::Requirement, *};

fn objects() -> FetchedObjects {
    let map: ConfigMap = serde_json::from_value(json!({
        "data": {"one": "1", "two": "2", "both": "text"},
        "binaryData": {"bytes": "//4=", "both": "AAA="},
    }))
    .expect("a ConfigMap");
    let secret: Secret =
        serde_json::from_value(json!({"data": {"user": "cm9vdA==", "one": "c2VjcmV0"}})).expect("a Secret");
    let odd: ConfigMap =
        serde_json::from_value(json!({"data": {"..up": "", "ok": ""}})).expect("a ConfigMap");
    let (odd, secret) = (Some(Arc::new(odd)), Some(Arc::new(secret)));
    FetchedObjects {
        config_maps: BTreeMap::from([
            ("settings".to_owned(), Some(Arc::new(map))),
            ("odd".to_owned(), odd),
            ("gone".to_owned(), None),
        ]),
        secrets: BTreeMap::from([("login".to_owned(), secret), ("gone".to_owned(), None)]),
        ..FetchedObjects::default()
    }
}

fn pod(mut volume: Value) -> Pod {
    volume["name"] = json!("v");
    let pod = json!({
        "metadata": {"namespace": "shop", "name": "web", "uid": "u-1", "labels": {"app": "web"}},
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "250m"}}}],
            "volumes": [volume],
        },
    });
    serde_json::from_value(pod).expect("a pod")
}

fn node() -> NodeFacts {
    let memory = "1Gi".parse().expect("a quantity");
    NodeFacts { allocatable: BTreeMap::from([("memory".to_owned(), memory)]), ..NodeFacts::default() }
}

fn made(volume: Value) -> Result<(FileSet, Vec<ResolveWarning>)> {
    super::volume(&pod(volume), "v", &node(), &objects())
}

fn files(volume: Value) -> Vec<(String, File)> {
    let (set, warnings) = made(volume).expect("files");
    assert_eq!(warnings, []);
    without_origins(set)
}

/// A file without its origin, of which `origin.rs` has tests.
fn file(path: &str, content: impl AsRef<[u8]>, mode: u32) -> (String, File) {
    let content = bytes::Bytes::copy_from_slice(content.as_ref());
    (path.to_owned(), File::new(content, mode, Origin::Literal))
}

fn without_origins(set: FileSet) -> Vec<(String, File)> {
    let plain = |file: File| File { origin: Origin::Literal, ..file };
    set.files.into_iter().map(|(path, file)| (path, plain(file))).collect()
}

#[track_caller]
fn fails(volume: Value, kind: &Kind, message: &str) {
    let error = made(volume).expect_err("an error");
    assert_eq!(error.message(), message);
    assert_eq!(error.kind(), kind);
}

fn map_reference(name: &str) -> Reference {
    Reference::new(ReferenceKind::ConfigMap, "shop", name)
}

fn secret_reference(name: &str) -> Reference {
    Reference::new(ReferenceKind::Secret, "shop", name)
}

#[test]
fn every_key_of_a_config_map_is_a_file_including_binary_data() {
    let wanted = [
        file("both", b"\0\0", 0o400),
        file("bytes", b"\xff\xfe", 0o400),
        file("one", "1", 0o400),
        file("two", "2", 0o400),
    ];
    assert_eq!(files(json!({"configMap": {"name": "settings", "defaultMode": 0o400}})), wanted);
}

#[test]
fn listed_items_have_their_paths_and_modes() {
    let items = json!([
        {"key": "one", "path": "sub/./one.txt"},
        {"key": "one", "path": "again", "mode": 0o600},
        {"key": "bytes", "path": "sub/bytes"},
        {"key": "both", "path": "both"},
    ]);
    let wanted = [
        file("again", "1", 0o600),
        file("both", "text", 0o644),
        file("sub/bytes", b"\xff\xfe", 0o644),
        file("sub/one.txt", "1", 0o644),
    ];
    assert_eq!(files(json!({"configMap": {"name": "settings", "items": items}})), wanted);
}

#[test]
fn a_secret_is_files_too() {
    let wanted = [file("one", "secret", 0o640), file("user", "root", 0o640)];
    assert_eq!(files(json!({"secret": {"secretName": "login", "defaultMode": 0o640}})), wanted);
    let items = json!([{"key": "user", "path": "name"}]);
    assert_eq!(
        files(json!({"secret": {"secretName": "login", "items": items}})),
        [file("name", "root", 0o644)]
    );
}

#[test]
fn a_missing_object_is_unresolved_or_an_empty_volume_if_optional() {
    fails(
        json!({"configMap": {"name": "gone"}}),
        &Kind::Unresolved(map_reference("gone")),
        "configmap \"gone\" not found",
    );
    fails(
        json!({"secret": {"secretName": "gone", "optional": false}}),
        &Kind::Unresolved(secret_reference("gone")),
        "secret \"gone\" not found",
    );
    let items = json!([{"key": "k", "path": "p"}]);
    for volume in [
        json!({"configMap": {"name": "gone", "optional": true}}),
        json!({"configMap": {"name": "gone", "optional": true, "items": items}}),
    ] {
        let (set, warnings) = made(volume).expect("an empty volume");
        assert_eq!(set, FileSet::default());
        assert_eq!(warnings, [ResolveWarning::MissingOptional(map_reference("gone"))]);
    }
}

#[test]
fn a_missing_key_is_unresolved_or_skipped_if_optional() {
    let items = json!([{"key": "none", "path": "p"}, {"key": "one", "path": "q"}]);
    fails(
        json!({"configMap": {"name": "settings", "items": items}}),
        &Kind::Unresolved(map_reference("settings").key("none")),
        "configmap references non-existent config key: none",
    );
    fails(
        json!({"secret": {"secretName": "login", "items": items}}),
        &Kind::Unresolved(secret_reference("login").key("none")),
        "references non-existent secret key: none",
    );
    let (set, warnings) =
        made(json!({"secret": {"secretName": "login", "items": items, "optional": true}})).expect("files");
    assert_eq!(set.files.into_keys().collect::<Vec<_>>(), ["q"]);
    assert_eq!(warnings, [ResolveWarning::MissingOptional(secret_reference("login").key("none"))]);
}

#[test]
fn paths_outside_the_volume_are_rejected() {
    for (path, message) in [
        ("../out", "invalid path: must not contain '..': ../out"),
        ("a/../../out", "invalid path: must not contain '..': a/../../out"),
        ("/etc/passwd", "invalid path: must be relative path: /etc/passwd"),
        ("..data", "invalid path: must not start with '..': ..data"),
        ("", "invalid path: must not be empty: \"\""),
    ] {
        let items = json!([{"key": "one", "path": path}]);
        fails(json!({"configMap": {"name": "settings", "items": items}}), &Kind::Invalid, message);
        fails(json!({"secret": {"secretName": "login", "items": items}}), &Kind::Invalid, message);
        let items = json!([{"path": path, "fieldRef": {"fieldPath": "metadata.name"}}]);
        fails(json!({"downwardAPI": {"items": items}}), &Kind::Invalid, message);
    }
}

/// The object can be put right, so it is waited for and the pod does not fail.
#[test]
fn a_key_that_is_not_a_valid_file_name_is_unresolved() {
    fails(
        json!({"configMap": {"name": "odd"}}),
        &Kind::Unresolved(map_reference("odd").key("..up")),
        "invalid path: must not start with '..': ..up",
    );
    let items = json!([{"key": "..up", "path": "fine"}]);
    assert_eq!(files(json!({"configMap": {"name": "odd", "items": items}})), [file("fine", "", 0o644)]);
}

#[test]
fn fields_of_the_pod_are_files() {
    let items = json!([
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "meta/name", "fieldRef": {"fieldPath": "metadata.name"}, "mode": 0o400},
        {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "requests.cpu", "divisor": "1m"}},
        {"path": "memory", "resourceFieldRef": {"containerName": "main", "resource": "limits.memory", "divisor": "1Mi"}},
    ]);
    let wanted = [
        file("cpu", "250", 0o644),
        file("labels", "app=\"web\"", 0o644),
        file("memory", "1024", 0o644),
        file("meta/name", "web", 0o400),
    ];
    assert_eq!(files(json!({"downwardAPI": {"items": items}})), wanted);
}

#[test]
fn all_invalid_fields_are_reported_at_once() {
    let items = json!([
        {"path": "a", "fieldRef": {"fieldPath": "status.podIP"}},
        {"path": "b", "resourceFieldRef": {"containerName": "none", "resource": "limits.cpu"}},
        {"path": "c", "fieldRef": {"fieldPath": "metadata.name"}},
    ]);
    let message = "[unsupported fieldPath: status.podIP, container none not found]";
    fails(json!({"downwardAPI": {"items": items}}), &Kind::Invalid, message);
}

#[test]
fn other_volume_types_are_unsupported() {
    for volume in [json!({"emptyDir": {}}), json!({"hostPath": {"path": "/"}})] {
        assert_eq!(made(volume.clone()).expect_err("not ours").kind(), &Kind::Unsupported);
        assert_eq!(required_objects(&pod(volume), "v").expect_err("not ours").kind(), &Kind::Unsupported);
    }
    let error =
        super::volume(&pod(json!({"emptyDir": {}})), "w", &node(), &objects()).expect_err("no volume");
    assert_eq!(error.kind(), &Kind::Invalid);
}

/// The API server's limit is on the object as a whole; a kubelet has none of its own.
#[test]
fn large_objects_are_files_like_others() {
    let mut objects = objects();
    let large = "x".repeat(1 << 20);
    let map: ConfigMap = serde_json::from_value(json!({"data": {"large": large}})).expect("a ConfigMap");
    objects.config_maps.insert("settings".to_owned(), Some(Arc::new(map)));
    let pod = pod(json!({"configMap": {"name": "settings"}}));
    let (set, _) = super::volume(&pod, "v", &node(), &objects).expect("files");
    assert_eq!(set.files["large"].content.len(), 1 << 20);
}

#[test]
fn only_objects_that_the_volume_references_are_required() {
    let volume = json!({"configMap": {"name": "settings", "optional": true}});
    let wanted = BTreeMap::from([("settings".to_owned(), Requirement { optional: true })]);
    assert_eq!(
        required_objects(&pod(volume), "v").expect("needs"),
        RequiredObjects { config_maps: wanted, ..RequiredObjects::default() }
    );
    let volume = json!({"downwardAPI": {"items": []}});
    assert_eq!(required_objects(&pod(volume), "v").expect("needs"), RequiredObjects::default());
    let volume = json!({"secret": {}});
    assert_eq!(required_objects(&pod(volume), "v").expect("needs"), RequiredObjects::default());
    fails(json!({"secret": {}}), &Kind::Unresolved(secret_reference("")), "secret \"\" not found");
}
