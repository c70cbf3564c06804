//! The lifecycle scenarios of the Go original (`node/lifecycle_test.go`, `node/pod_test.go`), each with a provider that tells
//! of changes and with one that has to be asked. `docs/reference/tests-of-the-original.md` says which test stands for which.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt as _, channel::mpsc};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{WatchEvent, WatchParams};
use serde_json::json;
use vk_node::pods::watch::Sight;
use vk_provider::{Changes, ObservedPod, PodBundle, PodRef, Provider, Result, error::Kind};
use vk_provider_mock::{Call, Fault, Mock};

use super::{
    puppet::{Puppet, running},
    stage::{Setup, Stage, container, is_running, phase, reference, see_stopped, uid, until},
};
use crate::harness::SOON;

/// How the controller learns of what happens in the backend.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Told,
    Asked,
}

/// The mock, which tells what happens or keeps it to itself.
struct Either {
    mock: Mock,
    way: Way,
}

/// Runs a scenario both ways.
macro_rules! told_and_asked {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            #[tokio::test]
            #[ignore = "needs the control plane: make test"]
            async fn told() {
                Box::pin(super::$name(super::Way::Told)).await;
            }

            #[tokio::test]
            #[ignore = "needs the control plane: make test"]
            async fn asked() {
                Box::pin(super::$name(super::Way::Asked)).await;
            }
        }
    )+};
}

told_and_asked!(
    a_pod_is_created_starts_and_is_deleted,
    a_deleted_pod_that_the_provider_does_not_know_leaves,
    a_deleted_pod_stays_while_the_provider_fails_to_stop_it,
    a_pod_that_only_the_provider_knows_is_stopped_once,
    a_pod_that_was_deleted_before_the_start_is_stopped,
    a_pod_that_had_ended_before_the_start_is_left_alone,
    a_change_of_a_running_pod_is_an_update,
    an_empty_status_does_no_harm,
);

const PERIOD: Duration = Duration::from_millis(100);

impl Way {
    fn provider(self, mock: &Mock) -> Either {
        Either { mock: mock.clone(), way: self }
    }

    fn puppet(self, node: &str) -> Puppet {
        if self == Self::Told { Puppet::new(node) } else { Puppet::polled(node, PERIOD) }
    }
}

#[async_trait]
impl Provider for Either {
    async fn create_pod(&self, pod: PodBundle) -> Result<()> {
        self.mock.create_pod(pod).await
    }

    async fn update_pod(&self, pod: PodBundle) -> Result<()> {
        self.mock.update_pod(pod).await
    }

    async fn delete_pod(&self, pod: &PodRef, last_known: Option<Arc<Pod>>, grace: Duration) -> Result<()> {
        self.mock.delete_pod(pod, last_known, grace).await
    }

    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
        self.mock.pod_status(pod).await
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        self.mock.pods().await
    }

    fn changes(&self) -> Changes {
        match self.way {
            Way::Told => self.mock.changes(),
            Way::Asked => Changes::Poll(PERIOD),
        }
    }
}

/// The last that anybody sees of the pod is how it ended.
async fn a_pod_is_created_starts_and_is_deleted(way: Way) {
    let stage = Stage::admin("original").await;
    let mock = stage.mock();
    let run = stage.start(way.provider(&mock));
    let pod = stage.create_running("web", json!({"spec": {"restartPolicy": "Never"}})).await;
    assert_eq!((run.spy.creates(uid(&pod)), run.spy.updates(uid(&pod)).len()), (1, 0));
    let selected = WatchParams::default().fields("metadata.name=web");
    let version = pod.metadata.resource_version.as_deref().unwrap();
    let watched = stage.pods.watch(&selected, version).await.unwrap();
    let deleted = watched.filter_map(|event| async {
        if let Ok(WatchEvent::Deleted(pod)) = event { Some(pod) } else { None }
    });
    stage.delete("web", Some(10)).await;
    let deleted = tokio::time::timeout(SOON, Box::pin(deleted).next()).await.expect("an end").unwrap();
    assert_eq!(phase(&deleted), "Succeeded");
    let last = container(&deleted, "main").state.unwrap().terminated.unwrap();
    assert!(last.started_at.is_some() && last.finished_at.is_some(), "{last:?}");
    assert_eq!((run.spy.creates(uid(&pod)), run.spy.deletes(uid(&pod)).len()), (1, 1));
}

