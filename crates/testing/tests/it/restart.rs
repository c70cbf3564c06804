//! Parts that go away and come back.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use serde_json::json;
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

/// A pod that its scheduler has to place.
fn pod_for(scheduler: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": scheduler},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "main", "image": "none"}]},
    }))
    .unwrap()
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_scheduler_runs_with_the_configuration_that_it_is_started_and_restarted_with() {
    let config = |scheduler: &str| {
        format!(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
             leaderElection: {{leaderElect: true}}\nprofiles: [{{schedulerName: {scheduler}}}]\n"
        )
    };
    let options = Options { scheduler_config: Some(config("first")), ..Options::with_controllers() };
    let cluster = ControlPlane::start(options).await.unwrap();
    let pods = Api::<Pod>::namespaced(cluster.admin().unwrap(), "default");
    // Without nodes a pod is unschedulable, which only a scheduler with this name finds out.
    let decided = async |scheduler: &str| {
        eventually("the pod is unschedulable", Duration::from_secs(30), || async {
            let pod = pods.get(scheduler).await.map_err(|error| error.to_string())?;
            let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
            let decided = conditions.iter().any(|one| one.reason.as_deref() == Some("Unschedulable"));
            if decided { Ok(()) } else { Err(format!("{conditions:?}")) }
        })
        .await;
    };
    for scheduler in ["first", "second"] {
        pods.create(&PostParams::default(), &pod_for(scheduler)).await.unwrap();
    }
    decided("first").await;
    let second = pods.get("second").await.unwrap().status.and_then(|status| status.conditions);
    assert_eq!(second, None);
    cluster.restart_scheduler(&config("second")).await.unwrap();
    decided("second").await;
    let outcome = cluster.restart_scheduler("[]").await;
    assert!(matches!(outcome, Err(Error::SchedulerConfig(_))), "{outcome:?}");
}
