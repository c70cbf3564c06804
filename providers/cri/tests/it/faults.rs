//! Runtimes that are down, restart, hang, or return invalid responses.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;
use vk_pod_engine::{
    ContainerBackend as _,
    backend::{ExecOutput, full_message},
};
use vk_provider::{Config, Context, Error, Extensions, Factory as _, Supervisor, error::Kind};
use vk_provider_cri::{Cri, CriFactory, Limits};
use vk_testing::eventually;

use crate::{
    fake_runtime::{CriVersion, FakeRuntime},
    requests::{container_config, sandbox_config},
};

const QUICK: Limits = Limits { call: Duration::from_millis(200), pull: Some(Duration::from_millis(200)) };

fn is_away(error: &Error, words: &str) {
    assert_eq!(*error.kind(), Kind::Unavailable, "{error}");
    assert!(error.message().contains(words), "{error}");
}

#[tokio::test]
async fn a_missing_socket_is_reported_as_by_a_kubelet_and_used_when_it_appears() {
    let mut fake = FakeRuntime::absent();
    let error = Cri::connect(fake.socket()).await.unwrap_err();
    is_away(&error, "connect: no such file or directory");
    assert!(
        full_message(&error).starts_with("rpc error: code = Unavailable desc = connection error"),
        "{}",
        full_message(&error)
    );
    let cri = Cri::new(fake.socket(), QUICK);
    is_away(&cri.list(&BTreeMap::new()).await.unwrap_err(), "no such file or directory");
    fake.serve(CriVersion::V1);
    cri.list(&BTreeMap::new()).await.unwrap();
}

#[tokio::test]
async fn a_runtime_that_was_restarted_is_used_again_by_the_next_call() {
    let mut fake = FakeRuntime::start();
    let cri = Cri::connect(fake.socket()).await.unwrap();
    for _ in 0..3 {
        fake.die();
        is_away(&cri.version().await.unwrap_err(), "");
        fake.serve(CriVersion::V1);
        eventually("the runtime answers again", Duration::from_secs(5), || async { cri.version().await })
            .await;
    }
}

#[tokio::test]
async fn a_call_that_is_under_way_ends_with_the_runtime() {
    let mut fake = FakeRuntime::start();
    let cri = Cri::connect(fake.socket()).await.unwrap();
    fake.script().hangs = true;
    let pull = cri.clone();
    let config = sandbox_config();
    let (pulled, ()) = tokio::join!(pull.pull("nginx", None, &config), async {
        eventually("the pull is under way", Duration::from_secs(5), || async {
            fake.script().calls.contains(&"PullImage").then_some(()).ok_or("no pull yet")
        })
        .await;
        fake.die();
    });
    is_away(&pulled.unwrap_err(), "error reading from server: EOF");
}

#[tokio::test]
async fn no_call_waits_longer_than_its_limit_for_a_runtime_that_hangs() {
    let fake = FakeRuntime::start();
    fake.script().hangs = true;
    let cri = Cri::new(fake.socket(), QUICK);
    let begun = Instant::now();
    let (sandbox, container) = (sandbox_config(), container_config());
    let none = BTreeMap::new();
    let failures = [
        cri.runtime().await.map(drop),
        cri.run_sandbox(&sandbox).await.map(drop),
        cri.stop_sandbox("s").await,
        cri.remove_sandbox("s").await,
        cri.sandbox("s").await.map(drop),
        cri.create_container("s", &container, &sandbox).await.map(drop),
        cri.start_container("c").await,
        cri.stop_container("c", Duration::from_millis(100)).await,
        cri.remove_container("c").await,
        cri.container("c").await.map(drop),
        cri.list(&none).await.map(drop),
        cri.usage(&none).await.map(drop),
        cri.image("i", "").await.map(drop),
        cri.pull("i", None, &sandbox).await.map(drop),
    ];
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    for failure in failures {
        let error = failure.unwrap_err();
        is_away(&error, "context deadline exceeded");
        assert_eq!(
            full_message(&error),
            "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
        );
    }
    let ran = cri.run("c", &["true".to_owned()], Duration::from_millis(100)).await.unwrap();
    assert!(matches!(ran, ExecOutput::TimedOut { .. }), "{ran:?}");
}

#[tokio::test]
async fn a_runtime_of_the_older_version_is_refused_with_what_to_do() {
    for version in [CriVersion::Alpha, CriVersion::Nothing] {
        let mut fake = FakeRuntime::absent();
        fake.serve(version);
        let error = Cri::connect(fake.socket()).await.unwrap_err();
        assert_eq!(*error.kind(), Kind::Unsupported);
        for part in ["version 1", "containerd 1.6", "cri.sock"] {
            assert!(error.message().contains(part), "{error}");
        }
    }
}

#[tokio::test]
async fn a_runtime_without_the_configuration_call_works() {
    let fake = FakeRuntime::start();
    let cri = Cri::connect(fake.socket()).await.unwrap();
    let runtime = cri.runtime().await.unwrap();
    assert_eq!((runtime.name.as_str(), runtime.version.as_str()), ("fake", "1.2.3"));
    assert_eq!(runtime.cgroup_driver, None, "containerd 1.6 has no RuntimeConfig");
    assert!(!runtime.ready.ok, "what it does not say is not so");
}

#[tokio::test]
async fn answers_without_what_they_must_hold_are_errors_that_say_so() {
    let fake = FakeRuntime::start();
    let cri = Cri::connect(fake.socket()).await.unwrap();
    let (sandbox, none) = (sandbox_config(), "has no");
    for error in [
        cri.run_sandbox(&sandbox).await.unwrap_err(),
        cri.sandbox("s").await.unwrap_err(),
        cri.container("c").await.unwrap_err(),
    ] {
        assert_eq!(*error.kind(), Kind::Internal);
        assert!(error.message().contains(none), "{error}");
    }
}

#[tokio::test]
async fn the_tasks_of_a_backend_belong_to_the_supervisor_of_its_context() {
    let (fake, folder) = (FakeRuntime::start(), tempfile::tempdir().unwrap());
    let supervisor = Supervisor::new();
    let context = Context {
        node_name: "n".to_owned(),
        internal_ip: [192, 0, 2, 1].into(),
        kubelet_port: 10250,
        operating_system: "linux".to_owned(),
        cluster_domain: "cluster.local".to_owned(),
        cluster: None,
        state_dir: folder.path().join("n"),
        shared_dir: folder.path().to_owned(),
        extensions: Extensions::default(),
        supervisor: supervisor.child(),
    };
    let config = serde_json::json!({ "socket": fake.socket() });
    let backend = CriFactory.open(Config::Inline(config), context).await.unwrap();
    let lists = || fake.script().calls.iter().filter(|call| **call == "ListContainers").count();
    eventually("the engine lists containers", Duration::from_secs(10), || async {
        (lists() > 0).then_some(()).ok_or("no list yet")
    })
    .await;
    assert!(supervisor.shut_down(Duration::from_secs(10)).await, "all tasks ended in time");
    let before = lists();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(lists(), before, "the engine still lists containers");
    drop(backend);
}