async fn a_deleted_pod_that_the_provider_does_not_know_leaves(way: Way) {
    let stage = Stage::admin("unknown").await;
    let mock = stage.mock();
    let run = stage.start(way.provider(&mock));
    let pod = stage.create_running("web", json!({})).await;
    mock.faults().set(Call::Delete, Fault::error(Kind::NotFound, "no such pod"));
    stage.delete("web", Some(10)).await;
    stage.see_gone(&pod).await;
    assert_eq!(run.spy.deletes(uid(&pod)).len(), 1);
}

async fn a_deleted_pod_stays_while_the_provider_fails_to_stop_it(way: Way) {
    let stage = Stage::admin("random").await;
    let mock = stage.mock();
    let run = stage.start(way.provider(&mock));
    let pod = stage.create_running("web", json!({})).await;
    mock.faults().set(Call::Delete, Fault::error(Kind::Internal, "random error"));
    stage.delete("web", Some(10)).await;
    until("another stop", || run.spy.deletes(uid(&pod)).len(), |count| *count >= 2).await;
    let kept = stage.get("web").await.expect("a pod that still runs stays");
    assert!(kept.metadata.deletion_timestamp.is_some());
    mock.faults().clear_all();
    stage.see_gone(&pod).await;
}

async fn a_pod_that_only_the_provider_knows_is_stopped_once(way: Way) {
    let stage = Stage::admin("dangling").await;
    let run = stage.start(way.provider(&stage.mock()));
    // What has ended and can still be read would be told again.
    let script = json!({"metadata": {"annotations": {"mock.virtual-kubelet.io/keep-ended": "0s"}}});
    let pod = stage.create_running("web", script).await;
    run.stop().await;
    stage.delete("web", Some(0)).await;
    let mock = stage.mock();
    let setup = Setup { compare: Duration::from_millis(100), ..Setup::default() };
    let run = stage.start_with(way.provider(&mock), setup);
    see_stopped(&mock, &pod).await;
    let lists = mock.calls(Call::List);
    until("more comparisons", || mock.calls(Call::List), |count| *count >= lists + 3).await;
    assert_eq!(run.spy.deletes(uid(&pod)).len(), 1);
    assert_eq!(run.spy.creates(uid(&pod)), 0);
}

async fn a_pod_that_was_deleted_before_the_start_is_stopped(way: Way) {
    let stage = Stage::admin("deleted").await;
    let run = stage.start(way.provider(&stage.mock()));
    let pod = stage.create_running("web", json!({})).await;
    run.stop().await;
    stage.delete("web", Some(10)).await;
    let mock = stage.mock();
    let run = stage.start(way.provider(&mock));
    stage.see_gone(&pod).await;
    see_stopped(&mock, &pod).await;
    assert_eq!((run.spy.creates(uid(&pod)), run.spy.deletes(uid(&pod)).len()), (0, 1));
}

async fn a_pod_that_had_ended_before_the_start_is_left_alone(way: Way) {
    let stage = Stage::admin("ended").await;
    let mut pods = Vec::new();
    for (name, phase) in [("failed", "Failed"), ("succeeded", "Succeeded")] {
        stage.create(name, json!({"spec": {"restartPolicy": "Never"}})).await;
        pods.push(stage.patch_status(name, json!({"status": {"phase": phase}})).await);
    }
    let mock = stage.mock();
    let run = stage.start(way.provider(&mock));
    // Another pod's whole way.
    let other = stage.create_running("other", json!({})).await;
    stage.delete("other", Some(10)).await;
    stage.see_gone(&other).await;
    for pod in pods {
        let now = stage.get(pod.metadata.name.as_deref().unwrap()).await.unwrap();
        assert_eq!(
            now.metadata.resource_version, pod.metadata.resource_version,
            "somebody wrote it: {now:?}"
        );
        assert_eq!(run.spy.creates(uid(&pod)), 0);
        assert!(run.spy.deletes(uid(&pod)).is_empty());
    }
}

