mod origin;
mod precedence;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Pod, Secret, Service},
};
use serde_json::{Value, json};
use vk_provider::{
    Result,
    error::Kind,
    resolve::{CommandLine, ContainerInputs, Deferred, Facts, NodeFacts, Origin, Reference, ReferenceKind},
};

use super::super::fetched_objects::{FetchedObjects, RequiredObjects, Requirement, ResolveWarning};

fn config_map(data: &[(&str, &str)]) -> Arc<ConfigMap> {
    let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Arc::new(ConfigMap { data: Some(data), ..ConfigMap::default() })
}

fn secret(data: &[(&str, &[u8])]) -> Arc<Secret> {
    let data = data.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.to_vec()))).collect();
    Arc::new(Secret { data: Some(data), ..Secret::default() })
}

/// The objects that the Go original's tests know.
fn objects() -> FetchedObjects {
    let config_maps = [
        ("one", Some(config_map(&[("FOO", "one-foo"), ("BAR", "one-bar")]))),
        ("two", Some(config_map(&[("FOO", "two-foo"), ("BAZ", "two-baz")]))),
        (
            "odd",
            Some(config_map(&[("FOO", "odd-foo"), ("1-st.key", "dash"), (".dot", "dot"), ("a-b", "ab")])),
        ),
        ("gone", None),
    ];
    let secrets = [
        ("password", Some(secret(&[("USER", b"root"), ("PASSWORD", b"hunter2"), ("BAZ", b"secret-baz")]))),
        ("binary", Some(secret(&[("TEXT", b"text"), ("BYTES", b"\xff\xfe"), ("ZERO", b"a\0b")]))),
        ("gone", None),
    ];
    let service = |namespace: &str, name: &str, ip: &str, port: i32| {
        let service = json!({
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": ip, "ports": [{"port": port, "protocol": "TCP"}]},
        });
        Arc::new(serde_json::from_value::<Service>(service).expect("a service"))
    };
    FetchedObjects {
        config_maps: config_maps.map(|(name, map)| (name.to_owned(), map)).into(),
        secrets: secrets.map(|(name, secret)| (name.to_owned(), secret)).into(),
        services: vec![
            service("default", "kubernetes", "10.96.0.1", 443),
            service("shop", "cart", "10.96.0.7", 8080),
            service("elsewhere", "hidden", "10.96.0.8", 80),
            service("default", "other", "10.96.0.9", 80),
        ],
        ..FetchedObjects::default()
    }
}

fn node() -> NodeFacts {
    NodeFacts {
        name: "node-1".to_owned(),
        ips: vec!["192.0.2.1".parse().expect("an address")],
        allocatable: BTreeMap::from([("memory".to_owned(), "2Gi".parse().expect("a quantity"))]),
    }
}

/// A pod of one container named `c`, without service links.
fn pod(container: Value) -> Pod {
    in_list("containers", container)
}

fn in_list(list: &str, mut container: Value) -> Pod {
    container["name"] = json!("c");
    let mut pod = json!({
        "metadata": {"namespace": "shop", "name": "web", "uid": "u-1", "labels": {"app": "web"}},
        "spec": {
            "containers": [{"name": "main"}],
            "nodeName": "node-1",
            "serviceAccountName": "clerk",
            "enableServiceLinks": false,
        },
    });
    if list == "containers" {
        pod["spec"][list] = json!([container]);
    } else {
        pod["spec"][list] = json!([{"name": "before"}, container]);
    }
    serde_json::from_value(pod).expect("a pod")
}

fn resolve(pod: &Pod) -> Result<(ContainerInputs, Vec<ResolveWarning>)> {
    let facts = Facts { pod_ips: vec!["10.1.0.5".parse().expect("an address")], ..Facts::default() };
    super::container(pod, "c", &facts, &node(), &objects())
}

/// The environment without the variables of the service `kubernetes`, and the warnings.
fn environment(pod: &Pod) -> (Vec<(String, String)>, Vec<ResolveWarning>) {
    let (inputs, warnings) = resolve(pod).expect("an environment");
    let own = |(name, _): &(String, String)| !name.starts_with("KUBERNETES_");
    (inputs.pairs().into_iter().filter(own).collect(), warnings)
}

