//! Parts that go away and come back.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use vk_testing::control_plane::{Error, Options};
use vk_testing::{ControlPlane, eventually};

fn map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_api_server_that_comes_back_has_its_objects_and_its_address() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(cluster.admin().unwrap(), "default");
    maps.create(&PostParams::default(), &map("kept")).await.unwrap();

    cluster.stop_api_server().await.unwrap();
    assert!(maps.get("kept").await.is_err());
    assert!(matches!(cluster.stop_api_server().await, Err(Error::NotRunning("kube-apiserver"))));
    cluster.start_api_server().await.unwrap();
    maps.get("kept").await.unwrap();
    assert!(matches!(cluster.start_api_server().await, Err(Error::AlreadyRunning("kube-apiserver"))));

    cluster.kill_api_server().await.unwrap();
    assert!(maps.get("kept").await.is_err());
    cluster.start_api_server().await.unwrap();
    maps.get("kept").await.unwrap();
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_paused_api_server_hangs_until_it_is_resumed() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(cluster.admin().unwrap(), "default");
    maps.get("kube-root-ca.crt").await.unwrap();

    cluster.pause_api_server().await.unwrap();
    let mut asked = Box::pin(maps.get("kube-root-ca.crt"));
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut asked).await.is_err());
    cluster.resume_api_server().await.unwrap();
    asked.await.unwrap();
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn writes_fail_without_etcd_and_pass_when_it_is_back() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(cluster.admin().unwrap(), "default");
    cluster.stop_etcd().await.unwrap();
    let (params, written) = (PostParams::default(), map("while-etcd-is-away"));
    let written = tokio::time::timeout(Duration::from_secs(10), maps.create(&params, &written)).await;
    assert!(!matches!(written, Ok(Ok(_))), "{written:?}");
    cluster.start_etcd().await.unwrap();
    eventually("a write passes", Duration::from_mins(1), || async {
        maps.create(&PostParams::default(), &map("after")).await.map_err(|error| error.to_string())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_data_folder_continues_with_its_objects_and_authorities() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { data_dir: Some(folder.path().to_owned()), ..Options::default() };
    let cluster = ControlPlane::start(options.clone()).await.unwrap();
    let ca = cluster.ca_pem().to_owned();
    Api::<ConfigMap>::namespaced(cluster.admin().unwrap(), "default")
        .create(&PostParams::default(), &map("kept"))
        .await
        .unwrap();
    let second = ControlPlane::start(options.clone()).await;
    assert!(matches!(second, Err(Error::DataDirInUse(_))), "{second:?}");
    drop(cluster);

    let cluster = ControlPlane::start(options).await.unwrap();
    assert_eq!(cluster.ca_pem(), ca);
    Api::<ConfigMap>::namespaced(cluster.admin().unwrap(), "default").get("kept").await.unwrap();
}
