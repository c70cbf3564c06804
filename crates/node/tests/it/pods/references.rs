//! What users see of references, on pods of a node that runs the mock.

use k8s_openapi::api::core::v1::{ConfigMap, ContainerStateWaiting, Pod, Secret};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use vk_provider_mock::{Mock, Settings};
use vk_testing::eventually;

use super::fixture::{HOST_IP, PodFixture, is_running, uid};
use crate::harness::{SOON, Who};

async fn create<K>(fixture: &PodFixture<'_>, object: Value)
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let api = Api::<K>::namespaced(fixture.cluster.admin().unwrap(), &fixture.namespace);
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

fn waiting(pod: &Pod) -> Option<ContainerStateWaiting> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    containers.first()?.state.as_ref()?.waiting.clone()
}

fn waits_with(reason: &'static str) -> impl Fn(&Pod) -> bool {
    move |pod| waiting(pod).is_some_and(|waiting| waiting.reason.as_deref() == Some(reason))
}

fn with_env(env: &Value) -> Value {
    json!({"spec": {"containers": [{"name": "main", "image": "example.com/app:1", "env": env}]}})
}

/// A mock that mounts volumes.
pub(super) fn mounting(fixture: &PodFixture<'_>) -> Mock {
    Mock::builder(fixture.node.as_str())
        .settings(Settings { volumes: true, ..Settings::default() })
        .host(fixture.host.clone())
        .host_ip(HOST_IP.parse().unwrap())
        .build()
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_missing_mandatory_secret_shows_as_a_config_error_and_the_pod_starts_when_it_appears() {
    let fixture = PodFixture::new(Who::Node, "mandatory").await;
    let run = fixture.start(fixture.mock());
    let env = json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}]);
    let pod = fixture.create("web", with_env(&env)).await;
    let seen = fixture.see("web", "the reason", waits_with("CreateContainerConfigError")).await;
    assert_eq!(waiting(&seen).unwrap().message.as_deref(), Some("secret \"db\" not found"));
    assert_eq!(seen.status.as_ref().unwrap().reason, None);
    let event = fixture.see_event(&pod, "Failed").await;
    assert_eq!(event.message.as_deref(), Some("Error: secret \"db\" not found"));
    fixture.see_event(&pod, "MandatorySecretNotFound").await;
    assert_eq!(fixture.mock().creations(uid(&pod)).await.unwrap(), 0, "the backend has it");

    create::<Secret>(&fixture, json!({"metadata": {"name": "db"}, "stringData": {"other": "x"}})).await;
    fixture.see_event(&pod, "MandatorySecretKeyNotFound").await;
    let secrets = Api::<Secret>::namespaced(fixture.cluster.admin().unwrap(), &fixture.namespace);
    let change = Patch::Merge(json!({"stringData": {"password": "hunter2"}}));
    secrets.patch("db", &PatchParams::default(), &change).await.unwrap();
    fixture.see("web", "a running pod", is_running).await;
    run.stop().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_missing_optional_reference_is_told_and_the_pod_runs() {
    let fixture = PodFixture::new(Who::Node, "optional").await;
    let run = fixture.start(fixture.mock());
    let env = json!([
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "a", "optional": true}}},
        {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "b", "optional": true}}}
    ]);
    let pod = fixture.create_running("web", with_env(&env)).await;
    fixture.see_event(&pod, "OptionalSecretNotFound").await;
    fixture.see_event(&pod, "OptionalConfigMapNotFound").await;
    run.stop().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_volume_that_cannot_be_made_holds_the_container_back_with_an_event() {
    let fixture = PodFixture::new(Who::Node, "mount").await;
    let run = fixture.start(mounting(&fixture));
    let volumes = json!([{"name": "files", "configMap": {"name": "settings"}}]);
    let pod = fixture.create("web", json!({"spec": {"volumes": volumes}})).await;
    let event = fixture.see_event(&pod, "FailedMount").await;
    assert_eq!(
        event.message.as_deref(),
        Some("MountVolume.SetUp failed for volume \"files\" : configmap \"settings\" not found")
    );
    fixture.see("web", "a container that is held back", waits_with("ContainerCreating")).await;
    create::<ConfigMap>(&fixture, json!({"metadata": {"name": "settings"}, "data": {"a": "1"}})).await;
    fixture.see("web", "a running pod", is_running).await;
    run.stop().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_running_pod_goes_on_when_its_secret_is_gone_and_the_process_begins_anew() {
    let fixture = PodFixture::new(Who::Node, "adopted").await;
    let run = fixture.start(fixture.mock());
    create::<Secret>(&fixture, json!({"metadata": {"name": "db"}, "stringData": {"password": "x"}})).await;
    let env = json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}]);
    let before = fixture.create_running("web", with_env(&env)).await;
    run.stop().await;
    let secrets = Api::<Secret>::namespaced(fixture.cluster.admin().unwrap(), &fixture.namespace);
    secrets.delete("db", &DeleteParams::default()).await.unwrap();

    let run = fixture.start(fixture.mock());
    eventually("the pod is adopted", SOON, || async {
        if run.recorder.creates(uid(&before)) > 0 { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    let after = fixture.get("web").await.unwrap();
    assert_eq!(after.metadata.uid, before.metadata.uid);
    assert!(is_running(&after), "{after:?}");
    run.stop().await;
}