#[track_caller]
fn is(pod: &Pod, wanted: &[(&str, &str)]) {
    let (found, warnings) = environment(pod);
    let found: Vec<(&str, &str)> =
        found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(found, wanted);
    assert_eq!(warnings, []);
}

#[track_caller]
fn fails(pod: &Pod, kind: &Kind, message: &str) {
    let error = resolve(pod).expect_err("an error");
    assert_eq!(error.kind(), kind);
    assert_eq!(error.message(), message);
}

fn map_reference(name: &str) -> Reference {
    Reference::new(ReferenceKind::ConfigMap, "shop", name)
}

fn secret_reference(name: &str) -> Reference {
    Reference::new(ReferenceKind::Secret, "shop", name)
}

fn from_keys() -> Value {
    json!({"env": [
        {"name": "PLAIN", "value": "plain"},
        {"name": "MAP", "valueFrom": {"configMapKeyRef": {"name": "one", "key": "FOO"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "password", "key": "PASSWORD"}}},
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
    ]})
}

fn from_fields() -> Value {
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    json!({"env": [
        field("NAME", "metadata.name"),
        field("NAMESPACE", "metadata.namespace"),
        field("UID", "metadata.uid"),
        field("APP", "metadata.labels['app']"),
        field("NODE", "spec.nodeName"),
        field("ACCOUNT", "spec.serviceAccountName"),
        field("HOST", "status.hostIP"),
        field("IP", "status.podIP"),
    ]})
}

fn from_all() -> Value {
    json!({"envFrom": [
        {"configMapRef": {"name": "one"}},
        {"prefix": "S_", "secretRef": {"name": "password"}},
    ]})
}

const KEYS: &[(&str, &str)] =
    &[("PLAIN", "plain"), ("MAP", "one-foo"), ("SECRET", "hunter2"), ("MEMORY", "2048")];
const FIELDS: &[(&str, &str)] = &[
    ("NAME", "web"),
    ("NAMESPACE", "shop"),
    ("UID", "u-1"),
    ("APP", "web"),
    ("NODE", "node-1"),
    ("ACCOUNT", "clerk"),
    ("HOST", "192.0.2.1"),
    ("IP", "10.1.0.5"),
];
const ALL: &[(&str, &str)] = &[
    ("BAR", "one-bar"),
    ("FOO", "one-foo"),
    ("S_BAZ", "secret-baz"),
    ("S_PASSWORD", "hunter2"),
    ("S_USER", "root"),
];

#[test]
fn every_type_of_container_supports_variables_from_keys() {
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        is(&in_list(list, from_keys()), KEYS);
    }
}

#[test]
fn every_type_of_container_supports_variables_from_fields() {
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        is(&in_list(list, from_fields()), FIELDS);
    }
}

#[test]
fn every_type_of_container_supports_env_from() {
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        is(&in_list(list, from_all()), ALL);
    }
}

#[test]
fn a_later_source_overrides_an_earlier_one_at_its_position() {
    let sources = json!({"envFrom": [
        {"configMapRef": {"name": "one"}},
        {"configMapRef": {"name": "two"}},
        {"secretRef": {"name": "password"}},
    ]});
    let wanted = [
        ("BAR", "one-bar"),
        ("FOO", "two-foo"),
        ("BAZ", "secret-baz"),
        ("PASSWORD", "hunter2"),
        ("USER", "root"),
    ];
    is(&pod(sources), &wanted);
}

/// The Go original left such keys out; the kubelet of 1.36 passes every key on, and so do we.
#[test]
fn keys_that_are_invalid_in_a_shell_are_kept() {
    let wanted = [(".dot", "dot"), ("1-st.key", "dash"), ("FOO", "odd-foo"), ("a-b", "ab")];
    is(&pod(json!({"envFrom": [{"configMapRef": {"name": "odd"}}]})), &wanted);
}

