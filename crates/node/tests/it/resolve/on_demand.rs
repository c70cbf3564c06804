//! Objects that providers request by name.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Secret},
    node::v1::RuntimeClass,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use secrecy::ExposeSecret as _;
use serde_json::json;
use vk_provider::{
    Resolver as _,
    error::Kind,
    resolve::{PullCredentials, RegistryLogin},
};

use super::resolver_test::ResolverTest;

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn only_objects_that_the_pod_references_are_readable() {
    let test = ResolverTest::new("named").await;
    test.secret("mine", json!({"a": "1"})).await;
    test.secret("other", json!({"a": "1"})).await;
    test.config_map("other", json!({"a": "1"})).await;
    let spec = json!({"volumes": [{"name": "files", "secret": {"secretName": "mine"}}]});
    let (_, answers) = test.pod("web", spec).await;
    assert_eq!(answers.secret("mine").await.unwrap().metadata.name.as_deref(), Some("mine"));
    let error = answers.secret("other").await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Denied);
    assert!(error.message().contains("does not refer"), "{error}");
    assert_eq!(*answers.config_map("other").await.unwrap_err().kind(), Kind::Denied);
    assert_eq!(*answers.claim("other").await.unwrap_err().kind(), Kind::Denied);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn pull_credentials_come_from_pull_secrets_and_a_missing_secret_is_an_event() {
    let test = ResolverTest::new("pull").await;
    let auths = json!({"auths": {"registry.example.com": {"username": "u", "password": "p"}}});
    test.put::<Secret>(json!({
        "metadata": {"name": "registry"},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": auths.to_string()},
    }))
    .await;
    let mut notes = test.factory.take_events().unwrap();
    let spec = json!({"imagePullSecrets": [{"name": "registry"}, {"name": "nowhere"}]});
    let (_, answers) = test.pod("web", spec).await;
    let found = answers.pull_credentials("registry.example.com/team/app:1").await.unwrap();
    let [PullCredentials { registry, login: RegistryLogin::Basic { username, password } }] = &found[..]
    else {
        panic!("{found:?}")
    };
    assert_eq!(registry, "registry.example.com");
    assert_eq!((username.as_str(), password.expose_secret()), ("u", "p"));
    assert!(answers.pull_credentials("elsewhere.example.com/app:1").await.unwrap().is_empty());
    let note = notes.recv().await.unwrap();
    assert_eq!(note.reason, "FailedToRetrieveImagePullSecret");
    assert!(note.message.contains("nowhere"), "{}", note.message);
    assert!(notes.try_recv().is_err(), "it is told once");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_claim_is_resolved_with_its_volume_once_it_is_bound() {
    let test = ResolverTest::new("claim").await;
    let spec = json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]});
    let (_, answers) = test.pod("web", spec).await;
    assert!(matches!(answers.claim("data").await.unwrap_err().kind(), Kind::Unresolved(_)));

    let resources = json!({"requests": {"storage": "1Gi"}});
    let claim: PersistentVolumeClaim = test
        .put(json!({
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources, "volumeName": test.node,
                     "storageClassName": ""},
        }))
        .await;
    let error = answers.claim("data").await.unwrap_err();
    assert!(error.message().contains("not bound"), "{error}");

    let admin = test.cluster.admin().unwrap();
    let owner = json!({"namespace": test.namespace, "name": "data", "uid": claim.metadata.uid});
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": test.node},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                 "hostPath": {"path": "/data"}, "claimRef": owner},
    }))
    .unwrap();
    Api::all(admin.clone()).create(&PostParams::default(), &volume).await.unwrap();
    let bound = json!({"status": {"phase": "Bound"}});
    Api::<PersistentVolumeClaim>::namespaced(admin, &test.namespace)
        .patch_status("data", &PatchParams::default(), &Patch::Merge(bound))
        .await
        .unwrap();
    // The node authorizer learns of the binding by a watch.
    let found = vk_testing::eventually("the claim", crate::harness::SOON, || async {
        answers.claim("data").await.map_err(|error| error.report())
    })
    .await;
    assert_eq!(found.volume.metadata.name, Some(test.node.clone()));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_runtime_class_is_resolved_if_the_pod_names_one() {
    let test = ResolverTest::new("class").await;
    let (_, without) = test.pod("plain", json!({})).await;
    assert!(without.runtime_class().await.unwrap().is_none());
    let class: RuntimeClass =
        serde_json::from_value(json!({"metadata": {"name": test.node}, "handler": "kata"})).unwrap();
    Api::all(test.cluster.admin().unwrap()).create(&PostParams::default(), &class).await.unwrap();
    let (_, with) = test.pod("special", json!({"runtimeClassName": test.node})).await;
    assert_eq!(with.runtime_class().await.unwrap().unwrap().handler, "kata");
}
