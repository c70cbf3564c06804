//! Requests to the runtime, and the conversion of its responses.

use std::{collections::BTreeMap, time::Duration};

use tonic::Status;
use vk_pod_engine::{
    ContainerBackend as _,
    backend::{
        ContainerConfig, ContainerSecurity, ExecOutput, Resources, SandboxConfig, SandboxSecurity,
        full_message,
    },
    snapshot::label,
};
use vk_provider::{
    PodRef,
    ability::{ExecOptions, Forward, Started},
    error::Kind,
    resolve::PullCredentials,
};
use vk_provider_cri::{Cri, proto};

use crate::fake_runtime::FakeRuntime;

pub(crate) fn sandbox_config() -> SandboxConfig {
    SandboxConfig {
        pod: PodRef::new("default", "web", "uid-1"),
        attempt: 0,
        handler: String::new(),
        hostname: "web".into(),
        log_directory: "/var/log/pods/default_web_uid-1".into(),
        dns: None,
        ports: Vec::new(),
        labels: BTreeMap::new(),
        annotations: [("team".to_owned(), "blue".to_owned())].into(),
        cgroup_parent: String::new(),
        sysctls: BTreeMap::new(),
        security: SandboxSecurity::default(),
        overhead: None,
        resources: None,
    }
}

pub(crate) fn container_config() -> ContainerConfig {
    ContainerConfig {
        name: "main".into(),
        attempt: 2,
        image: "sha256:abc".into(),
        user_image: "nginx:1".into(),
        command: vec!["/bin/sh".into()],
        args: Vec::new(),
        working_dir: String::new(),
        env: vec![("KEY".into(), "värde".into())],
        mounts: Vec::new(),
        devices: Vec::new(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        log_path: "main/2.log".into(),
        stdin: false,
        stdin_once: false,
        tty: false,
        resources: Resources::default(),
        security: ContainerSecurity::default(),
        stop_signal: Some("SIGUSR1".into()),
    }
}

async fn open(fake: &FakeRuntime) -> Cri {
    Cri::connect(fake.socket()).await.unwrap()
}

#[tokio::test]
async fn the_runtime_is_called_by_a_plain_name() {
    let fake = FakeRuntime::start();
    open(&fake).await;
    assert_eq!(fake.script().authorities, ["localhost"], "containerd 2 refuses a path");
}

#[tokio::test]
async fn a_container_is_created_with_both_names_of_its_image() {
    let fake = FakeRuntime::start();
    let cri = open(&fake).await;
    let id = cri.create_container("s1", &container_config(), &sandbox_config()).await.unwrap();
    assert_eq!(id, "new");
    let request = fake.script().created.clone().unwrap();
    let config = request.config.unwrap();
    let image = config.image.clone().unwrap();
    assert_eq!((image.image.as_str(), image.user_specified_image.as_str()), ("sha256:abc", "nginx:1"));
    assert_eq!(config.envs[0].value, "värde".as_bytes());
    assert_eq!(config.stop_signal(), proto::Signal::Sigusr1);
    assert_eq!(config.metadata.unwrap().attempt, 2);
    assert_eq!(request.pod_sandbox_id, "s1");
    assert_eq!(request.sandbox_config.unwrap().metadata.unwrap().uid, "uid-1");
    // The sandbox of the new container is known without a list.
    fake.script().container_status = Some(proto::ContainerStatus {
        id: "new".into(),
        metadata: Some(proto::ContainerMetadata { name: "main".into(), attempt: 2 }),
        ..Default::default()
    });
    assert_eq!(cri.container("new").await.unwrap().sandbox, "s1");
    assert!(!fake.script().calls.contains(&"ListContainers"));
}

#[tokio::test]
async fn a_container_that_is_not_in_the_last_list_is_looked_up() {
    let fake = FakeRuntime::start();
    let cri = open(&fake).await;
    let metadata = Some(proto::ContainerMetadata { name: "main".into(), attempt: 0 });
    {
        let mut script = fake.script();
        script.container_status =
            Some(proto::ContainerStatus { id: "c".into(), metadata: metadata.clone(), ..Default::default() });
        script.containers = vec![proto::Container {
            id: "c".into(),
            pod_sandbox_id: "s9".into(),
            metadata,
            ..Default::default()
        }];
    }
    assert_eq!(cri.container("c").await.unwrap().sandbox, "s9");
    fake.script().containers.clear();
    let error = cri.container("c").await.unwrap_err();
    assert_eq!(*error.kind(), Kind::NotFound, "it went between the two looks: {error}");
}

#[tokio::test]
async fn a_list_of_one_pod_leaves_the_others_known() {
    let fake = FakeRuntime::start();
    let cri = open(&fake).await;
    let metadata = Some(proto::ContainerMetadata { name: "main".into(), attempt: 0 });
    let labels = |uid: &str| -> BTreeMap<String, String> {
        let all = [(label::POD_NAMESPACE, "ns"), (label::POD_NAME, "pod"), (label::POD_UID, uid)];
        all.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    };
    let container = |id: &str, uid: &str| proto::Container {
        id: id.into(),
        pod_sandbox_id: format!("sandbox-of-{id}"),
        metadata: metadata.clone(),
        labels: labels(uid),
        ..Default::default()
    };
    let node: BTreeMap<_, _> = [(label::NODE.to_owned(), "vk".to_owned())].into();
    {
        let mut script = fake.script();
        script.containers = vec![container("a", "1"), container("b", "2")];
        script.container_status =
            Some(proto::ContainerStatus { id: "a".into(), metadata: metadata.clone(), ..Default::default() });
    }
    cri.list(&node).await.unwrap();
    fake.script().containers = vec![container("b", "2")];
    cri.list(&labels("2")).await.unwrap();
    fake.script().calls.clear();
    assert_eq!(cri.container("a").await.unwrap().sandbox, "sandbox-of-a");
    assert_eq!(fake.script().calls, ["ContainerStatus"], "nobody is asked where it is");
    cri.list(&node).await.unwrap();
    let error = cri.container("a").await.unwrap_err();
    assert_eq!(*error.kind(), Kind::NotFound, "what is gone from the whole list is forgotten: {error}");
}

#[tokio::test]
async fn used_images_include_those_of_other_clients_under_all_names() {
    let fake = FakeRuntime::start();
    let cri = open(&fake).await;
    let spec = |image: &str| Some(proto::ImageSpec { image: image.into(), ..Default::default() });
    {
        let mut script = fake.script();
        // Without labels and metadata: its owner is unknown, but its image is in use.
        script.containers = vec![proto::Container {
            id: "c".into(),
            image: spec("sha256:config"),
            image_ref: "sha256:ref".into(),
            image_id: "sha256:id".into(),
            ..Default::default()
        }];
        script.container_status = Some(proto::ContainerStatus {
            id: "c".into(),
            image: spec("docker.io/library/busybox:1.37"),
            image_ref: "docker.io/library/busybox@sha256:manifest".into(),
            mounts: vec![
                proto::Mount { image: spec("data:1"), ..Default::default() },
                proto::Mount::default(),
            ],
            ..Default::default()
        });
    }
    let used: Vec<String> = cri.used_images().await.unwrap().into_iter().collect();
    let expected = [
        "data:1",
        "docker.io/library/busybox:1.37",
        "docker.io/library/busybox@sha256:manifest",
        "sha256:config",
        "sha256:id",
        "sha256:ref",
    ];
    assert_eq!(used, expected);
    assert_eq!(fake.script().filters, [BTreeMap::new()], "of everybody");
    for call in ["ContainerStatus", "ListContainers"] {
        fake.script().errors = [(call, Status::not_found("gone"))].into();
        cri.used_images().await.unwrap_err();
    }
}

#[tokio::test]
async fn a_list_asks_for_what_carries_the_labels() {
    let fake = FakeRuntime::start();
    let cri = open(&fake).await;
    let labels: BTreeMap<_, _> = [(label::NODE.to_owned(), "vk".to_owned())].into();
    cri.list(&labels).await.unwrap();
    assert_eq!(fake.script().filters, [labels.clone(), labels], "sandboxes and containers");
}

#[tokio::test]
async fn a_list_of_a_full_node_is_read() {
    let fake = FakeRuntime::start();
    let cri = open(&fake).await;
    let metadata = proto::PodSandboxMetadata { uid: "u".into(), ..Default::default() };
    let sandbox = proto::PodSandbox {
        metadata: Some(metadata),
        labels: [("big".to_owned(), "x".repeat(10_000))].into(),
        ..Default::default()
    };
    fake.script().sandboxes = vec![sandbox; 1000];
    let listing = cri.list(&BTreeMap::new()).await.unwrap();
    assert_eq!(listing.sandboxes.len(), 1000, "ten megabytes");
}

#[tokio::test]
async fn an_unknown_image_is_none_for_every_kind_of_response() {
    let fake = FakeRuntime::start();
    let cri = open(&fake).await;
    assert_eq!(cri.image("nginx", "").await.unwrap(), None, "no image in the answer");
    fake.script().image = Some(proto::Image::default());
    assert_eq!(cri.image("nginx", "").await.unwrap(), None, "an empty image");
    fake.script().errors.insert("ImageStatus", Status::not_found("no such image"));
    assert_eq!(cri.image("nginx", "").await.unwrap(), None, "a refusal");
    fake.script().errors.clear();
    fake.script().image = Some(proto::Image { id: "sha256:1".into(), size: 5, ..Default::default() });
    assert_eq!(cri.image("nginx", "").await.unwrap().unwrap().id, "sha256:1");
}

#[tokio::test]
async fn a_pull_takes_credentials_and_the_pods_annotations_along() {
    let fake = FakeRuntime::start();
    let cri = open(&fake).await;
    let credentials = PullCredentials::basic("example.com", "me", "secret");
    fake.script().image_ref = "sha256:1".into();
    assert_eq!(cri.pull("nginx:1", Some(&credentials), &sandbox_config()).await.unwrap(), "sha256:1");
    let request = fake.script().pulled.clone().unwrap();
    let auth = request.auth.unwrap();
    assert_eq!((auth.username.as_str(), auth.password.as_str()), ("me", "secret"));
    assert_eq!(request.image.unwrap().annotations["team"], "blue");
    assert!(request.sandbox_config.is_some());
}

/// An error would say that nothing was pulled.
#[tokio::test]
async fn a_pull_that_returns_no_reference_has_not_failed() {
    let fake = FakeRuntime::start();
    let cri = open(&fake).await;
    assert_eq!(cri.pull("nginx:1", None, &sandbox_config()).await.unwrap(), "");
}

#[tokio::test]
async fn a_command_that_times_out_has_the_text_of_a_kubelet() {
    let fake = FakeRuntime::start();
    let cri = open(&fake).await;
    let command = ["sh".to_owned(), "-c".to_owned(), "sleep 9".to_owned()];
    fake.script().errors.insert("ExecSync", Status::deadline_exceeded("timeout 1s exceeded"));
    let ran = cri.run("c", &command, Duration::from_secs(1)).await.unwrap();
    let message = "command timed out: \"sh -c sleep 9\" timed out after 1s".to_owned();
    assert_eq!(ran, ExecOutput::TimedOut { message });
    // As CRI-O does.
    fake.script().errors.clear();
    fake.script().ran = proto::ExecSyncResponse {
        stdout: b"a".to_vec(),
        stderr: b"command timed out".to_vec(),
        exit_code: -1,
    };
    let ran = cri.run("c", &command, Duration::from_secs(1)).await.unwrap();
    assert_eq!(ran, ExecOutput::Exited { code: -1, output: b"acommand timed out".to_vec() });
}

#[tokio::test]
async fn stopping_and_removing_a_missing_object_succeeds() {
    let fake = FakeRuntime::start();
    let cri = open(&fake).await;
    for call in ["StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox", "RemoveImage"] {
        fake.script().errors.insert(call, Status::not_found("gone"));
    }
    cri.stop_container("c", Duration::ZERO).await.unwrap();
    cri.remove_container("c").await.unwrap();
    cri.stop_sandbox("s").await.unwrap();
    cri.remove_sandbox("s").await.unwrap();
    cri.remove_image("i").await.unwrap();
    fake.script().errors.insert("StopContainer", Status::unknown("failed to kill"));
    let error = cri.stop_container("c", Duration::ZERO).await.unwrap_err();
    assert_eq!(error.message(), "failed to kill");
    assert_eq!(full_message(&error), "rpc error: code = Unknown desc = failed to kill");
}

#[tokio::test]
async fn sessions_are_urls_of_the_runtime() {
    let fake = FakeRuntime::start();
    let cri = open(&fake).await;
    let options = ExecOptions { stdout: true, ..ExecOptions::default() };
    let error = cri.exec("c", &["ls".to_owned()], &options).await.unwrap_err();
    assert!(error.message().contains("Exec has no URL"), "{error}");
    fake.script().url = "http://127.0.0.1:1/exec/token".into();
    let Started::Url(url) = cri.exec("c", &["ls".to_owned()], &options).await.unwrap() else {
        panic!("no address")
    };
    assert_eq!(url, "http://127.0.0.1:1/exec/token");
    let Started::Url(_) = cri.attach("c", &options).await.unwrap() else { panic!("no address") };
    let Forward::Url(_) = cri.port_forward("s", 80).await.unwrap() else { panic!("no address") };
}

#[tokio::test]
async fn usage_of_containers_is_used_if_the_runtime_reports_none_of_pods() {
    let fake = FakeRuntime::start();
    let cri = open(&fake).await;
    let labels: BTreeMap<String, String> =
        [(label::POD_NAME, "web"), (label::POD_NAMESPACE, "default"), (label::POD_UID, "u")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
    {
        let mut script = fake.script();
        let metadata = proto::PodSandboxMetadata { uid: "u".into(), ..Default::default() };
        script.sandboxes = vec![proto::PodSandbox {
            id: "s".into(),
            metadata: Some(metadata),
            labels: labels.clone(),
            ..Default::default()
        }];
        script.container_stats = vec![proto::ContainerStats {
            attributes: Some(proto::ContainerAttributes {
                metadata: Some(proto::ContainerMetadata { name: "main".into(), attempt: 0 }),
                labels,
                ..Default::default()
            }),
            ..Default::default()
        }];
    }
    let usage = cri.usage(&BTreeMap::new()).await.unwrap();
    assert_eq!(usage[0].containers[0].name, "main");
    fake.script().pod_stats = Some(Vec::new());
    assert!(
        cri.usage(&BTreeMap::new()).await.unwrap().is_empty(),
        "the pods' own figures count where they are"
    );
}
