//! Lists that lack groups, and what must not be concluded from them.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::time::{Instant, sleep};
use vk_provider::{Provider as _, error::Kind, node::ConditionStatus};

use super::assert_one_group;
use crate::{
    backend::Action,
    conformance::{
        CaseContext, Node, TestCloud,
        pod::{pod, reference},
    },
    engine::CLOUD_REACHABLE,
    fake::PageFault,
};

const SECOND: Duration = Duration::from_secs(1);

pub(super) fn is_reachable<C: TestCloud>(node: &Node<C>) -> bool {
    let node = node.template();
    let condition = node.conditions.iter().find(|one| one.kind == CLOUD_REACHABLE);
    condition.is_none_or(|condition| condition.status != ConditionStatus::False)
}

/// A node with so many pods that run.
async fn with_pods<C: TestCloud>(context: &CaseContext<C>, count: u32) -> (Node<C>, Vec<Pod>) {
    let node = Node::start(context);
    let pods: Vec<_> =
        (1..=count).map(|number| pod(&format!("web-{number}"), number, context.clock.now())).collect();
    futures::future::join_all(pods.iter().map(|pod| node.create(pod))).await;
    for pod in &pods {
        node.phase(pod, "Running").await;
    }
    sleep(30 * SECOND).await;
    (node, pods)
}

async fn assert_all_run<C: TestCloud>(node: &Node<C>, pods: &[Pod]) {
    for pod in pods {
        let status = node.engine.pod_status(&reference(pod)).await.unwrap_or_default();
        assert_eq!(status.phase.as_deref(), Some("Running"), "pods keep their status");
    }
}

fn assert_writes<C: TestCloud>(context: &CaseContext<C>, creates: u64, deletes: u64) {
    let writes = (context.cloud.calls(Action::Create), context.cloud.calls(Action::Delete));
    assert_eq!(writes, (creates, deletes), "creates and deletes");
}

pub(crate) async fn list_page_lost_in_the_middle<C: TestCloud>(context: &CaseContext<C>) {
    context.cloud.set_page(2);
    let (node, pods) = with_pods(context, 7).await;
    for fault in [PageFault::Lost, PageFault::Incomplete] {
        context.cloud.faults().fail_page(Some((2, fault)));
        // Several full lists, also where there is a feed.
        sleep(1200 * SECOND).await;
        assert_all_run(&node, &pods).await;
        assert_writes(context, 7, 0);
    }
    node.kill().await;
    let node = Node::start(context);
    sleep(30 * SECOND).await;
    // Who has not read all pages knows nothing of other pods.
    let unknown = reference(&pod("unknown", 99, context.clock.now()));
    let status = node.engine.pod_status(&unknown).await;
    assert!(status.is_err_and(|error| *error.kind() != Kind::NotFound));
    context.cloud.faults().fail_page(None);
    for pod in &pods {
        node.create(pod).await;
    }
    sleep(60 * SECOND).await;
    for pod in &pods {
        assert_one_group(context, pod);
    }
    assert_writes(context, 7, 0);
}

pub(crate) async fn pages_that_repeat_or_are_refused<C: TestCloud>(context: &CaseContext<C>) {
    context.cloud.set_page(2);
    let (node, pods) = with_pods(context, 7).await;
    for fault in [PageFault::Repeated, PageFault::TokenRefused] {
        context.cloud.faults().fail_page(Some((2, fault)));
        let before = context.cloud.calls(Action::Observe);
        sleep(600 * SECOND).await;
        assert_all_run(&node, &pods).await;
        assert_writes(context, 7, 0);
        let calls = context.cloud.calls(Action::Observe) - before;
        assert!((1..=700).contains(&calls), "{calls} calls in 600 s");
    }
    context.cloud.faults().fail_page(None);
    context.cloud.vanish(&reference(&pods[6]).uid);
    node.absent(&reference(&pods[6])).await;
}

