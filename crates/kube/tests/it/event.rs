//! Events with the permissions of nodes of different Kubernetes versions.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Event, ObjectReference};
use kube::{Api, api::ListParams};
use serde_json::json;
use vk_kube::{
    Client, Metrics, Objects,
    event::{Recorder, Severity},
};
use vk_testing::{ControlPlane, eventually, kubectl};

const SOON: Duration = Duration::from_secs(10);

/// A user who may only write events of the core group, like a node in Kubernetes 1.33.
async fn reporter(cluster: &ControlPlane, user: &str, namespace: &str) -> Client {
    let within = ["--namespace", namespace];
    let role = ["create", "role", user, "--verb=create,patch", "--resource=events"];
    let binding = ["create", "rolebinding", user, &format!("--role={user}"), &format!("--user={user}")];
    for args in [role, binding] {
        let made = kubectl(cluster, within.iter().chain(&args)).await.unwrap();
        assert!(made.success(), "{made:?}");
    }
    let who = format!("--as={user}");
    eventually("the role is in force", SOON, || async {
        let asked = kubectl(cluster, within.iter().chain(&["auth", "can-i", "patch", "events", &who])).await;
        if asked.as_ref().unwrap().success() { Ok(()) } else { Err(format!("{asked:?}")) }
    })
    .await;
    let other = ["auth", "can-i", "create", "events.events.k8s.io", &who];
    let denied = kubectl(cluster, within.iter().chain(&other)).await.unwrap();
    assert!(!denied.success(), "events.k8s.io is forbidden: {denied:?}");
    Client::fixed(cluster.client_for(user, &[]).unwrap(), Metrics::default())
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn events_go_to_the_core_group_if_events_k8s_io_is_forbidden() {
    let cluster = ControlPlane::shared().await;
    let namespace = cluster.namespace("event").await.unwrap();
    let admin = Client::fixed(cluster.admin().unwrap(), Metrics::default());
    let maps: Objects<ConfigMap> = Objects::namespaced(admin, namespace.name());
    let map = serde_json::from_value(json!({"metadata": {"name": "subject"}})).unwrap();
    let map = maps.create(&map).await.unwrap();
    let about = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("ConfigMap".to_owned()),
        name: map.metadata.name,
        namespace: map.metadata.namespace,
        uid: map.metadata.uid,
        ..ObjectReference::default()
    };
    let recorder =
        Recorder::new(reporter(cluster, "old-node", namespace.name()).await, "vk/test", "old-node");
    for _ in 0..2 {
        recorder.publish(&about, Severity::Warning, "Worn", "it is old").await;
    }
    recorder.publish(&about, Severity::Normal, "Mended", "it is as good as new").await;

    let events: Api<Event> = Api::namespaced(cluster.admin().unwrap(), namespace.name());
    let found = events.list(&ListParams::default()).await.unwrap().items;
    let find = |reason: &str| {
        let mut same = found.iter().filter(|event| event.reason.as_deref() == Some(reason));
        let one = same.next().unwrap_or_else(|| panic!("{reason} in {found:?}"));
        assert_eq!(same.count(), 0, "{reason} appears once: {found:?}");
        one
    };
    let worn = find("Worn");
    assert_eq!(worn.message.as_deref(), Some("it is old"));
    assert_eq!(worn.type_.as_deref(), Some("Warning"));
    assert_eq!(worn.involved_object.name.as_deref(), Some("subject"));
    assert_eq!(worn.reporting_component.as_deref(), Some("vk/test"));
    assert_eq!(worn.series.as_ref().and_then(|series| series.count), Some(2), "{worn:?}");
    assert_eq!(find("Mended").type_.as_deref(), Some("Normal"));
}
