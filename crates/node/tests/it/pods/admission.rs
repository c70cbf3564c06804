//! Pods that the node does not admit, though they are bound to it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::sync::watch;
use vk_node::pods::{
    Policy,
    admission::{Checks, RejectionPolicy},
};
use vk_provider::error::Kind;
use vk_provider_mock::{Call, Fault};

use super::fixture::{
    PodFixture, Setup, container, is_running, message, phase, reason, see_stopped, status, uid,
};
use crate::harness::{Who, under_both_identities};

fn asking(cpu: &str) -> Value {
    json!({"spec": {"containers": [{
        "name": "main", "image": "example.com/app:1", "resources": {"requests": {"cpu": cpu}},
    }]}})
}

/// A node with four processors and room for ten pods, as its controller has seen it.
fn seen(fixture: &PodFixture<'_>) -> watch::Sender<Option<Arc<Node>>> {
    let node = json!({
        "metadata": {"name": fixture.node, "labels": {"zone": "a"}},
        "status": {"allocatable": {"cpu": "4", "pods": "10"}},
    });
    watch::Sender::new(Some(Arc::new(serde_json::from_value(node).unwrap())))
}

fn full() -> Policy {
    Policy { checks: Checks::Full, ..Policy::default() }
}

async fn rejected(fixture: &PodFixture<'_>, pod: &Pod, why: &str) -> Event {
    let name = pod.metadata.name.as_deref().unwrap();
    let failed = fixture.see(name, "a pod that was rejected", |pod| phase(pod) == "Failed").await;
    assert_eq!(reason(&failed), why);
    assert!(message(&failed).starts_with("Pod was rejected: "), "{}", message(&failed));
    fixture.see_event(pod, why).await
}

under_both_identities!(a_pod_for_which_there_is_no_room_fails_with_the_kubelets_reason);