pub(crate) async fn many_pages_while_calls_are_throttled<C: TestCloud>(context: &CaseContext<C>) {
    context.cloud.set_page(2);
    let (node, pods) = with_pods(context, 50).await;
    node.kill().await;
    context.cloud.throttle(Some(2));
    let node = Node::start(context);
    let begin = Instant::now();
    futures::future::join_all(pods.iter().map(|pod| node.create(pod))).await;
    assert!(begin.elapsed() <= 120 * SECOND, "all are adopted after {:?}", begin.elapsed());
    assert_writes(context, 50, 0);
}

pub(crate) async fn mass_disappearance<C: TestCloud>(context: &CaseContext<C>) {
    let (node, pods) = with_pods(context, 6).await;
    context.cloud.set_visible(false);
    node.until("the node says that groups are missing", async || !is_reachable(&node)).await;
    sleep(300 * SECOND).await;
    assert_all_run(&node, &pods).await;
    assert_writes(context, 6, 0);
    context.cloud.set_visible(true);
    node.until("the node sees its groups again", async || is_reachable(&node)).await;
}

pub(crate) async fn mass_disappearance_of_most_groups<C: TestCloud>(context: &CaseContext<C>) {
    let (node, pods) = with_pods(context, 6).await;
    let uids: Vec<_> = pods.iter().map(|pod| reference(pod).uid).collect();
    let most: Vec<&str> = uids[..4].iter().map(|uid| &**uid).collect();
    // Lists lack them, and calls that ask for them find them.
    context.cloud.faults().hide(&most);
    node.until("the node says that groups are missing", async || !is_reachable(&node)).await;
    sleep(300 * SECOND).await;
    assert_all_run(&node, &pods).await;
    assert_writes(context, 6, 0);
    context.cloud.faults().hide(&[]);
    node.until("the node sees its groups again", async || is_reachable(&node)).await;
    // Now they are gone: calls that ask for them find only the one that is there.
    for uid in &most {
        context.cloud.vanish(uid);
    }
    for pod in &pods[..4] {
        node.absent(&reference(pod)).await;
    }
    node.until("the node sees its groups", async || is_reachable(&node)).await;
    assert_all_run(&node, &pods[4..]).await;
}

pub(crate) async fn mass_disappearance_of_groups_that_start<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    assert!(node.pods().await.is_ok_and(|pods| pods.is_empty()));
    // The next full list is far away, where there is a feed.
    sleep(60 * SECOND).await;
    context.cloud.set_visible(false);
    let pods: Vec<_> =
        (1..=3).map(|number| pod(&format!("web-{number}"), number, context.clock.now())).collect();
    for pod in &pods {
        node.create(pod).await;
    }
    for _ in 0..200 {
        sleep(SECOND).await;
        for pod in &pods {
            let status = node.engine.pod_status(&reference(pod)).await;
            let is_absent = status.is_err_and(|error| *error.kind() == Kind::NotFound);
            assert!(!is_absent, "a group that nobody lets us see is said to be gone");
        }
    }
    assert!(!is_reachable(&node), "the node says that groups are missing");
    for pod in &pods {
        node.create(pod).await;
    }
    assert_writes(context, 3, 0);
    context.cloud.set_visible(true);
    for pod in &pods {
        node.phase(pod, "Running").await;
    }
}

pub(crate) async fn group_that_was_never_seen<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    assert!(node.pods().await.is_ok_and(|pods| pods.is_empty()));
    context.cloud.set_visible(false);
    let pod = pod("web", 1, context.clock.now());
    node.create(&pod).await;
    sleep(600 * SECOND).await;
    assert!(!is_reachable(&node), "the node says that groups are missing");
    node.create(&pod).await;
    assert_writes(context, 1, 0);
    // What nobody can find for long is created again at last.
    context.cloud.vanish(&reference(&pod).uid);
    node.absent(&reference(&pod)).await;
}