#[test]
fn names_and_values_that_no_system_accepts_are_skipped_with_a_warning() {
    let prefixed = json!({"envFrom": [
        {"prefix": "A=", "configMapRef": {"name": "one"}},
        {"secretRef": {"name": "binary"}},
    ]});
    let (env, warnings) = environment(&pod(prefixed));
    assert_eq!(env, [("TEXT".to_owned(), "text".to_owned())]);
    let skipped = |source, names: &[&str]| ResolveWarning::SkippedKeys {
        source,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    let wanted = [
        skipped(map_reference("one"), &["A=BAR", "A=FOO"]),
        skipped(secret_reference("binary"), &["BYTES", "ZERO"]),
    ];
    assert_eq!(warnings, wanted);
}

#[test]
fn a_binary_secret_is_rejected_as_a_variable() {
    for (key, fault) in [("BYTES", "is not UTF-8"), ("ZERO", "contains a NUL byte")] {
        let reference = secret_reference("binary").key(key);
        let message = format!(
            "the value of key {key} in Secret shop/binary {fault} and cannot be an environment variable; mount it as a file"
        );
        let source = json!({"secretKeyRef": {"name": "binary", "key": key}});
        let pod = pod(json!({"env": [{"name": "A", "valueFrom": source}]}));
        fails(&pod, &Kind::Unresolved(reference), &message);
    }
}

#[test]
fn nul_bytes_are_rejected() {
    let message = "variable A contains a NUL byte, so the container cannot be started";
    fails(&pod(json!({"env": [{"name": "A", "value": "a\0b"}]})), &Kind::Invalid, message);
    let message = "the command line contains a NUL byte, so the container cannot be started";
    fails(&pod(json!({"args": ["a\0b"]})), &Kind::Invalid, message);
}

#[test]
fn env_wins_over_env_from() {
    let container = json!({
        "envFrom": [{"configMapRef": {"name": "one"}}],
        "env": [{"name": "FOO", "valueFrom": {"configMapKeyRef": {"name": "two", "key": "FOO"}}}],
    });
    is(&pod(container), &[("BAR", "one-bar"), ("FOO", "two-foo")]);
}

#[test]
fn a_missing_config_map_is_a_warning_if_optional_and_unresolved_otherwise() {
    let from = |optional: Value| {
        pod(
            json!({"envFrom": [{"configMapRef": {"name": "gone", "optional": optional}}], "env": [{"name": "A", "value": "a"}]}),
        )
    };
    let (env, warnings) = environment(&from(json!(true)));
    assert_eq!(env, [("A".to_owned(), "a".to_owned())]);
    assert_eq!(warnings, [ResolveWarning::MissingOptional(map_reference("gone"))]);
    for mandatory in [json!(false), json!(null)] {
        fails(&from(mandatory), &Kind::Unresolved(map_reference("gone")), "configmap \"gone\" not found");
    }
}

#[test]
fn a_missing_secret_is_a_warning_if_optional_and_unresolved_otherwise() {
    let from =
        |optional: Value| pod(json!({"envFrom": [{"secretRef": {"name": "gone", "optional": optional}}]}));
    let (env, warnings) = environment(&from(json!(true)));
    assert_eq!(env, []);
    assert_eq!(warnings, [ResolveWarning::MissingOptional(secret_reference("gone"))]);
    for mandatory in [json!(false), json!(null)] {
        fails(&from(mandatory), &Kind::Unresolved(secret_reference("gone")), "secret \"gone\" not found");
    }
}

#[test]
fn a_missing_optional_key_keeps_the_value_from_env_from() {
    let from = |optional: Value| {
        pod(json!({
            "envFrom": [{"configMapRef": {"name": "two"}}],
            "env": [
                {"name": "FOO", "valueFrom": {"configMapKeyRef": {"name": "one", "key": "NONE", "optional": optional}}},
                {"name": "BAZ", "valueFrom": {"configMapKeyRef": {"name": "gone", "key": "NONE", "optional": true}}},
            ],
        }))
    };
    let (env, warnings) = environment(&from(json!(true)));
    let wanted = [("BAZ".to_owned(), "two-baz".to_owned()), ("FOO".to_owned(), "two-foo".to_owned())];
    assert_eq!(env, wanted);
    let missing = map_reference("one").key("NONE");
    assert_eq!(
        warnings,
        [
            ResolveWarning::MissingOptional(missing.clone()),
            ResolveWarning::MissingOptional(map_reference("gone"))
        ]
    );
    for mandatory in [json!(false), json!(null)] {
        let message = "couldn't find key NONE in ConfigMap shop/one";
        fails(&from(mandatory), &Kind::Unresolved(missing.clone()), message);
    }
}

#[test]
fn a_missing_key_of_a_secret_is_a_warning_if_optional_and_unresolved_otherwise() {
    let from = |optional: Value| {
        let source = json!({"secretKeyRef": {"name": "password", "key": "NONE", "optional": optional}});
        pod(json!({"env": [{"name": "A", "valueFrom": source}, {"name": "B", "value": "b"}]}))
    };
    let missing = secret_reference("password").key("NONE");
    let (env, warnings) = environment(&from(json!(true)));
    assert_eq!(env, [("B".to_owned(), "b".to_owned())]);
    assert_eq!(warnings, [ResolveWarning::MissingOptional(missing.clone())]);
    for mandatory in [json!(false), json!(null)] {
        let message = "couldn't find key NONE in Secret shop/password";
        fails(&from(mandatory), &Kind::Unresolved(missing.clone()), message);
    }
}

#[test]
fn service_links_can_be_disabled_except_for_the_api_server() {
    let names = |links: Option<bool>| {
        let mut pod = pod(json!({}));
        pod.spec.as_mut().expect("a spec").enable_service_links = links;
        let (inputs, _) = resolve(&pod).expect("an environment");
        inputs
            .env
            .into_iter()
            .map(|variable| variable.name)
            .filter(|name| name.ends_with("_HOST"))
            .collect::<Vec<_>>()
    };
    assert_eq!(names(Some(false)), ["KUBERNETES_SERVICE_HOST"]);
    assert_eq!(names(Some(true)), ["CART_SERVICE_HOST", "KUBERNETES_SERVICE_HOST"]);
    assert_eq!(names(None), ["CART_SERVICE_HOST", "KUBERNETES_SERVICE_HOST"]);
}

#[test]
fn values_are_expanded_from_earlier_variables_and_services() {
    let container = json!({
        "envFrom": [{"configMapRef": {"name": "one"}}],
        "env": [
            {"name": "EARLY", "value": "$(LATE)"},
            {"name": "LATE", "value": "late"},
            {"name": "URL", "value": "http://$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)/$(FOO)$(LATE)$$(FOO)"},
            {"name": "FOO", "value": "$(FOO)+"},
            {"name": "KUBERNETES_SERVICE_HOST", "value": "mine"},
            {"name": "AGAIN", "value": "$(KUBERNETES_SERVICE_HOST) $(FOO)"},
        ],
    });
    let (inputs, _) = resolve(&pod(container)).expect("an environment");
    let value = |name: &str| {
        let mut found =
            inputs.env.iter().filter(|variable| variable.name == name).map(|variable| &*variable.value);
        (found.next(), found.next())
    };
    assert_eq!(value("EARLY"), (Some("$(LATE)"), None));
    assert_eq!(value("URL"), (Some("http://10.96.0.1:443/one-foolate$(FOO)"), None));
    assert_eq!(value("FOO"), (Some("one-foo+"), None));
    assert_eq!(value("KUBERNETES_SERVICE_HOST"), (Some("mine"), None));
    assert_eq!(value("AGAIN"), (Some("mine one-foo+"), None));
}

#[test]
fn an_empty_value_is_a_variable() {
    is(&pod(json!({"env": [{"name": "A", "value": ""}, {"name": "B"}]})), &[("A", ""), ("B", "")]);
}

#[test]
fn a_literal_value_takes_precedence_over_a_source() {
    let source = json!({"configMapKeyRef": {"name": "gone", "key": "A"}});
    let pod = pod(json!({"env": [{"name": "A", "value": "a", "valueFrom": source}]}));
    is(&pod, &[("A", "a")]);
    assert_eq!(super::required_objects(&pod, "c").expect("needs").config_maps, BTreeMap::new());
}

#[test]
fn circular_references_are_not_expanded() {
    let circle = json!({"env": [
        {"name": "A", "value": "$(B)"},
        {"name": "B", "value": "$(A)$(B)"},
        {"name": "A", "value": "$(A)$(B)"},
    ]});
    is(&pod(circle), &[("A", "$(B)$(B)$(B)"), ("B", "$(B)$(B)")]);
}

#[test]
fn command_and_arguments_are_expanded_with_the_whole_environment() {
    let container = json!({
        "command": ["sh", "-c", "$(A) $(KUBERNETES_SERVICE_PORT) $(NONE) $$(A)"],
        "args": ["$(B)"],
        "env": [{"name": "A", "value": "$(B)"}, {"name": "B", "value": "b"}],
    });
    let (inputs, _) = resolve(&pod(container)).expect("an environment");
    assert_eq!(inputs.command.expect("a command").words, ["sh", "-c", "$(B) 443 $(NONE) $(A)"]);
    assert_eq!(inputs.args.expect("arguments").words, ["b"]);
    let (inputs, _) = resolve(&pod(json!({"command": [], "args": []}))).expect("an environment");
    assert_eq!((inputs.command, inputs.args), (None, None));
}

#[test]
fn only_objects_that_the_container_references_are_required() {
    let container = json!({
        "envFrom": [
            {"configMapRef": {"name": "one", "optional": true}},
            {"secretRef": {"name": "password", "optional": true}},
            {"secretRef": {"name": "", "optional": true}},
        ],
        "env": [
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "one", "key": "FOO"}}},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "password", "key": "USER", "optional": true}}},
            {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
    });
    let mut pod = pod(container);
    let wanted = RequiredObjects {
        config_maps: BTreeMap::from([("one".to_owned(), Requirement { optional: false })]),
        secrets: BTreeMap::from([("password".to_owned(), Requirement { optional: true })]),
        kubernetes_service: true,
        ..RequiredObjects::default()
    };
    assert_eq!(super::required_objects(&pod, "c").expect("needs"), wanted);
    pod.spec.as_mut().expect("a spec").enable_service_links = None;
    assert!(super::required_objects(&pod, "c").expect("needs").services);
    assert_eq!(super::required_objects(&pod, "d").expect_err("no such container").kind(), &Kind::Invalid);
    assert_eq!(environment(&pod).1, [ResolveWarning::MissingOptional(secret_reference(""))]);
}

