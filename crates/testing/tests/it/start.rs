//! Starts control planes, shares them, and reports why a start failed.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;
use vk_testing::control_plane::{AUDIT_METADATA, Error, Options};
use vk_testing::{ControlPlane, eventually, kubectl};

#[tokio::test]
async fn a_missing_binary_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { programs: Some(folder.path().to_owned()), ..Options::default() };
    let error = ControlPlane::start(options).await.unwrap_err();
    assert!(matches!(error, Error::MissingBinary { binary: "etcd", .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("cannot find `etcd`"), "{message}");
    assert!(message.contains("run `make control-plane`, or set VK_CONTROL_PLANE"), "{message}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_shared_api_server_answers_with_its_real_version() {
    let cluster = ControlPlane::shared().await;
    let version = cluster.admin().unwrap().apiserver_version().await.unwrap();
    assert_eq!(version.git_version, "v1.36.4");
    assert_eq!((version.major.as_str(), version.minor.as_str()), ("1", "36"));
}

/// Each test has its own runtime, and the one that started the server may have ended.
#[test]
#[ignore = "needs the control plane: make test"]
fn the_shared_api_server_outlives_the_runtime_that_started_it() {
    let mut urls = Vec::new();
    for _ in 0..2 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        urls.push(runtime.block_on(async {
            let cluster = ControlPlane::shared().await;
            cluster.admin().unwrap().apiserver_version().await.unwrap();
            cluster.url()
        }));
    }
    assert_eq!(urls[0], urls[1]);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn another_handle_can_use_a_control_plane_but_not_stop_it() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let attached = ControlPlane::attach(cluster.url(), cluster.data_dir(), false).unwrap();
    let namespace = attached.namespace("attached").await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(cluster.admin().unwrap(), namespace.name());
    assert!(maps.get_opt("kube-root-ca.crt").await.unwrap().is_some());
    assert!(matches!(attached.stop_api_server().await, Err(Error::NotRunning("kube-apiserver"))));
    drop(attached);
    cluster.admin().unwrap().apiserver_version().await.unwrap();
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn two_control_planes_at_once_are_two_clusters() {
    let (one, other) =
        tokio::try_join!(ControlPlane::start(Options::default()), ControlPlane::start(Options::default()))
            .unwrap();
    assert_ne!(one.url(), other.url());
    let namespace = one.namespace("apart").await.unwrap();
    let seen = Api::<ConfigMap>::namespaced(other.admin().unwrap(), namespace.name())
        .list(&ListParams::default())
        .await
        .unwrap();
    assert!(seen.items.is_empty());
    let seen = Api::<ConfigMap>::namespaced(one.admin().unwrap(), namespace.name())
        .list(&ListParams::default())
        .await
        .unwrap();
    assert_eq!(seen.items.len(), 1);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_namespace_takes_pods_at_once() {
    let cluster = ControlPlane::shared().await;
    let client = cluster.admin().unwrap();
    let namespace = cluster.namespace("pods").await.unwrap();
    assert!(namespace.name().starts_with("pods-"));
    for namespace in [namespace.name(), "default"] {
        Api::<ServiceAccount>::namespaced(client.clone(), namespace).get("default").await.unwrap();
        let map =
            Api::<ConfigMap>::namespaced(client.clone(), namespace).get("kube-root-ca.crt").await.unwrap();
        assert_eq!(map.data.unwrap()["ca.crt"], cluster.ca_pem());
    }
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "one" },
        "spec": { "containers": [{ "name": "main", "image": "example.org/main" }] },
    }))
    .unwrap();
    Api::<Pod>::namespaced(client, namespace.name()).create(&PostParams::default(), &pod).await.unwrap();

    let listed =
        kubectl(cluster, ["get", "pods", "--namespace", namespace.name(), "--output=name"]).await.unwrap();
    assert!(listed.success(), "{}", listed.stderr);
    assert_eq!(listed.stdout, "pod/one\n");
    let refused = kubectl(cluster, ["get", "pod", "none", "--namespace", namespace.name()]).await.unwrap();
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("NotFound"), "{}", refused.stderr);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn with_controllers_a_deployment_gets_its_pod() {
    let cluster = ControlPlane::shared_with_controllers().await;
    let client = cluster.admin().unwrap();
    let namespace = cluster.namespace("deploy").await.unwrap();
    Api::<ServiceAccount>::namespaced(client.clone(), namespace.name()).get("default").await.unwrap();

    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": { "name": "web" },
        "spec": {
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "main", "image": "example.org/main" }] },
            },
        },
    }))
    .unwrap();
    let deployments = Api::<Deployment>::namespaced(client.clone(), namespace.name());
    deployments.create(&PostParams::default(), &deployment).await.unwrap();

    let pods = Api::<Pod>::namespaced(client, namespace.name());
    let selected = ListParams::default().labels("app=web");
    eventually("the scheduler has looked at the Deployment's pod", Duration::from_mins(1), || async {
        let found = pods.list(&selected).await.map_err(|error| error.to_string())?;
        let pod = found.items.into_iter().next().ok_or("no pod")?;
        let status = pod.status.unwrap_or_default();
        let scheduled = status.conditions.unwrap_or_default().into_iter().find(|c| c.type_ == "PodScheduled");
        // There is no node: the scheduler's work is to say so.
        match scheduled.and_then(|condition| condition.reason) {
            Some(reason) if reason == "Unschedulable" => Ok(()),
            other => Err(format!("a pod with PodScheduled {other:?}")),
        }
    })
    .await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_bad_flag_gives_an_error_with_the_end_of_the_log() {
    let options = Options { extra_api_server_args: vec!["--no-such-flag".to_owned()], ..Options::default() };
    let error = ControlPlane::start(options).await.unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, Error::Exited { component: "kube-apiserver", .. }), "{message}");
    assert!(message.contains("unknown flag: --no-such-flag"), "{message}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_fixed_port_that_is_taken_is_an_error_that_says_so() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = ControlPlane::start(Options { port: Some(port), ..Options::default() })
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("address already in use"), "{error}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_audit_policy_gives_an_audit_log() {
    let options = Options { audit_policy: Some(AUDIT_METADATA.to_owned()), ..Options::default() };
    let cluster = ControlPlane::start(options).await.unwrap();
    let namespace = cluster.namespace("audited").await.unwrap();
    let log = std::fs::read_to_string(cluster.audit_log().unwrap()).unwrap();
    assert!(log.contains(namespace.name()), "{log}");
}
