//! One group for each pod, whatever becomes of the calls.

use std::time::Duration;

use tokio::time::sleep;
use vk_provider::{PodRef, Provider as _, error::Kind};

use super::{assert_one_group, groups_of};
use crate::{
    backend::{Action, Class, Owner},
    conformance::{
        CaseContext, Node, TestCloud,
        pod::{pod, reference},
    },
    fake::Fault,
};

const SECOND: Duration = Duration::from_secs(1);

pub(crate) async fn create_then_503<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let pod = pod("web", 1, context.clock.now());
    context.cloud.fail(Action::Create, Fault::AnswerLost);
    // The lookups fail, too, at first.
    context.cloud.fail(Action::Observe, Fault::Refused(Class::Ambiguous));
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    assert_one_group(context, &pod);
    node.delete(&pod).await;
    assert!(context.cloud.seen_groups().is_empty());
}

pub(crate) async fn create_carried_out_late<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let (kept, deleted) = (pod("kept", 1, context.clock.now()), pod("deleted", 2, context.clock.now()));
    context.cloud.fail(Action::Create, Fault::CarriedOutLater(3 * SECOND));
    node.create(&kept).await;
    context.cloud.fail(Action::Create, Fault::CarriedOutLater(3 * SECOND));
    // The core gives up the create as soon as the pod is deleted.
    let created = tokio::time::timeout(SECOND, node.engine.create_pod(node.bundle(&deleted))).await;
    assert!(created.is_err() || created.is_ok_and(|result| result.is_ok()));
    node.delete(&deleted).await;
    node.phase(&kept, "Running").await;
    sleep(30 * SECOND).await;
    assert_one_group(context, &kept);
    assert_eq!(context.cloud.seen_groups().len(), 1);
}

pub(crate) async fn call_that_hangs_or_panics<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    for (number, fault) in [(1, Fault::Hangs), (2, Fault::Panics)] {
        let pod = pod("web", number, context.clock.now());
        context.cloud.fail(Action::Create, fault.clone());
        context.cloud.fail(Action::Changes, fault.clone());
        context.cloud.fail(Action::Delete, fault);
        let begin = tokio::time::Instant::now();
        node.create(&pod).await;
        assert!(begin.elapsed() <= 90 * SECOND, "it is created after {:?}", begin.elapsed());
        node.phase(&pod, "Running").await;
        assert_one_group(context, &pod);
        node.delete(&pod).await;
    }
    assert!(context.cloud.seen_groups().is_empty());
}

pub(crate) async fn duplicate_create_with_same_token<C: TestCloud>(context: &CaseContext<C>) {
    let pod = pod("web", 1, context.clock.now());
    for _ in 0..3 {
        let node = Node::start(context);
        // Killed while the call is under way.
        context.cloud.fail(Action::Create, Fault::Hangs);
        let created = tokio::time::timeout(SECOND, node.engine.create_pod(node.bundle(&pod))).await;
        drop(created);
        node.kill().await;
    }
    let node = Node::start(context);
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    assert_one_group(context, &pod);
}

pub(crate) async fn duplicate_of_an_earlier_process<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let pod = pod("web", 1, context.clock.now());
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    let ours = groups_of(context, &pod)[0].clone();
    sleep(SECOND).await;
    let owner = Owner { attempt: 2, ..ours.owner.clone() };
    context.cloud.add_group(&owner);
    node.until("the duplicate is deleted", async || groups_of(context, &pod).len() == 1).await;
    assert_eq!(groups_of(context, &pod)[0].group, ours.group, "the older group stays");
    node.until("the duplicate is reported", async || {
        node.reasons(&pod).contains(&"DuplicateGroup".to_owned())
    })
    .await;
}

pub(crate) async fn same_name_pod_recreated<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let (old, new) = (pod("web", 1, context.clock.now()), pod("web", 2, context.clock.now()));
    node.create(&old).await;
    node.phase(&old, "Running").await;
    node.create(&new).await;
    assert_eq!(context.cloud.seen_groups().len(), 2, "both exist");
    node.delete(&old).await;
    node.phase(&new, "Running").await;
    assert_one_group(context, &new);
    assert!(groups_of(context, &old).is_empty());
}

pub(crate) async fn two_nodes_sharing_an_account<C: TestCloud>(context: &CaseContext<C>) {
    let supervisor = vk_supervisor::Supervisor::new();
    let budget = Node::<C>::budget(&supervisor, 10.0, 10.0);
    let start = |name| Node::start_as(context, name, budget.clone(), supervisor.child());
    let (one, other) = (start("one"), start("other"));
    let (first, second) = (pod("web", 1, context.clock.now()), pod("web", 2, context.clock.now()));
    one.create(&first).await;
    other.create(&second).await;
    one.phase(&first, "Running").await;
    other.phase(&second, "Running").await;
    let pods = |found: vk_provider::Result<Vec<PodRef>>| found.unwrap_or_default();
    assert_eq!(pods(one.pods().await), [reference(&first)]);
    assert_eq!(pods(other.pods().await), [reference(&second)]);
    one.delete(&first).await;
    sleep(60 * SECOND).await;
    assert_one_group(context, &second);
}

pub(crate) async fn rejected_pod_makes_no_call<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let mut pod = pod("web", 1, context.clock.now());
    if let Some(spec) = &mut pod.spec {
        (spec.host_network, spec.host_pid) = (Some(true), Some(true));
    }
    let Err(error) = node.engine.create_pod(node.bundle(&pod)).await else { panic!("it was accepted") };
    assert_eq!(*error.kind(), Kind::Invalid);
    for field in ["spec.hostNetwork", "spec.hostPID"] {
        assert!(error.message().contains(field), "{error}");
    }
    assert_eq!(context.cloud.calls(Action::Create), 0);
}

pub(crate) async fn writes_end_with_the_session<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let pod = pod("web", 1, context.clock.now());
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    let owner = groups_of(context, &pod)[0].owner.clone();
    node.end_session().await;
    context.cloud.add_group(&Owner { attempt: 2, ..owner });
    sleep(120 * SECOND).await;
    assert_eq!(groups_of(context, &pod).len(), 2, "only the owner of the node deletes duplicates");
    let deleted =
        tokio::time::timeout(60 * SECOND, node.engine.delete_pod(&reference(&pod), None, SECOND)).await;
    assert!(!matches!(deleted, Ok(Ok(()))));
    assert_eq!(context.cloud.calls(Action::Delete), 0);
}
