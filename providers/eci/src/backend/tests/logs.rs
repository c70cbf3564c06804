//! Logs that are followed while containers crash.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::BoxStream};
use jiff::SignedDuration;
use vk_container_group::conformance::{self, CaseContext, Node, reference};
use vk_provider::{
    Provider as _,
    ability::{LogBody, LogOptions},
};
use vk_testing::cloud::eci::Script;

use super::conformance::EmulatedCloud;

type Context = CaseContext<EmulatedCloud>;
type Log = BoxStream<'static, std::io::Result<bytes::Bytes>>;

/// What each instance of the container writes when it starts.
fn set_output(context: &Context, line: Option<&'static str>) {
    context.cloud.emulator().change_settings(|settings| {
        // A container that crashes is started again at once.
        settings.timing.restart = SignedDuration::ZERO;
        settings.script = Arc::new(move |_| {
            let output = line.map(|line| (Duration::ZERO, line.to_owned()));
            Script { output: output.into_iter().collect(), exit: None }
        });
    });
}

/// A node with a pod that has run for so long that polls are rare, the group of the pod, and its log.
async fn start(context: &Context) -> (Node<EmulatedCloud>, String, Log) {
    let node = Node::start(context);
    let pod = conformance::pod("web", 1, context.clock.now());
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    let options = LogOptions { follow: true, ..LogOptions::default() };
    let container = reference(&pod).container("main");
    let LogBody::Final(log) = node.engine.logs().unwrap().open(&container, &options).await.unwrap() else {
        panic!("all options are applied")
    };
    let group = context.cloud.of_pod(&reference(&pod).uid).remove(0);
    (node, group, log)
}

/// Everything until the end of the log, or until this time is over.
async fn read(log: &mut Log, time: Duration) -> (String, bool) {
    let mut text = Vec::new();
    let all = async {
        while let Some(chunk) = log.next().await {
            text.extend_from_slice(&chunk.unwrap());
        }
    };
    let has_ended = tokio::time::timeout(time, all).await.is_ok();
    (String::from_utf8(text).unwrap(), has_ended)
}

#[test]
fn a_log_that_is_followed_ends_with_the_last_lines_of_a_crash() {
    conformance::check(EmulatedCloud::start, |context| {
        Box::pin(async move {
            set_output(&context, Some("starting"));
            let (_node, group, mut log) = start(&context).await;
            let emulator = context.cloud.emulator();
            emulator.log(&group, "main", "working");
            let (text, has_ended) = read(&mut log, Duration::from_mins(1)).await;
            assert_eq!((text.as_str(), has_ended), ("starting\nworking\n", false));
            emulator.log(&group, "main", "panic");
            assert!(emulator.exit(&group, "main", 1));
            let (text, has_ended) = read(&mut log, Duration::from_mins(1)).await;
            assert_eq!((text.as_str(), has_ended), ("panic\n", true));
        })
    });
}

#[test]
fn the_first_lines_of_a_log_that_is_followed_are_not_lost_in_a_crash() {
    conformance::check(EmulatedCloud::start, |context| {
        Box::pin(async move {
            set_output(&context, None);
            let (_node, group, mut log) = start(&context).await;
            let emulator = context.cloud.emulator();
            let (text, has_ended) = read(&mut log, Duration::from_mins(1)).await;
            assert_eq!((text.as_str(), has_ended), ("", false));
            set_output(&context, Some("starting again"));
            emulator.log(&group, "main", "panic");
            assert!(emulator.exit(&group, "main", 1));
            let (text, has_ended) = read(&mut log, Duration::from_mins(1)).await;
            assert_eq!((text.as_str(), has_ended), ("panic\n", true));
        })
    });
}

#[test]
fn after_two_restarts_no_lines_of_other_instances_are_shown() {
    conformance::check(EmulatedCloud::start, |context| {
        Box::pin(async move {
            set_output(&context, Some("starting"));
            let (_node, group, mut log) = start(&context).await;
            let emulator = context.cloud.emulator();
            let (text, has_ended) = read(&mut log, Duration::from_mins(1)).await;
            assert_eq!((text.as_str(), has_ended), ("starting\n", false));
            for _ in 0..2 {
                assert!(emulator.exit(&group, "main", 1));
                tokio::time::sleep(Duration::from_millis(100)).await;
                assert!(!emulator.groups().is_empty());
            }
            assert_eq!(read(&mut log, Duration::from_mins(1)).await, (String::new(), true));
        })
    });
}
