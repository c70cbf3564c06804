//! Logs that are followed.

use std::time::Duration;

use futures::{StreamExt as _, stream::BoxStream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use vk_container_group::{
    backend::{Caps, LogLimits},
    conformance::{CaseContext, Node, pod, reference},
    fake::FakeCloud,
};
use vk_provider::{
    Provider as _,
    ability::{LogBody, LogOptions},
};
use vk_supervisor::Clock;

type Log = BoxStream<'static, std::io::Result<bytes::Bytes>>;

/// A pod that runs, with five lines in its log.
async fn start(caps: Caps) -> (CaseContext<FakeCloud>, Node<FakeCloud>, Pod) {
    let clock = Clock::following_tokio(Timestamp::from_second(1_800_000_000).expect("a valid time"));
    let context = CaseContext { cloud: FakeCloud::with_caps(clock.clone(), caps), clock };
    let node = Node::start(&context);
    let pod = pod("web", 1, context.clock.now());
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    (0..5).for_each(|number| context.cloud.log("web", "main", &format!("old {number}")));
    (context, node, pod)
}

async fn follow(node: &Node<FakeCloud>, pod: &Pod, tail: u64) -> Log {
    let options = LogOptions { follow: true, tail: Some(tail), ..LogOptions::default() };
    let container = reference(pod).container("main");
    match node.engine.logs().unwrap().open(&container, &options).await.unwrap() {
        LogBody::Final(log) => log,
        _ => panic!("all options are applied"),
    }
}

/// Everything that is written within this time.
async fn read(log: &mut Log, time: Duration) -> String {
    let mut text = Vec::new();
    let all = async {
        while let Some(chunk) = log.next().await {
            text.extend_from_slice(&chunk.unwrap());
        }
    };
    let _ = tokio::time::timeout(time, all).await;
    String::from_utf8(text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_followed_without_old_lines_shows_only_new_ones() {
    let (context, node, pod) = start(FakeCloud::all_caps()).await;
    let mut log = follow(&node, &pod, 0).await;
    assert_eq!(read(&mut log, Duration::from_secs(30)).await, "");
    context.cloud.log("web", "main", "new");
    assert_eq!(read(&mut log, Duration::from_secs(30)).await, "new\n");
}

#[tokio::test(start_paused = true)]
async fn a_log_without_times_is_followed_from_the_last_lines_on() {
    let mut caps = FakeCloud::all_caps();
    caps.logs = Some(LogLimits { lines: 2000, bytes: 1 << 20, stamped: false, previous: false });
    for (tail, expected) in [(0, &["new"][..]), (2, &["old 3", "old 4", "new"])] {
        let (context, node, pod) = start(caps.clone()).await;
        let mut log = follow(&node, &pod, tail).await;
        let mut text = read(&mut log, Duration::from_secs(30)).await;
        context.cloud.log("web", "main", "new");
        text += &read(&mut log, Duration::from_secs(30)).await;
        // This cloud writes times, which the engine takes for text.
        let lines: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
        assert_eq!(lines, expected, "the last {tail} lines");
    }
}
