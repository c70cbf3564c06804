//! What the cloud shows, and what follows from it.

use std::time::Duration;

use jiff::SignedDuration;
use tokio::time::sleep;
use vk_provider::{Provider as _, error::Kind};

use super::{assert_one_group, groups_of, lists::is_reachable};
use crate::{
    backend::{Action, Class, Owner},
    conformance::{
        CaseContext, Node, TestCloud,
        pod::{pod, reference},
    },
    fake::Fault,
};

const SECOND: Duration = Duration::from_secs(1);

pub(crate) async fn delete_then_ghost_in_list<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let pods: Vec<_> =
        (1..=3).map(|number| pod(&format!("web-{number}"), number, context.clock.now())).collect();
    for pod in &pods {
        node.create(pod).await;
    }
    for pod in &pods {
        node.phase(pod, "Running").await;
    }
    sleep(30 * SECOND).await;
    context.cloud.set_lag(8 * SECOND);
    node.delete(&pods[0]).await;
    for _ in 0..120 {
        sleep(SECOND).await;
        let found = node.pods().await.unwrap_or_default();
        assert!(!found.contains(&reference(&pods[0])), "it came back from an old list");
    }
    assert_eq!(context.cloud.seen_groups().len(), 2);
}

pub(crate) async fn group_vanishes_while_running<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let pods: Vec<_> =
        (1..=5).map(|number| pod(&format!("web-{number}"), number, context.clock.now())).collect();
    for pod in &pods {
        node.create(pod).await;
    }
    for pod in &pods {
        node.phase(pod, "Running").await;
    }
    sleep(30 * SECOND).await;
    let lost = reference(&pods[0]);
    context.cloud.vanish(&lost.uid);
    node.absent(&lost).await;
    assert!(is_reachable(&node));
    // The core creates it again: another group with another name.
    node.create(&pods[0]).await;
    assert_one_group(context, &pods[0]);
    assert_eq!(groups_of(context, &pods[0])[0].owner.attempt, 2);
}

pub(crate) async fn clock_skew<C: TestCloud>(context: &CaseContext<C>) {
    let hour = SignedDuration::from_hours(1);
    for (number, error) in [(1, hour), (2, -hour)] {
        context.cloud.set_clock_error(error);
        let node = Node::start(context);
        // The API server's clock is wrong, too.
        let pod = pod("web", number, context.clock.now() - error);
        node.create(&pod).await;
        let status = node.phase(&pod, "Running").await;
        assert!(status.pod_ip.is_some());
        sleep(60 * SECOND).await;
        assert_one_group(context, &pod);
        node.delete(&pod).await;
        node.kill().await;
    }
    assert!(context.cloud.seen_groups().is_empty());
}

pub(crate) async fn spot_interruption<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let pod = pod("web", 1, context.clock.now());
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    context.cloud.preempt(&reference(&pod).uid);
    let status = node.phase(&pod, "Failed").await;
    let disrupted = status.conditions.iter().flatten().any(|one| one.type_ == "DisruptionTarget");
    assert!(disrupted, "{:?}", status.conditions);
    let ended = status.container_statuses.iter().flatten().all(|one| {
        one.state
            .as_ref()
            .is_some_and(|state| state.terminated.as_ref().is_some_and(|ended| ended.exit_code == 137))
    });
    assert!(ended, "{:?}", status.container_statuses);
    let events = node.reasons(&pod).iter().filter(|reason| *reason == "PreemptedByCloud").count();
    assert_eq!(events, 1, "{:?}", node.reasons(&pod));
}

pub(crate) async fn orphan_younger_than_grace<C: TestCloud>(context: &CaseContext<C>) {
    let unknown = reference(&pod("unknown", 9, context.clock.now()));
    let owner = |node: &str| Owner {
        cluster: "cluster".into(),
        node: node.into(),
        pod: unknown.clone(),
        attempt: 1,
        spec_hash: None,
    };
    context.cloud.add_group(&owner("vk"));
    let foreign = context.cloud.add_group(&owner("other"));
    let node = Node::start(context);
    assert_eq!(node.pods().await.unwrap_or_default(), std::slice::from_ref(&unknown), "the core decides");
    sleep(600 * SECOND).await;
    assert_eq!(context.cloud.calls(Action::Delete), 0);
    // It does, with a delete.
    let deleted = node.engine.delete_pod(&unknown, None, Duration::ZERO).await;
    assert!(deleted.is_ok(), "{deleted:?}");
    node.absent(&unknown).await;
    let left: Vec<_> = context.cloud.seen_groups().into_iter().map(|one| one.group).collect();
    assert_eq!(left, [foreign], "that of the other node is not touched");
}

pub(crate) async fn refused_credentials<C: TestCloud>(context: &CaseContext<C>) {
    for _ in 0..3 {
        context.cloud.fail(Action::Observe, Fault::Refused(Class::Denied));
    }
    let node = Node::start(context);
    node.until("the node is not ready", async || {
        node.engine.ping().await.is_err_and(|error| *error.kind() == Kind::Denied)
    })
    .await;
    assert!(!is_reachable(&node));
    let calls = context.cloud.calls(Action::Observe);
    sleep(20 * SECOND).await;
    assert_eq!(context.cloud.calls(Action::Observe), calls, "retried slowly");
    node.until("the node is ready", async || node.engine.ping().await.is_ok()).await;
    assert!(is_reachable(&node));
}
