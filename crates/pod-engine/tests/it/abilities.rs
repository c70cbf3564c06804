//! Logs, exec and stats.

use std::time::Duration;

use futures::StreamExt;
use serde_json::json;
use vk_pod_engine::testing::Call;
use vk_provider::{
    PodRef, Provider, Result,
    ability::{Attach, Exec, ExecOptions, LogBody, LogOptions, Logs, PortForward, Started, Stats},
    error::Kind,
};

use crate::support::{FOREVER, TestEngine, container, container_status, pod, waiting};

const ALL: ExecOptions = ExecOptions { stdin: false, stdout: true, stderr: true, tty: false };

async fn log(test: &TestEngine, pod: &PodRef, previous: bool) -> Result<String> {
    let options = LogOptions { previous, ..LogOptions::default() };
    let LogBody::Final(stream) = test.engine().open(&pod.container("app"), &options).await? else {
        panic!("the engine applies all options")
    };
    let chunks: Vec<_> = stream.map(|chunk| chunk.unwrap()).collect().await;
    Ok(String::from_utf8(chunks.concat()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn the_log_of_the_instance_and_of_the_one_before_can_be_read() {
    let test = TestEngine::new();
    let made = test
        .create(&pod("a", json!({ "containers": [container("app", "echo one; sleep 2; echo two; exit 1")] })))
        .await;
    test.running(&made).await;
    assert_eq!(log(&test, &made, false).await.unwrap(), "one\n");
    assert_eq!(*log(&test, &made, true).await.unwrap_err().kind(), Kind::NotFound);
    test.until(&made, "it is restarted", |status| container_status(status, "app").restart_count == 1).await;
    assert_eq!(log(&test, &made, false).await.unwrap(), "one\n");
    assert_eq!(log(&test, &made, true).await.unwrap(), "one\ntwo\n");
}

#[tokio::test(start_paused = true)]
async fn what_does_not_run_cannot_be_entered_and_says_so() {
    let test = TestEngine::new();
    test.runtime.network(false);
    test.engine().ping().await.unwrap_err();
    let waits = test.create(&pod("waits", json!({ "containers": [container("app", FOREVER)] }))).await;
    test.until(&waits, "it waits", |status| waiting(container_status(status, "app")) == "ContainerCreating")
        .await;
    let (app, none) = (waits.container("app"), waits.container("none"));
    let words = ["true".to_owned()];
    let error = test.engine().start(&app, &words, &ALL).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unavailable);
    assert!(error.message().contains("not running"), "{error}");
    assert_eq!(*test.engine().start(&none, &words, &ALL).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(*Attach::attach(test.engine(), &app, &ALL).await.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(*log(&test, &waits, false).await.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(*test.engine().dial(&waits, 80).await.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(
        test.runtime.count(Call::Exec) + test.runtime.count(Call::Attach),
        0,
        "the runtime is not asked"
    );
    let stranger = PodRef::new("default", "nobody", "uid-nobody");
    assert_eq!(*test.engine().dial(&stranger, 80).await.unwrap_err().kind(), Kind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_command_runs_in_the_instance_that_runs() {
    let test = TestEngine::new();
    let made = test.create(&pod("a", json!({ "containers": [container("app", FOREVER)] }))).await;
    test.running(&made).await;
    test.runtime.finish(&made.uid, "app", 1);
    test.until(&made, "it is restarted", |status| container_status(status, "app").restart_count == 1).await;
    let words = ["echo".to_owned(), "hello".to_owned()];
    let started = test.engine().start(&made.container("app"), &words, &ALL).await.unwrap();
    let Started::Session(session) = started else { panic!("the fake serves sessions") };
    assert_eq!(session.exit.await.unwrap().code, 0);
}

#[tokio::test(start_paused = true)]
async fn figures_tell_the_present_use_from_the_second_look_on() {
    let test = TestEngine::new();
    let made = test.create(&pod("a", json!({ "containers": [container("app", FOREVER)] }))).await;
    test.running(&made).await;
    let figures = async || {
        let summary = test.engine().summary().await.unwrap();
        assert_eq!(summary.node.node_name, "node-1");
        assert!(summary.node.memory.is_some() && summary.node.cpu.is_some());
        let pod = summary.pods.into_iter().find(|pod| pod.pod_ref.uid == *made.uid).unwrap();
        let cpu = pod.containers[0].cpu.clone().unwrap();
        (cpu.usage_nano_cores, pod.cpu.unwrap().usage_nano_cores, cpu.usage_core_nano_seconds.unwrap())
    };
    let (none, _, first) = figures().await;
    assert_eq!(none, None);
    tokio::time::sleep(Duration::from_secs(20)).await;
    let (rate, whole, second) = figures().await;
    // The fake's containers use a quarter of a processor.
    assert_eq!(rate, Some(250_000_000));
    assert_eq!(whole, rate);
    assert_eq!(second - first, 5_000_000_000);
}

#[tokio::test(start_paused = true)]
async fn the_node_declares_that_it_restarts_all_containers_in_place() {
    let test = TestEngine::new();
    let mut node = vk_provider::NodeTemplate::default();
    test.engine().configure_node(&mut node);
    assert!(node.declared_features.contains("RestartAllContainersOnContainerExits"), "{node:?}");
}
