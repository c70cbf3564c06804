//! A runtime that is away, comes back, hangs, or talks nonsense.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;
use vk_pod_engine::{
    ContainerBackend as _,
    backend::{ExecOutput, full_message},
};
use vk_provider::{Error, error::Kind};
use vk_provider_cri::{Cri, Limits};
use vk_testing::eventually;

use crate::{
    double::{Double, Speaks},
    wire::{container_config, sandbox_config},
};

const QUICK: Limits = Limits { call: Duration::from_millis(200), pull: Some(Duration::from_millis(200)) };

fn is_away(error: &Error, words: &str) {
    assert_eq!(*error.kind(), Kind::Unavailable, "{error}");
    assert!(error.message().contains(words), "{error}");
}

#[tokio::test]
async fn a_missing_socket_is_said_as_a_kubelet_says_it_and_found_when_it_appears() {
    let mut double = Double::absent();
    let error = Cri::connect(double.socket()).await.unwrap_err();
    is_away(&error, "connect: no such file or directory");
    assert!(
        full_message(&error).starts_with("rpc error: code = Unavailable desc = connection error"),
        "{}",
        full_message(&error)
    );
    let cri = Cri::new(double.socket(), QUICK);
    is_away(&cri.list(&BTreeMap::new()).await.unwrap_err(), "no such file or directory");
    double.serve(Speaks::V1);
    cri.list(&BTreeMap::new()).await.unwrap();
}

#[tokio::test]
async fn a_runtime_that_was_restarted_is_used_again_by_the_next_call() {
    let mut double = Double::start();
    let cri = Cri::connect(double.socket()).await.unwrap();
    for _ in 0..3 {
        double.die();
        is_away(&cri.version().await.unwrap_err(), "");
        double.serve(Speaks::V1);
        eventually("the runtime answers again", Duration::from_secs(5), || async { cri.version().await })
            .await;
    }
}

#[tokio::test]
async fn a_call_that_is_under_way_ends_with_the_runtime() {
    let mut double = Double::start();
    let cri = Cri::connect(double.socket()).await.unwrap();
    double.script().hangs = true;
    let pull = cri.clone();
    let config = sandbox_config();
    let (pulled, ()) = tokio::join!(pull.pull("nginx", None, &config), async {
        eventually("the pull is under way", Duration::from_secs(5), || async {
            double.script().calls.contains(&"PullImage").then_some(()).ok_or("no pull yet")
        })
        .await;
        double.die();
    });
    is_away(&pulled.unwrap_err(), "error reading from server: EOF");
}

#[tokio::test]
async fn no_call_waits_longer_than_its_limit_for_a_runtime_that_hangs() {
    let double = Double::start();
    double.script().hangs = true;
    let cri = Cri::new(double.socket(), QUICK);
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
    for speaks in [Speaks::Alpha, Speaks::Nothing] {
        let mut double = Double::absent();
        double.serve(speaks);
        let error = Cri::connect(double.socket()).await.unwrap_err();
        assert_eq!(*error.kind(), Kind::Unsupported);
        for part in ["version 1", "containerd 1.6", "cri.sock"] {
            assert!(error.message().contains(part), "{error}");
        }
    }
}

#[tokio::test]
async fn a_runtime_without_a_configuration_call_is_as_good() {
    let double = Double::start();
    let cri = Cri::connect(double.socket()).await.unwrap();
    let runtime = cri.runtime().await.unwrap();
    assert_eq!((runtime.name.as_str(), runtime.version.as_str()), ("double", "1.2.3"));
    assert_eq!(runtime.cgroup_driver, None, "containerd 1.6 has no RuntimeConfig");
    assert!(!runtime.ready.ok, "what it does not say is not so");
}

#[tokio::test]
async fn answers_without_what_they_must_hold_are_errors_that_say_so() {
    let double = Double::start();
    let cri = Cri::connect(double.socket()).await.unwrap();
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
