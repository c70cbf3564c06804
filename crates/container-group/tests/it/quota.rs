//! The quota of the account.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use vk_container_group::{
    backend::{Action, Class},
    conformance::{Node, TestCloud as _},
    fake::{FakeCloud, Fault},
};
use vk_provider::{Quantity, error::Kind};
use vk_supervisor::Supervisor;

use super::support::{cloud_with, create, new_pod, start};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_full_quota_is_shown_with_limit_and_usage_and_not_tried_again_for_a_minute() {
    let (context, node) = start().await;
    context.cloud.set(|behavior| behavior.quota = Some(1));
    create(&node, &new_pod(&context, 1)).await.unwrap();
    let figures = "(cpu: 1 of 1 used, pods: 1 of 1 used)";
    let refused = create(&node, &new_pod(&context, 2)).await.unwrap_err();
    assert_eq!(*refused.kind(), Kind::Exhausted);
    assert!(refused.message().contains(figures), "the first refusal says so, too: {refused}");
    let calls = context.cloud.calls(Action::Create);
    let end = tokio::time::Instant::now() + 55 * SECOND;
    while tokio::time::Instant::now() < end {
        let refused = create(&node, &new_pod(&context, 2)).await.unwrap_err();
        assert_eq!((refused.kind(), context.cloud.calls(Action::Create)), (&Kind::Exhausted, calls));
        assert!(refused.message().contains(figures), "{refused}");
        tokio::time::sleep(SECOND).await;
    }
    context.cloud.set(|behavior| behavior.quota = Some(2));
    node.create(&new_pod(&context, 2)).await;
    assert_eq!(context.cloud.seen_groups().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_node_offers_no_more_than_what_is_left_of_the_quota() {
    let (context, node) = start().await;
    context.cloud.set(|behavior| behavior.quota = Some(3));
    let cpu = || node.template().allocatable.get("cpu").copied();
    node.until("the quota is read", async || cpu() == Some(Quantity::units(3))).await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_run_count_with_what_is_left_of_the_quota() {
    let context = cloud_with(FakeCloud::all_caps());
    context.cloud.set(|behavior| behavior.quota = Some(3));
    let supervisor = Supervisor::new();
    let budget = Node::<FakeCloud>::budget(&supervisor, 1000.0, 1000.0);
    let node = Node::start_with(&context, "vk", budget, supervisor, |settings| {
        settings.capacity = [("pods".to_owned(), Quantity::units(100))].into();
    });
    node.create(&new_pod(&context, 1)).await;
    tokio::time::sleep(600 * SECOND).await;
    assert_eq!(
        node.template().allocatable.get("pods"),
        Some(&Quantity::units(3)),
        "two are left, and one runs"
    );
}

#[tokio::test(start_paused = true)]
async fn creates_that_are_refused_at_once_read_the_quota_once() {
    let (context, node) = start().await;
    let node = Arc::new(node);
    context.cloud.set(|behavior| behavior.quota = Some(0));
    let probes = context.cloud.calls(Action::Probe);
    let pods: Vec<Pod> = (1..=50).map(|number| new_pod(&context, number)).collect();
    let refused = join_all(pods.iter().map(|pod| create(&node, pod))).await;
    for error in refused.into_iter().map(Result::unwrap_err) {
        assert!(error.message().contains("pods: 0 of 0 used"), "{error}");
    }
    assert_eq!(context.cloud.calls(Action::Probe) - probes, 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_quota_is_used_up_offers_no_more_than_before() {
    let context = cloud_with(FakeCloud::all_caps());
    context.cloud.set(|behavior| behavior.quota = Some(3));
    let supervisor = Supervisor::new();
    let budget = Node::<FakeCloud>::budget(&supervisor, 1000.0, 1000.0);
    let node = Node::start_with(&context, "vk", budget, supervisor, |settings| {
        settings.capacity = [("pods".to_owned(), Quantity::units(100))].into();
    });
    let offered = || node.template().allocatable.get("pods").copied();
    node.until("the quota is read", async || offered() == Some(Quantity::units(3))).await;
    for number in 1..=3 {
        node.create(&new_pod(&context, number)).await;
        assert_eq!(offered(), Some(Quantity::units(3)), "as many as the scheduler may place");
    }
    create(&node, &new_pod(&context, 4)).await.unwrap_err();
    assert_eq!(offered(), Some(Quantity::units(3)));
}

/// The permission to read the quota is not needed for creates.
#[tokio::test(start_paused = true)]
async fn creates_go_on_after_a_refusal_although_the_quota_cannot_be_read() {
    let (context, node) = start().await;
    for _ in 0..20 {
        context.cloud.fail(Action::Probe, Fault::Refused(Class::Denied));
    }
    context.cloud.set(|behavior| behavior.quota = Some(1));
    create(&node, &new_pod(&context, 1)).await.unwrap();
    assert_eq!(*create(&node, &new_pod(&context, 2)).await.unwrap_err().kind(), Kind::Exhausted);
    context.cloud.set(|behavior| behavior.quota = Some(2));
    let second = new_pod(&context, 2);
    let limit = 180 * SECOND;
    node.until_within(limit, "it is created", async || create(&node, &second).await.is_ok()).await;
}
