//! Many groups, few calls.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    GroupBackend as _,
    backend::Action,
    conformance::{CaseContext, Node, TestCloud, pod::pod},
};

const SECOND: Duration = Duration::from_secs(1);
/// How long groups are idle, in minutes.
const IDLE_MINUTES: &str = "VK_IDLE_MINUTES";

pub(crate) async fn thousand_pods_under_a_10_rps_budget<C: TestCloud>(context: &CaseContext<C>) {
    context.cloud.set_start(20 * SECOND);
    let supervisor = vk_supervisor::Supervisor::new();
    let budget = Node::<C>::budget(&supervisor, 10.0, 20.0);
    let node = Node::start_as(context, "vk", budget, supervisor);
    let pods: Vec<_> =
        (1..=1000).map(|number| pod(&format!("web-{number}"), number, context.clock.now())).collect();
    let begin = Instant::now();
    futures::future::join_all(pods.iter().map(|pod| node.create(pod))).await;
    for pod in &pods {
        node.phase(pod, "Running").await;
    }
    let took = begin.elapsed();
    assert!(took <= 115 * SECOND + 20 * SECOND, "all run after {took:?}");
    sleep(600 * SECOND).await;
    futures::future::join_all(pods.iter().map(|pod| node.delete(pod))).await;
    assert!(context.cloud.seen_groups().is_empty());
    let calls = context.cloud.total_calls();
    // Without a feed each poll reads all pages, also while nothing happens.
    let most = if context.cloud.backend().caps().feed { 2300 } else { 2400 };
    assert!(calls <= most, "{calls} calls in the lives of 1,000 pods");
    let writes = (context.cloud.calls(Action::Create), context.cloud.calls(Action::Delete));
    assert_eq!((writes, context.cloud.failed_calls()), ((1000, 1000), 0));
}

pub(crate) async fn thousand_idle_groups<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let pods: Vec<_> =
        (1..=1000).map(|number| pod(&format!("web-{number}"), number, context.clock.now())).collect();
    futures::future::join_all(pods.iter().map(|pod| node.create(pod))).await;
    for pod in &pods {
        node.phase(pod, "Running").await;
    }
    sleep(300 * SECOND).await;
    let before = context.cloud.total_calls();
    let minutes = idle_minutes();
    sleep(minutes * 60 * SECOND).await;
    let calls = context.cloud.total_calls() - before;
    // Half a call per second.
    assert!(calls <= u64::from(minutes) * 30, "{calls} calls in {minutes} minutes");
    context.cloud.preempt(&crate::conformance::pod::reference(&pods[0]).uid);
    let begin = Instant::now();
    node.phase(&pods[0], "Failed").await;
    assert!(begin.elapsed() <= 35 * SECOND, "visible after {:?}", begin.elapsed());
}

fn idle_minutes() -> u32 {
    std::env::var(IDLE_MINUTES).ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}