async fn a_change_of_a_running_pod_is_an_update(way: Way) {
    let stage = Stage::admin("changes").await;
    let mock = stage.mock();
    let run = stage.start(way.provider(&mock));
    let pod = stage.create_running("web", json!({})).await;
    stage.patch("web", json!({"spec": {"activeDeadlineSeconds": 3600}})).await;
    let updates = until("an update", || run.spy.updates(uid(&pod)), |all| !all.is_empty()).await;
    assert_eq!(updates[0].spec.as_ref().unwrap().active_deadline_seconds, Some(3600));
    assert_eq!(updates.len(), 1);
}

/// A backend that knows of the pod and has nothing to say yet.
async fn an_empty_status_does_no_harm(way: Way) {
    let stage = Stage::admin("empty").await;
    let puppet = way.puppet(&stage.node);
    let run = stage.start(puppet.clone());
    let pod = stage.create_running("web", json!({})).await;
    puppet.set(&reference(&pod), PodStatus::default());
    // Another pod's whole way.
    let other = stage.create_running("other", json!({})).await;
    stage.delete("other", Some(10)).await;
    stage.see_gone(&other).await;
    assert_eq!(phase(&stage.get("web").await.unwrap()), "Running");
    assert_eq!(run.spy.creates(uid(&pod)), 1);
    puppet.set(&reference(&pod), running());
    stage.see("web", "a running pod", is_running).await;
    stage.delete("web", Some(10)).await;
    stage.see_gone(&pod).await;
}

/// Nobody resolves on the way what the provider may want to resolve itself.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_reaches_the_provider_as_the_api_server_has_it() {
    let stage = Stage::admin("untouched").await;
    let run = stage.start(stage.mock());
    let field = |path: &str| json!({"fieldRef": {"apiVersion": "v1", "fieldPath": path}});
    let env = json!([
        {"name": "NAME", "valueFrom": field("metadata.name")},
        {"name": "PLACE", "valueFrom": field("spec.nodeName")},
        {"name": "ECHO", "value": "$(NAME) and $$(NAME)"},
        {"name": "FIRST", "value": "1"},
    ]);
    let containers = json!([{"name": "main", "image": "example.com/app:1", "env": env}]);
    let pod = stage.create("web", json!({"spec": {"containers": containers}})).await;
    let created = until("a create", || run.spy.created(uid(&pod)), |all| !all.is_empty()).await;
    assert_eq!(created[0].spec, pod.spec);
    assert_eq!(created[0].metadata.name, pod.metadata.name);
}

/// A listing repeats what is known; that is no change.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_is_seen_again_unchanged_is_no_update() {
    let stage = Stage::admin("unchanged").await;
    let (sender, sights) = mpsc::unbounded();
    let setup = Setup { sights: Some(sights.boxed()), ..Setup::default() };
    let run = stage.start_with(stage.mock(), setup);
    let created = Arc::new(stage.create("web", json!({})).await);
    let see = |sights: Vec<Sight>| sights.into_iter().for_each(|sight| sender.unbounded_send(sight).unwrap());
    see(vec![Sight::Restarted, Sight::Seen(created), Sight::Listed]);
    let pod = Arc::new(stage.see("web", "a running pod", is_running).await);
    for _ in 0..5 {
        see(vec![Sight::Restarted, Sight::Seen(Arc::clone(&pod)), Sight::Listed]);
    }
    let other = Arc::new(stage.create("other", json!({})).await);
    see(vec![Sight::Seen(other)]);
    stage.see("other", "a running pod", is_running).await;
    assert_eq!((run.spy.creates(uid(&pod)), run.spy.updates(uid(&pod)).len()), (1, 0));
    run.wrote(2).await;
}
