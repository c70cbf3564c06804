//! Processes that end at any time.

use std::time::Duration;

use tokio::time::sleep;
use vk_provider::{Provider as _, error::Kind};
use vk_supervisor::Supervisor;

use super::assert_one_group;
use crate::{
    backend::Action,
    conformance::{
        CaseContext, Node, TestCloud,
        pod::{pod, reference},
    },
};

const SECOND: Duration = Duration::from_secs(1);

pub(crate) async fn controller_restart_at_each_step<C: TestCloud>(context: &CaseContext<C>) {
    for (number, step) in (1..).zip([0, 1, 50, 200, 900, 1_500, 4_000, 8_000]) {
        let step = Duration::from_millis(step);
        let pod = pod("web", number, context.clock.now());
        let node = Node::start(context);
        let created = tokio::time::timeout(step, node.create(&pod)).await;
        drop(created);
        node.kill().await;
        let node = Node::start(context);
        node.create(&pod).await;
        node.phase(&pod, "Running").await;
        assert_one_group(context, &pod);
        let deleted = tokio::time::timeout(step, node.delete(&pod)).await;
        drop(deleted);
        node.kill().await;
        let node = Node::start(context);
        node.delete(&pod).await;
        assert!(context.cloud.seen_groups().is_empty(), "after {step:?}: {:?}", context.cloud.seen_groups());
        node.kill().await;
    }
}

pub(crate) async fn handover_to_a_standby<C: TestCloud>(context: &CaseContext<C>) {
    let leader = Node::start(context);
    let supervisor = Supervisor::new();
    let budget = Node::<C>::budget(&supervisor, 1000.0, 1000.0);
    let standby = Node::stand_by(context, "vk", budget, supervisor, |_| {});
    sleep(600 * SECOND).await;
    let created = context.clock.now();
    let (pod, unknown) = (pod("web", 1, created), reference(&pod("unknown", 2, created)));
    leader.create(&pod).await;
    leader.phase(&pod, "Running").await;
    sleep(Duration::from_millis(10)).await;
    leader.end_session().await;
    standby.lead();
    let pods = standby.pods().await.unwrap_or_default();
    assert_eq!(pods, [reference(&pod)], "what the other process has created is known");
    // What it may have created last is not known for some time.
    let status = standby.engine.pod_status(&unknown).await;
    assert!(status.is_err_and(|error| *error.kind() == Kind::Unavailable));
    standby.absent(&unknown).await;
    standby.create(&pod).await;
    assert_eq!(context.cloud.calls(Action::Create), 1);
}

pub(crate) async fn events_once_across_restarts<C: TestCloud>(context: &CaseContext<C>) {
    let mut pod = pod("web", 1, context.clock.now());
    let uid = reference(&pod).uid;
    let node = Node::start(context);
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    context.cloud.warn(&uid, "NoStock");
    context.cloud.warn(&uid, "StillNoStock");
    node.until("both events", async || node.reasons(&pod).len() == 2).await;
    sleep(60 * SECOND).await;
    assert_eq!(node.reasons(&pod), ["NoStock", "StillNoStock"]);
    let annotations = node.journal.lock().annotations.get(&uid).cloned().unwrap_or_default();
    assert!(annotations.contains_key("virtual-kubelet.io/group"), "{annotations:?}");
    // The core has written the annotations.
    let written = annotations.into_iter().filter_map(|(key, value)| Some((key, value?)));
    pod.metadata.annotations = Some(written.collect());
    node.kill().await;
    let node = Node::start(context);
    node.create(&pod).await;
    sleep(60 * SECOND).await;
    assert_eq!(node.reasons(&pod), [""; 0], "they were published before");
    context.cloud.warn(&uid, "StockAgain");
    node.until("the new event", async || node.reasons(&pod) == ["StockAgain"]).await;
}

pub(crate) async fn restart_with_thousand_groups<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let pods: Vec<_> =
        (1..=1000).map(|number| pod(&format!("web-{number}"), number, context.clock.now())).collect();
    futures::future::join_all(pods.iter().map(|pod| node.create(pod))).await;
    for pod in &pods {
        node.phase(pod, "Running").await;
    }
    node.kill().await;
    let before = context.cloud.total_calls();
    let node = Node::start(context);
    futures::future::join_all(pods.iter().map(|pod| node.create(pod))).await;
    let pods = node.engine.pods().await.map(|pods| pods.len());
    assert_eq!(pods.unwrap_or_default(), 1000);
    let calls = context.cloud.total_calls() - before;
    assert!(calls <= 60, "{calls} calls");
    assert_eq!(context.cloud.calls(Action::Create), 1000);
}
