//! What people see of references, on pods of a node that runs the mock.

use k8s_openapi::api::core::v1::{ConfigMap, ContainerStateWaiting, Pod, Secret};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use vk_provider_mock::{Mock, Settings};
use vk_testing::eventually;

use super::stage::{HOST_IP, Stage, is_running, uid};
use crate::harness::{SOON, Who};

async fn create<K>(stage: &Stage<'_>, object: Value)
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let api = Api::<K>::namespaced(stage.cluster.admin().unwrap(), &stage.namespace);
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
pub(super) fn mounting(stage: &Stage<'_>) -> Mock {
    Mock::builder(stage.node.as_str())
        .settings(Settings { volumes: true, ..Settings::default() })
        .host(stage.host.clone())
        .host_ip(HOST_IP.parse().unwrap())
        .build()
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_missing_mandatory_secret_shows_as_a_config_error_and_the_pod_starts_when_it_appears() {
    let stage = Stage::new(Who::Node, "mandatory").await;
    let run = stage.start(stage.mock());
    let env = json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}]);
    let pod = stage.create("web", with_env(&env)).await;
    let seen = stage.see("web", "the reason", waits_with("CreateContainerConfigError")).await;
    assert_eq!(waiting(&seen).unwrap().message.as_deref(), Some("secret \"db\" not found"));
    assert_eq!(seen.status.as_ref().unwrap().reason, None);
    let event = stage.see_event(&pod, "Failed").await;
    assert_eq!(event.message.as_deref(), Some("Error: secret \"db\" not found"));
    stage.see_event(&pod, "MandatorySecretNotFound").await;
    assert_eq!(stage.mock().creations(uid(&pod)).await.unwrap(), 0, "the backend has it");

    create::<Secret>(&stage, json!({"metadata": {"name": "db"}, "stringData": {"other": "x"}})).await;
    stage.see_event(&pod, "MandatorySecretKeyNotFound").await;
    let secrets = Api::<Secret>::namespaced(stage.cluster.admin().unwrap(), &stage.namespace);
    let change = Patch::Merge(json!({"stringData": {"password": "hunter2"}}));
    secrets.patch("db", &PatchParams::default(), &change).await.unwrap();
    stage.see("web", "a running pod", is_running).await;
    run.stop().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_missing_optional_reference_is_told_and_the_pod_runs() {
    let stage = Stage::new(Who::Node, "optional").await;
    let run = stage.start(stage.mock());
    let env = json!([
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "a", "optional": true}}},
        {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "b", "optional": true}}}
    ]);
    let pod = stage.create_running("web", with_env(&env)).await;
    stage.see_event(&pod, "OptionalSecretNotFound").await;
    stage.see_event(&pod, "OptionalConfigMapNotFound").await;
    run.stop().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_volume_that_cannot_be_made_holds_the_container_back_with_an_event() {
    let stage = Stage::new(Who::Node, "mount").await;
    let run = stage.start(mounting(&stage));
    let volumes = json!([{"name": "files", "configMap": {"name": "settings"}}]);
    let pod = stage.create("web", json!({"spec": {"volumes": volumes}})).await;
    let event = stage.see_event(&pod, "FailedMount").await;
    assert_eq!(
        event.message.as_deref(),
        Some("MountVolume.SetUp failed for volume \"files\" : configmap \"settings\" not found")
    );
    stage.see("web", "a container that is held back", waits_with("ContainerCreating")).await;
    create::<ConfigMap>(&stage, json!({"metadata": {"name": "settings"}, "data": {"a": "1"}})).await;
    stage.see("web", "a running pod", is_running).await;
    run.stop().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_running_pod_goes_on_when_its_secret_is_gone_and_the_process_begins_anew() {
    let stage = Stage::new(Who::Node, "adopted").await;
    let run = stage.start(stage.mock());
    create::<Secret>(&stage, json!({"metadata": {"name": "db"}, "stringData": {"password": "x"}})).await;
    let env = json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}]);
    let before = stage.create_running("web", with_env(&env)).await;
    run.stop().await;
    let secrets = Api::<Secret>::namespaced(stage.cluster.admin().unwrap(), &stage.namespace);
    secrets.delete("db", &DeleteParams::default()).await.unwrap();

    let run = stage.start(stage.mock());
    eventually("the pod is adopted", SOON, || async {
        if run.spy.creates(uid(&before)) > 0 { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    let after = stage.get("web").await.unwrap();
    assert_eq!(after.metadata.uid, before.metadata.uid);
    assert!(is_running(&after), "{after:?}");
    run.stop().await;
}
