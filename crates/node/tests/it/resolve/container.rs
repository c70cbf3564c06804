//! Container environments.

use serde_json::json;
use vk_provider::{
    Resolver as _,
    error::Kind,
    resolve::{Facts, Reference, ReferenceKind, Variable},
};

use super::resolver_test::{HOST_IP, ResolverTest};

fn value<'a>(env: &'a [Variable], name: &str) -> Option<&'a str> {
    env.iter().find(|variable| variable.name == name).map(|variable| variable.value.as_str())
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_environment_is_resolved_with_the_permissions_of_a_node() {
    let test = ResolverTest::new("env").await;
    test.config_map("settings", json!({"color": "blue"})).await;
    test.secret("db", json!({"password": "hunter2"})).await;
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
    let (_, answers) = test.pod("web", json!({"containers": container})).await;
    let facts = Facts { pod_ips: vec!["10.1.2.3".parse().unwrap()], ..Facts::default() };
    let inputs = answers.container("main", &facts).await.unwrap();
    for (name, expected) in [
        ("DB_password", "hunter2"),
        ("COLOR", "blue"),
        ("POD", "web"),
        ("IP", "10.1.2.3"),
        ("HOST", HOST_IP),
        ("CPU", "2"),
        // The node's amount, because the container has no limit.
        ("MEMORY", "8"),
    ] {
        assert_eq!(value(&inputs.env, name), Some(expected), "{name}");
    }
    assert_eq!(inputs.command.unwrap().words, ["serve", "--color=blue"]);
    // The service `kubernetes`, although service links are off.
    assert_eq!(value(&inputs.env, "KUBERNETES_SERVICE_PORT"), Some("443"));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_missing_key_is_unresolved_until_it_appears() {
    let test = ResolverTest::new("missing-key").await;
    test.config_map("settings", json!({"other": "x"})).await;
    let env = json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "a"}}}]);
    let container = json!([{"name": "main", "image": "example.com/app:1", "env": env}]);
    let (_, answers) = test.pod("web", json!({"containers": container})).await;
    let error = answers.container("main", &Facts::default()).await.unwrap_err();
    let reference = Reference::new(ReferenceKind::ConfigMap, test.namespace.as_str(), "settings").key("a");
    assert_eq!(*error.kind(), Kind::Unresolved(reference.clone()));

    let waiting = answers.clone();
    let (appeared, ()) =
        tokio::join!(tokio::time::timeout(crate::harness::SOON, waiting.appeared(&reference)), async {
            drop(test.config_map("settings", json!({"a": "1"})).await);
        },);
    appeared.expect("the key is noticed");
    let inputs = answers.container("main", &Facts::default()).await.unwrap();
    assert_eq!(value(&inputs.env, "A"), Some("1"));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_closed_resolver_fails_with_not_found_and_reads_nothing() {
    let test = ResolverTest::new("env-end").await;
    test.secret("db", json!({"password": "hunter2"})).await;
    let from = json!([{"secretRef": {"name": "db"}}]);
    let container = json!([{"name": "main", "image": "example.com/app:1", "envFrom": from}]);
    let (_, answers) = test.pod("web", json!({"containers": container})).await;
    answers.container("main", &Facts::default()).await.unwrap();
    test.wait_for_watches(1).await;
    answers.close();
    test.wait_for_watches(0).await;
    assert_eq!(test.factory.held_objects(), 0);
    let error = answers.container("main", &Facts::default()).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::NotFound);
}