#[test]
fn specs_that_a_kubelet_rejects_are_invalid_with_its_message() {
    let field =
        |path: &str, version: Option<&str>| json!({"fieldRef": {"fieldPath": path, "apiVersion": version}});
    let amount = |resource: &str, container: Option<&str>| json!({"resourceFieldRef": {"resource": resource, "containerName": container}});
    let table = [
        (field("spec.hostname", None), "field label not supported: spec.hostname"),
        (field("metadata.name", Some("v2")), "unsupported pod version: v2"),
        (
            field("spec.nodeSelector['a']", None),
            "field label does not support subscript: spec.nodeSelector['a']",
        ),
        (field("status.phase", None), "unsupported fieldPath: status.phase"),
        (amount("limits.gpu", None), "unsupported container resource : limits.gpu"),
        (amount("limits.cpu", Some("none")), "container none not found"),
        (
            json!({"fileKeyRef": {"volumeName": "v", "path": "p", "key": "K"}}),
            "cannot find the volume \"v\" referenced by FileKeyRef",
        ),
    ];
    for (source, message) in table {
        fails(&pod(json!({"env": [{"name": "A", "valueFrom": source}]})), &Kind::Invalid, message);
    }
}

/// A ConfigMap holds at most a mebibyte; all of it may be variables.
#[test]
fn a_config_map_of_a_mebibyte_becomes_variables() {
    let large = "x".repeat((1 << 20) - 64);
    let mut objects = objects();
    objects.config_maps.insert("one".to_owned(), Some(config_map(&[("LARGE", &large), ("SMALL", "")])));
    let pod = pod(json!({"envFrom": [{"configMapRef": {"name": "one"}}], "args": ["$(LARGE)"]}));
    let (inputs, _) =
        super::container(&pod, "c", &Facts::default(), &node(), &objects).expect("an environment");
    assert_eq!(inputs.env[0].value.len(), large.len());
    assert_eq!(inputs.args.expect("arguments").words[0].len(), large.len());
}
