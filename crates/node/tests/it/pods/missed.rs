//! A watch that loses words and goes on, and pods that come by one watch for many nodes.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, channel::mpsc, stream};
use k8s_openapi::api::core::v1::Pod;
use prometheus_client::registry::Registry;
use serde_json::json;
use vk_node::pods::{
    shared::Shared,
    surveying::surveys,
    watch::{Sight, Sights},
};
use vk_supervisor::Supervisor;

use super::stage::{Run, Setup, Stage, is_running, see_stopped, uid, until};
use crate::harness::{Who, under_both_identities};

const PERIOD: Duration = Duration::from_millis(200);

/// A watch that tells what the test says, beside true surveys.
fn deaf(stage: &Stage<'_>) -> (mpsc::UnboundedSender<Sight>, Sights) {
    let (sender, told) = mpsc::unbounded();
    let client = stage.client(&mut Registry::default());
    let surveys = surveys(client, format!("spec.nodeName={}", stage.node), false, PERIOD);
    (sender, stream::select(told, surveys).boxed())
}

fn start(stage: &Stage<'_>, provider: vk_provider_mock::Mock, sights: Sights) -> Run {
    stage.start_with(provider, Setup { sights: Some(sights), ..Setup::default() })
}

under_both_identities!(what_a_watch_loses_is_found_out_by_comparison);

async fn what_a_watch_loses_is_found_out_by_comparison(who: Who) {
    let stage = Stage::new(who, "deaf").await;
    let mock = stage.mock();
    let (sender, sights) = deaf(&stage);
    let run = start(&stage, mock.clone(), sights);
    // The watch comes up, and never says a word again.
    sender.unbounded_send(Sight::Restarted).unwrap();
    sender.unbounded_send(Sight::Listed).unwrap();
    let web = stage.create_running("web", json!({})).await;
    let other = stage.create_running("other", json!({})).await;
    assert_eq!((run.spy.creates(uid(&web)), run.spy.creates(uid(&other))), (1, 1));

    stage.patch("web", json!({"metadata": {"labels": {"new": "label"}}})).await;
    let has_label = |pod: &Arc<Pod>| pod.metadata.labels.as_ref().is_some_and(|all| all.contains_key("new"));
    until("the update", || run.spy.updates(uid(&web)).iter().any(has_label), |told| *told).await;

    stage.delete("other", None).await;
    stage.see_gone(&other).await;
    stage.delete("web", Some(0)).await;
    see_stopped(&mock, &web).await;
    // A late word does not bring it back, and the next pod comes all the same.
    sender.unbounded_send(Sight::Seen(Arc::new(web.clone()))).unwrap();
    let new = stage.create_running("web", json!({})).await;
    assert_ne!(uid(&new), uid(&web));
    assert_eq!(run.spy.creates(uid(&web)), 1);
    assert_eq!(mock.creations(uid(&web)).await.unwrap(), 1);
}

/// A survey that is old, or no survey at all, must not make anybody believe that a pod is gone.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_old_survey_takes_no_pod_away_and_brings_none_back() {
    let stage = Stage::admin("oldsurvey").await;
    let mock = stage.mock();
    let (sender, sights) = mpsc::unbounded();
    let run = start(&stage, mock.clone(), sights.boxed());
    let gone = stage.create("gone", json!({})).await;
    let old = vk_kube::Objects::<Pod>::namespaced(stage.client(&mut Registry::default()), &*stage.namespace)
        .list_metadata(&vk_kube::Selector::default())
        .await
        .unwrap();
    assert_eq!(old.objects.len(), 1, "{old:?}");
    stage.delete("gone", Some(0)).await;
    let web = Arc::new(stage.create("web", json!({})).await);
    for sight in [Sight::Restarted, Sight::Seen(Arc::clone(&web)), Sight::Listed] {
        sender.unbounded_send(sight).unwrap();
    }
    stage.see("web", "a running pod", is_running).await;
    // As if it were of now.
    let lie = vk_kube::MetadataList { version: u64::MAX, ..old };
    let lie = Arc::new(vk_node::pods::missed::Survey::new(lie, false));
    sender.unbounded_send(Sight::Surveyed(lie)).unwrap();
    until("both are read", || run.requests("get", "pods"), |count| *count >= 2).await;
    let other = Arc::new(stage.create("other", json!({})).await);
    sender.unbounded_send(Sight::Seen(other)).unwrap();
    stage.see("other", "a running pod", is_running).await;
    assert!(run.spy.deletes(uid(&web)).is_empty());
    assert_eq!(run.spy.creates(uid(&gone)), 0);
    assert_eq!(run.spy.creates(uid(&web)), 1);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn one_watch_serves_nodes_that_are_there_and_nodes_that_come_later() {
    let supervisor = Supervisor::new();
    let first = Stage::admin("share").await;
    let second = Stage::admin("share").await;
    let shared = Shared::new(first.client(&mut Registry::default()));
    let one = start(&first, first.mock(), shared.of(&first.node));
    shared.start(&supervisor);
    let early = first.create_running("web", json!({})).await;
    // Its pods were there before it, and were dropped as somebody else's.
    let before = second.create("web", json!({})).await;
    first.create_running("fence", json!({})).await;
    let two = start(&second, second.mock(), shared.of(&second.node));
    second.see("web", "a running pod", is_running).await;
    let after = second.create_running("after", json!({})).await;
    assert_eq!((one.spy.creates(uid(&early)), one.spy.creates(uid(&before))), (1, 0));
    assert_eq!((two.spy.creates(uid(&before)), two.spy.creates(uid(&after))), (1, 1));
    second.delete("web", None).await;
    second.see_gone(&before).await;
    two.stop().await;
    first.delete("web", None).await;
    first.see_gone(&early).await;
}

/// A node identity may not watch all pods.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_node_has_a_watch_of_its_own_where_one_for_all_is_not_permitted() {
    let supervisor = Supervisor::new();
    let stage = Stage::new(Who::Node, "noshare").await;
    let shared = Shared::new(stage.client(&mut Registry::default()));
    let run = start(&stage, stage.mock(), shared.of(&stage.node));
    shared.start(&supervisor);
    let pod = stage.create_running("web", json!({})).await;
    stage.delete("web", None).await;
    stage.see_gone(&pod).await;
    assert_eq!(run.spy.creates(uid(&pod)), 1);
    assert!(shared.of(&stage.node).next().await.is_some(), "also for nodes that come after");
}
