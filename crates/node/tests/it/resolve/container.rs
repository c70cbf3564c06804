//! Environments.

use serde_json::json;
use vk_provider::{
    Resolver as _,
    error::Kind,
    resolve::{Facts, Reference, ReferenceKind},
};

use super::desk::{Desk, HOST_IP};

fn value<'a>(env: &'a [(String, String)], name: &str) -> Option<&'a str> {
    env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_container_gets_what_its_references_say_with_the_rights_of_a_node() {
    let desk = Desk::new("env").await;
    desk.config_map("settings", json!({"color": "blue"})).await;
    desk.secret("db", json!({"password": "hunter2"})).await;
    let container = json!([{
        "name": "main",
        "image": "example.com/app:1",
        "command": ["serve", "--color=$(COLOR)"],
        "resources": {"limits": {"cpu": "1500m"}},
        "envFrom": [{"secretRef": {"name": "db"}, "prefix": "DB_"}],
        "env": [
            {"name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "color"}}},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Gi"}}}
        ]
    }]);
    let (_, answers) = desk.pod("web", json!({"containers": container})).await;
    let facts = Facts { pod_ips: vec!["10.1.2.3".parse().unwrap()], ..Facts::default() };
    let inputs = answers.container("main", &facts).await.unwrap();
    for (name, expected) in [
        ("DB_password", "hunter2"),
        ("COLOR", "blue"),
        ("POD", "web"),
        ("IP", "10.1.2.3"),
        ("HOST", HOST_IP),
        ("CPU", "2"),
        // Of the node: the container says nothing.
        ("MEMORY", "8"),
    ] {
        assert_eq!(value(&inputs.env, name), Some(expected), "{name}");
    }
    assert_eq!(inputs.command.unwrap(), ["serve", "--color=blue"]);
    // The cluster's own service, though service links are off.
    assert_eq!(value(&inputs.env, "KUBERNETES_SERVICE_PORT"), Some("443"));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_missing_key_is_unresolved_until_it_appears() {
    let desk = Desk::new("missing-key").await;
    desk.config_map("settings", json!({"other": "x"})).await;
    let env = json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "a"}}}]);
    let container = json!([{"name": "main", "image": "example.com/app:1", "env": env}]);
    let (_, answers) = desk.pod("web", json!({"containers": container})).await;
    let error = answers.container("main", &Facts::default()).await.unwrap_err();
    let reference = Reference::new(ReferenceKind::ConfigMap, desk.namespace.as_str(), "settings").key("a");
    assert_eq!(*error.kind(), Kind::Unresolved(reference.clone()));

    let waiting = answers.clone();
    let (appeared, ()) =
        tokio::join!(tokio::time::timeout(crate::harness::SOON, waiting.appeared(&reference)), async {
            drop(desk.config_map("settings", json!({"a": "1"})).await);
        },);
    appeared.expect("the key is noticed");
    let inputs = answers.container("main", &Facts::default()).await.unwrap();
    assert_eq!(value(&inputs.env, "A"), Some("1"));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn after_the_end_of_a_pod_questions_are_answered_with_not_found_and_nothing_is_read() {
    let desk = Desk::new("env-end").await;
    desk.secret("db", json!({"password": "hunter2"})).await;
    let from = json!([{"secretRef": {"name": "db"}}]);
    let container = json!([{"name": "main", "image": "example.com/app:1", "envFrom": from}]);
    let (_, answers) = desk.pod("web", json!({"containers": container})).await;
    answers.container("main", &Facts::default()).await.unwrap();
    desk.see_watching(1).await;
    answers.close();
    desk.see_watching(0).await;
    assert_eq!(desk.factory.held_objects(), 0);
    let error = answers.container("main", &Facts::default()).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::NotFound);
}
