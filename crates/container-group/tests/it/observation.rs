//! What is seen of groups: when, and what is told of it.

use std::time::Duration;

use vk_container_group::{
    backend::{Action, Class},
    conformance::{Node, TestCloud as _, reference},
    engine::CLOUD_REACHABLE,
    fake::{FakeCloud, Fault},
};
use vk_provider::{Provider as _, node::ConditionStatus};

use super::support::{cloud_with, create, new_pod, start};

const SECOND: Duration = Duration::from_secs(1);

/// A node with one pod that runs and five that have ended, such as Jobs.
#[tokio::test(start_paused = true)]
async fn a_group_that_vanishes_together_with_those_that_have_ended_is_not_believed_to_be_gone() {
    let (context, node) = start().await;
    for number in 1..=6 {
        let pod = new_pod(&context, number);
        node.create(&pod).await;
        node.phase(&pod, "Running").await;
        if number > 1 {
            context.cloud.end(&reference(&pod).uid, 0);
            node.phase(&pod, "Succeeded").await;
        }
    }
    tokio::time::sleep(30 * SECOND).await;
    context.cloud.set_visible(false);
    let running = new_pod(&context, 1);
    tokio::time::sleep(400 * SECOND).await;
    let status = node.engine.pod_status(&reference(&running)).await.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let conditions = node.template().conditions;
    let reachable = conditions.iter().find(|one| one.kind == CLOUD_REACHABLE).unwrap();
    assert_eq!(reachable.status, ConditionStatus::False);
    create(&node, &running).await.unwrap();
    assert_eq!(context.cloud.calls(Action::Create), 6);
}

/// The feed says only that it has ended.
#[tokio::test(start_paused = true)]
async fn a_pod_is_not_said_to_have_failed_before_it_is_known_why() {
    let (context, node) = start().await;
    let pod = new_pod(&context, 1);
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    context.cloud.preempt(&reference(&pod).uid);
    // The details cannot be read at first.
    context.cloud.fail(Action::Detail, Fault::Refused(Class::Unavailable));
    node.phase(&pod, "Failed").await;
    let journal = node.journal.lock();
    let failed = journal.history.iter().filter(|(_, status)| status.phase.as_deref() == Some("Failed"));
    for (_, status) in failed {
        assert_eq!(status.reason.as_deref(), Some("SpotInterruption"), "{status:?}");
        let disrupted = status.conditions.iter().flatten().any(|one| one.type_ == "DisruptionTarget");
        assert!(disrupted, "{status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_pod_is_told_after_a_minute_also_if_nothing_says_why() {
    let (context, node) = start().await;
    let pod = new_pod(&context, 1);
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    for _ in 0..100 {
        context.cloud.fail(Action::Detail, Fault::Refused(Class::Denied));
    }
    context.cloud.preempt(&reference(&pod).uid);
    let begin = tokio::time::Instant::now();
    node.phase(&pod, "Failed").await;
    assert!(begin.elapsed() <= 180 * SECOND, "{:?}", begin.elapsed());
}

/// The call waits, and covers the time before it is sent.
#[tokio::test(start_paused = true)]
async fn a_change_is_seen_although_the_feed_was_throttled_when_it_came() {
    let context = cloud_with(FakeCloud::all_caps());
    let node = Node::start(&context);
    let pod = new_pod(&context, 1);
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    tokio::time::sleep(120 * SECOND).await;
    let polls = context.cloud.calls(Action::Changes);
    context.cloud.fail(Action::Changes, Fault::Refused(Class::Throttled { after: Some(60 * SECOND) }));
    // Right after a poll, which the throttled one follows much later.
    node.until("the next poll", async || context.cloud.calls(Action::Changes) > polls).await;
    context.cloud.end(&reference(&pod).uid, 0);
    let begin = tokio::time::Instant::now();
    node.phase(&pod, "Succeeded").await;
    assert!(begin.elapsed() <= 95 * SECOND, "{:?}", begin.elapsed());
}
