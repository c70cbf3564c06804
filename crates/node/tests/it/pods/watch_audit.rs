//! A watch that loses events and goes on, and one watch for many nodes.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, channel::mpsc, stream};
use k8s_openapi::api::core::v1::Pod;
use prometheus_client::registry::Registry;
use serde_json::json;
use vk_node::pods::{
    shared_watch::SharedPodWatch,
    watch::{PodWatch, PodWatchEvent},
    watch_audit::{AuditScope, pod_versions},
};
use vk_supervisor::Supervisor;

use super::fixture::{PodFixture, Run, Setup, is_running, see_stopped, uid, until};
use crate::harness::{Who, under_both_identities};

const PERIOD: Duration = Duration::from_millis(200);

/// A watch that tells what the test says, beside true lists of versions.
fn deaf(fixture: &PodFixture<'_>) -> (mpsc::UnboundedSender<PodWatchEvent>, PodWatch) {
    let (sender, told) = mpsc::unbounded();
    let client = fixture.client(&mut Registry::default());
    let versions = pod_versions(client, AuditScope::Node(fixture.node.clone()), PERIOD);
    (sender, stream::select(told, versions).boxed())
}

fn start(fixture: &PodFixture<'_>, provider: vk_provider_mock::Mock, pod_watch: PodWatch) -> Run {
    fixture.start_with(provider, Setup { pod_watch: Some(pod_watch), ..Setup::default() })
}

under_both_identities!(what_a_watch_loses_is_found_out_by_comparison);

async fn what_a_watch_loses_is_found_out_by_comparison(who: Who) {
    let fixture = PodFixture::new(who, "deaf").await;
    let mock = fixture.mock();
    let (sender, pod_watch) = deaf(&fixture);
    let run = start(&fixture, mock.clone(), pod_watch);
    // The watch comes up, and never says a word again.
    sender.unbounded_send(PodWatchEvent::Restarted).unwrap();
    sender.unbounded_send(PodWatchEvent::Listed).unwrap();
    let web = fixture.create_running("web", json!({})).await;
    let other = fixture.create_running("other", json!({})).await;
    assert_eq!((run.recorder.creates(uid(&web)), run.recorder.creates(uid(&other))), (1, 1));

    fixture.patch("web", json!({"metadata": {"labels": {"new": "label"}}})).await;
    let has_label = |pod: &Arc<Pod>| pod.metadata.labels.as_ref().is_some_and(|all| all.contains_key("new"));
    until("the update", || run.recorder.updates(uid(&web)).iter().any(has_label), |told| *told).await;

    fixture.delete("other", None).await;
    fixture.see_gone(&other).await;
    fixture.delete("web", Some(0)).await;
    see_stopped(&mock, &web).await;
    // A late word does not bring it back, and the next pod comes all the same.
    sender.unbounded_send(PodWatchEvent::Applied(Arc::new(web.clone()))).unwrap();
    let new = fixture.create_running("web", json!({})).await;
    assert_ne!(uid(&new), uid(&web));
    assert_eq!(run.recorder.creates(uid(&web)), 1);
    assert_eq!(mock.creations(uid(&web)).await.unwrap(), 1);
}

/// An old list of versions does not make a pod gone.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_old_list_of_versions_takes_no_pod_away_and_brings_none_back() {
    let fixture = PodFixture::admin("oldlist").await;
    let mock = fixture.mock();
    let (sender, pod_watch) = mpsc::unbounded();
    let run = start(&fixture, mock.clone(), pod_watch.boxed());
    let gone = fixture.create("gone", json!({})).await;
    let old =
        vk_kube::Objects::<Pod>::namespaced(fixture.client(&mut Registry::default()), &*fixture.namespace)
            .list_metadata(&vk_kube::Selector::default())
            .await
            .unwrap();
    assert_eq!(old.objects.len(), 1, "{old:?}");
    fixture.delete("gone", Some(0)).await;
    let web = Arc::new(fixture.create("web", json!({})).await);
    for event in [PodWatchEvent::Restarted, PodWatchEvent::Applied(Arc::clone(&web)), PodWatchEvent::Listed] {
        sender.unbounded_send(event).unwrap();
    }
    fixture.see("web", "a running pod", is_running).await;
    // As if it were of now.
    let lie = vk_kube::MetadataList { version: u64::MAX, ..old };
    let lie = Arc::new(vk_node::pods::watch_audit::PodVersions::new(lie, false));
    sender.unbounded_send(PodWatchEvent::Versions(lie)).unwrap();
    until("both are read", || run.requests("get", "pods"), |count| *count >= 2).await;
    let other = Arc::new(fixture.create("other", json!({})).await);
    sender.unbounded_send(PodWatchEvent::Applied(other)).unwrap();
    fixture.see("other", "a running pod", is_running).await;
    assert!(run.recorder.deletes(uid(&web)).is_empty());
    assert_eq!(run.recorder.creates(uid(&gone)), 0);
    assert_eq!(run.recorder.creates(uid(&web)), 1);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn one_watch_serves_nodes_that_are_there_and_nodes_that_come_later() {
    let supervisor = Supervisor::new();
    let first = PodFixture::admin("share").await;
    let second = PodFixture::admin("share").await;
    let shared = SharedPodWatch::new(first.client(&mut Registry::default()));
    let one = start(&first, first.mock(), shared.for_node(&first.node));
    shared.start(&supervisor);
    let early = first.create_running("web", json!({})).await;
    // Its pods were there before it, and were dropped as somebody else's.
    let before = second.create("web", json!({})).await;
    first.create_running("fence", json!({})).await;
    let two = start(&second, second.mock(), shared.for_node(&second.node));
    second.see("web", "a running pod", is_running).await;
    let after = second.create_running("after", json!({})).await;
    assert_eq!((one.recorder.creates(uid(&early)), one.recorder.creates(uid(&before))), (1, 0));
    assert_eq!((two.recorder.creates(uid(&before)), two.recorder.creates(uid(&after))), (1, 1));
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
    let fixture = PodFixture::new(Who::Node, "noshare").await;
    let shared = SharedPodWatch::new(fixture.client(&mut Registry::default()));
    let run = start(&fixture, fixture.mock(), shared.for_node(&fixture.node));
    shared.start(&supervisor);
    let pod = fixture.create_running("web", json!({})).await;
    fixture.delete("web", None).await;
    fixture.see_gone(&pod).await;
    assert_eq!(run.recorder.creates(uid(&pod)), 1);
    assert!(shared.for_node(&fixture.node).next().await.is_some(), "also for nodes that come after");
}
