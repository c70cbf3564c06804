//! What the cloud shows, and what follows from it.

use std::time::Duration;

use bytes::Bytes;
use jiff::SignedDuration;
use tokio::time::sleep;
use vk_provider::{
    Provider as _,
    error::Kind,
    node::ConditionStatus,
    resolve::{File, FileSet, Origin},
};

use super::{assert_one_group, groups_of};
use crate::{
    backend::{Action, Class, Owner},
    conformance::{
        CaseContext, Node, TestCloud,
        pod::{pod, pod_with_secret, reference},
    },
    engine::CLOUD_REACHABLE,
    fake::Fault,
};

const SECOND: Duration = Duration::from_secs(1);

fn is_reachable<C: TestCloud>(node: &Node<C>) -> bool {
    let node = node.template();
    let condition = node.conditions.iter().find(|one| one.kind == CLOUD_REACHABLE);
    condition.is_none_or(|condition| condition.status != ConditionStatus::False)
}

pub(crate) async fn list_page_lost_in_the_middle<C: TestCloud>(context: &CaseContext<C>) {
    context.cloud.set_page(2);
    let node = Node::start(context);
    let pods: Vec<_> =
        (1..=7).map(|number| pod(&format!("web-{number}"), number, context.clock.now())).collect();
    for pod in &pods {
        node.create(pod).await;
    }
    for pod in &pods {
        node.phase(pod, "Running").await;
    }
    node.kill().await;
    // The second page of every list is lost, for some time.
    for _ in 0..3 {
        context.cloud.fail(Action::Observe, Fault::Refused(Class::Throttled { after: None }));
    }
    let node = Node::start(context);
    for pod in &pods {
        node.create(pod).await;
    }
    sleep(120 * SECOND).await;
    for pod in &pods {
        assert_one_group(context, pod);
    }
    assert_eq!((context.cloud.calls(Action::Create), context.cloud.calls(Action::Delete)), (7, 0));
}

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

pub(crate) async fn mass_disappearance<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let pods: Vec<_> =
        (1..=6).map(|number| pod(&format!("web-{number}"), number, context.clock.now())).collect();
    for pod in &pods {
        node.create(pod).await;
    }
    for pod in &pods {
        node.phase(pod, "Running").await;
    }
    sleep(30 * SECOND).await;
    context.cloud.set_visible(false);
    node.until("the node says that groups are missing", async || !is_reachable(&node)).await;
    sleep(300 * SECOND).await;
    for pod in &pods {
        let status = node.engine.pod_status(&reference(pod)).await.unwrap_or_default();
        assert_eq!(status.phase.as_deref(), Some("Running"), "pods keep their status");
    }
    assert_eq!((context.cloud.calls(Action::Create), context.cloud.calls(Action::Delete)), (6, 0));
    context.cloud.set_visible(true);
    node.until("the node sees its groups again", async || is_reachable(&node)).await;
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

pub(crate) async fn secret_rotation<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let files = |content: &'static str| {
        let file = File {
            content: Bytes::from_static(content.as_bytes()),
            mode: 0o600,
            owner: None,
            origin: Origin::Secret,
        };
        FileSet { files: [("password".to_owned(), file)].into(), expires: None }
    };
    node.files.send_replace(files("hunter1"));
    let pod = pod_with_secret("web", 1, context.clock.now());
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    for content in ["hunter2", "hunter3"] {
        node.files.send_replace(files(content));
        sleep(10 * SECOND).await;
    }
    let changed = node.reasons(&pod).iter().filter(|reason| *reason == "FilesNotUpdated").count();
    assert_eq!(changed, 1, "one event for each volume");
    let told = format!("{:?}", node.journal.lock());
    assert!(!told.contains("hunter"), "nothing secret is told");
}

pub(crate) async fn token_expiry<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let expires = context.clock.now() + SignedDuration::from_hours(1);
    node.files.send_replace(FileSet { expires: Some(expires), ..FileSet::default() });
    let pod = pod_with_secret("web", 1, context.clock.now());
    node.create(&pod).await;
    node.until("the warning", async || node.reasons(&pod).contains(&"TokenNotRenewed".to_owned())).await;
    let said = node.journal.lock().events.iter().any(|event| event.message.contains(&expires.to_string()));
    assert!(said, "it says when");
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

pub(crate) async fn throttle_storm<C: TestCloud>(context: &CaseContext<C>) {
    let supervisor = vk_supervisor::Supervisor::new();
    let budget = Node::<C>::budget(&supervisor, 10.0, 20.0);
    let node = Node::start_as(context, "vk", budget, supervisor);
    context.cloud.throttle(Some(2));
    let pods: Vec<_> =
        (1..=50).map(|number| pod(&format!("web-{number}"), number, context.clock.now())).collect();
    let begin = tokio::time::Instant::now();
    futures::future::join_all(pods.iter().map(|pod| node.create(pod))).await;
    let took = begin.elapsed();
    assert!(took < 300 * SECOND, "{took:?}");
    context.cloud.throttle(None);
    for pod in &pods {
        node.phase(pod, "Running").await;
        assert_one_group(context, pod);
    }
    // What succeeded was not repeated.
    assert_eq!(context.cloud.seen_groups().len(), 50);
}