async fn a_pod_for_which_there_is_no_room_fails_with_the_kubelets_reason(who: Who) {
    let fixture = PodFixture::new(who, "room").await;
    let mock = fixture.mock();
    let node = seen(&fixture);
    let setup = Setup { policy: full(), node_object: node.subscribe(), ..Setup::default() };
    let run = fixture.start_with(mock.clone(), setup);
    let first = fixture.create_running("first", asking("3")).await;
    let second = fixture.create("second", asking("2")).await;
    let event = rejected(&fixture, &second, "OutOfcpu").await;
    // As by a kubelet: why, and nothing else.
    let refused = fixture.get("second").await.unwrap();
    let told = status(&refused);
    assert_eq!(told.observed_generation, refused.metadata.generation);
    let more = (&told.host_ip, &told.pod_ip, &told.container_statuses, &told.conditions);
    assert_eq!(more, (&None, &None, &None, &None));
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    let text = "Node didn't have enough resource: cpu, requested: 2000, used: 3000, capacity: 4000";
    assert_eq!(event.message.as_deref(), Some(text));
    assert_eq!(run.recorder.creates(uid(&second)), 0, "the provider never hears of it");
    // What leaves makes room, and not before it has really stopped.
    fixture.delete("first", Some(0)).await;
    fixture.see_gone(&first).await;
    fixture.create_running("third", asking("4")).await;
    fixture.delete("second", None).await;
    fixture.see_gone(&second).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn pods_that_run_keep_their_place_over_a_restart_and_newcomers_get_what_is_left() {
    let fixture = PodFixture::admin("places").await;
    let node = seen(&fixture);
    let setup = || Setup { policy: full(), node_object: node.subscribe(), ..Setup::default() };
    let run = fixture.start_with(fixture.mock(), setup());
    fixture.create_running("old", asking("3")).await;
    run.stop().await;
    // The newcomer's name comes first, and the watch tells of it first.
    let new = fixture.create("a-new", asking("3")).await;
    let mock = fixture.mock();
    let _run = fixture.start_with(mock.clone(), setup());
    rejected(&fixture, &new, "OutOfcpu").await;
    assert!(is_running(&fixture.get("old").await.unwrap()));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_wants_to_be_elsewhere_fails_only_after_the_node_was_looked_at_again() {
    let fixture = PodFixture::new(Who::Node, "elsewhere").await;
    let node = seen(&fixture);
    let nodes = Api::<Node>::all(fixture.cluster.admin().unwrap());
    let params = PatchParams::default();
    let room = Patch::Merge(json!({"status": {"allocatable": {"cpu": "4", "pods": "10"}}}));
    nodes.patch_status(&fixture.node, &params, &room).await.unwrap();
    let setup = Setup { policy: full(), node_object: node.subscribe(), ..Setup::default() };
    let _run = fixture.start_with(fixture.mock(), setup);
    let away = fixture.create("away", json!({"spec": {"nodeSelector": {"zone": "b"}}})).await;
    rejected(&fixture, &away, "NodeAffinity").await;
    // Somebody has just labelled the node, and the watch has not told of it yet.
    let labels = Patch::Merge(json!({"metadata": {"labels": {"zone": "b"}}}));
    nodes.patch(&fixture.node, &params, &labels).await.unwrap();
    fixture.create_running("here", json!({"spec": {"nodeSelector": {"zone": "b"}}})).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_elastic_node_takes_more_than_it_says_it_has() {
    let fixture = PodFixture::admin("elastic").await;
    let node = seen(&fixture);
    let policy = Policy { checks: Checks::Placement, ..Policy::default() };
    let setup = Setup { policy, node_object: node.subscribe(), ..Setup::default() };
    let _run = fixture.start_with(fixture.mock(), setup);
    fixture.create_running("large", asking("400")).await;
    let away = fixture.create("away", json!({"spec": {"nodeSelector": {"zone": "b"}}})).await;
    // The Node itself is not there: what was seen of it last counts.
    rejected(&fixture, &away, "NodeAffinity").await;
}

fn of_daemon_set() -> Value {
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "1", "controller": true});
    json!({"metadata": {"ownerReferences": [owner]}})
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_of_a_daemon_set_that_the_node_does_not_run_is_held_with_a_reason() {
    let fixture = PodFixture::admin("daemon").await;
    let node = seen(&fixture);
    let policy = Policy { daemon_sets: Some(RejectionPolicy::Hold), ..Policy::default() };
    let setup = || Setup { policy: policy.clone(), node_object: node.subscribe(), ..Setup::default() };
    let run = fixture.start_with(fixture.mock(), setup());
    let agent = fixture.create("agent", of_daemon_set()).await;
    let held = |pod: &Pod| phase(pod) == "Pending" && reason(pod) == "DaemonSetNotSupported";
    fixture.see("agent", "a pod that is held", held).await;
    fixture.see_event(&agent, "DaemonSetNotSupported").await;
    // Also after a restart, when it looks as if it had been admitted before.
    run.stop().await;
    let run = fixture.start_with(fixture.mock(), setup());
    fixture.create_running("other", json!({})).await;
    assert!(held(&fixture.get("agent").await.unwrap()));
    assert_eq!(run.recorder.creates(uid(&agent)), 0);
    fixture.delete("agent", None).await;
    fixture.see_gone(&agent).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_the_provider_refuses_is_held_where_that_is_wanted_until_it_is_changed() {
    let fixture = PodFixture::admin("held").await;
    let mock = fixture.mock();
    let policy = Policy { refused: RejectionPolicy::Hold, ..Policy::default() };
    let run = fixture.start_with(mock.clone(), Setup { policy, ..Setup::default() });
    mock.faults().set(Call::Create, Fault::error(Kind::Unsupported, "no such machine"));
    let pod = fixture.create("web", json!({})).await;
    let held = |pod: &Pod| phase(pod) == "Pending" && message(pod).contains("no such machine");
    let held = fixture.see("web", "a pod that is held", held).await;
    let waiting = container(&held, "main").state.unwrap().waiting.unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("CreateContainerError"));
    let other = fixture.create("other", json!({})).await;
    fixture.see_event(&other, "ProviderCreateFailed").await;
    assert_eq!(run.recorder.creates(uid(&pod)), 1, "asking again would not help");
    mock.faults().clear_all();
    fixture.patch("web", json!({"metadata": {"labels": {"machine": "smaller"}}})).await;
    let seen = fixture.see("web", "a running pod", is_running).await;
    assert_eq!(status(&seen).reason, None);
    fixture.delete("web", Some(0)).await;
    see_stopped(&mock, &pod).await;
    assert_eq!(run.recorder.creates(uid(&pod)), 2);
}
