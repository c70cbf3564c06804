//! The lifecycle scenarios of the Go original (`node/lifecycle_test.go`, `node/pod_test.go`), each with a provider that tells
//! of changes and with one that has to be asked. `docs/reference/tests-of-the-original.md` says which test stands for which.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt as _, channel::mpsc};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{WatchEvent, WatchParams};
use serde_json::json;
use vk_node::pods::watch::PodWatchEvent;
use vk_provider::{Changes, ObservedPod, PodBundle, PodRef, Provider, Result, error::Kind};
use vk_provider_mock::{Call, Fault, Mock};

use super::{
    fixture::{PodFixture, Setup, container, is_running, phase, reference, see_stopped, uid, until},
    scripted_provider::{ScriptedProvider, running},
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

    fn scripted_provider(self, node: &str) -> ScriptedProvider {
        if self == Self::Told { ScriptedProvider::new(node) } else { ScriptedProvider::polled(node, PERIOD) }
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
    let fixture = PodFixture::admin("original").await;
    let mock = fixture.mock();
    let run = fixture.start(way.provider(&mock));
    let pod = fixture.create_running("web", json!({"spec": {"restartPolicy": "Never"}})).await;
    assert_eq!((run.recorder.creates(uid(&pod)), run.recorder.updates(uid(&pod)).len()), (1, 0));
    let selected = WatchParams::default().fields("metadata.name=web");
    let version = pod.metadata.resource_version.as_deref().unwrap();
    let watched = fixture.pods.watch(&selected, version).await.unwrap();
    let deleted = watched.filter_map(|event| async {
        if let Ok(WatchEvent::Deleted(pod)) = event { Some(pod) } else { None }
    });
    fixture.delete("web", Some(10)).await;
    let deleted = tokio::time::timeout(SOON, Box::pin(deleted).next()).await.expect("an end").unwrap();
    assert_eq!(phase(&deleted), "Succeeded");
    let last = container(&deleted, "main").state.unwrap().terminated.unwrap();
    assert!(last.started_at.is_some() && last.finished_at.is_some(), "{last:?}");
    assert_eq!((run.recorder.creates(uid(&pod)), run.recorder.deletes(uid(&pod)).len()), (1, 1));
}

async fn a_deleted_pod_that_the_provider_does_not_know_leaves(way: Way) {
    let fixture = PodFixture::admin("unknown").await;
    let mock = fixture.mock();
    let run = fixture.start(way.provider(&mock));
    let pod = fixture.create_running("web", json!({})).await;
    mock.faults().set(Call::Delete, Fault::error(Kind::NotFound, "no such pod"));
    fixture.delete("web", Some(10)).await;
    fixture.see_gone(&pod).await;
    // Once more if a status that was being written meets a pod that is gone.
    let deletes = run.recorder.deletes(uid(&pod)).len();
    assert!((1..=2).contains(&deletes), "{deletes}");
}

async fn a_deleted_pod_stays_while_the_provider_fails_to_stop_it(way: Way) {
    let fixture = PodFixture::admin("random").await;
    let mock = fixture.mock();
    let run = fixture.start(way.provider(&mock));
    let pod = fixture.create_running("web", json!({})).await;
    mock.faults().set(Call::Delete, Fault::error(Kind::Internal, "random error"));
    fixture.delete("web", Some(10)).await;
    until("another stop", || run.recorder.deletes(uid(&pod)).len(), |count| *count >= 2).await;
    let kept = fixture.get("web").await.expect("a pod that still runs stays");
    assert!(kept.metadata.deletion_timestamp.is_some());
    mock.faults().clear_all();
    fixture.see_gone(&pod).await;
}

async fn a_pod_that_only_the_provider_knows_is_stopped_once(way: Way) {
    let fixture = PodFixture::admin("dangling").await;
    let run = fixture.start(way.provider(&fixture.mock()));
    // What has ended and can still be read would be told again.
    let script = json!({"metadata": {"annotations": {"mock.virtual-kubelet.io/keep-ended": "0s"}}});
    let pod = fixture.create_running("web", script).await;
    run.stop().await;
    fixture.delete("web", Some(0)).await;
    let mock = fixture.mock();
    let setup = Setup { compare: Duration::from_millis(100), ..Setup::default() };
    let run = fixture.start_with(way.provider(&mock), setup);
    see_stopped(&mock, &pod).await;
    let lists = mock.calls(Call::List);
    until("more comparisons", || mock.calls(Call::List), |count| *count >= lists + 3).await;
    assert_eq!(run.recorder.deletes(uid(&pod)).len(), 1);
    assert_eq!(run.recorder.creates(uid(&pod)), 0);
}

async fn a_pod_that_was_deleted_before_the_start_is_stopped(way: Way) {
    let fixture = PodFixture::admin("deleted").await;
    let run = fixture.start(way.provider(&fixture.mock()));
    let pod = fixture.create_running("web", json!({})).await;
    run.stop().await;
    fixture.delete("web", Some(10)).await;
    let mock = fixture.mock();
    let run = fixture.start(way.provider(&mock));
    fixture.see_gone(&pod).await;
    see_stopped(&mock, &pod).await;
    assert_eq!((run.recorder.creates(uid(&pod)), run.recorder.deletes(uid(&pod)).len()), (0, 1));
}

async fn a_pod_that_had_ended_before_the_start_is_left_alone(way: Way) {
    let fixture = PodFixture::admin("ended").await;
    let mut pods = Vec::new();
    for (name, phase) in [("failed", "Failed"), ("succeeded", "Succeeded")] {
        fixture.create(name, json!({"spec": {"restartPolicy": "Never"}})).await;
        pods.push(fixture.patch_status(name, json!({"status": {"phase": phase}})).await);
    }
    let mock = fixture.mock();
    let run = fixture.start(way.provider(&mock));
    // Another pod's whole way.
    let other = fixture.create_running("other", json!({})).await;
    fixture.delete("other", Some(10)).await;
    fixture.see_gone(&other).await;
    for pod in pods {
        let now = fixture.get(pod.metadata.name.as_deref().unwrap()).await.unwrap();
        assert_eq!(
            now.metadata.resource_version, pod.metadata.resource_version,
            "somebody wrote it: {now:?}"
        );
        assert_eq!(run.recorder.creates(uid(&pod)), 0);
        assert!(run.recorder.deletes(uid(&pod)).is_empty());
    }
}

async fn a_change_of_a_running_pod_is_an_update(way: Way) {
    let fixture = PodFixture::admin("changes").await;
    let mock = fixture.mock();
    let run = fixture.start(way.provider(&mock));
    let pod = fixture.create_running("web", json!({})).await;
    fixture.patch("web", json!({"spec": {"activeDeadlineSeconds": 3600}})).await;
    let updates = until("an update", || run.recorder.updates(uid(&pod)), |all| !all.is_empty()).await;
    assert_eq!(updates[0].spec.as_ref().unwrap().active_deadline_seconds, Some(3600));
    assert_eq!(updates.len(), 1);
}

/// A backend that knows of the pod and has nothing to say yet.
async fn an_empty_status_does_no_harm(way: Way) {
    let fixture = PodFixture::admin("empty").await;
    let provider = way.scripted_provider(&fixture.node);
    let run = fixture.start(provider.clone());
    let pod = fixture.create_running("web", json!({})).await;
    provider.set(&reference(&pod), PodStatus::default());
    // Another pod's whole way.
    let other = fixture.create_running("other", json!({})).await;
    fixture.delete("other", Some(10)).await;
    fixture.see_gone(&other).await;
    assert_eq!(phase(&fixture.get("web").await.unwrap()), "Running");
    assert_eq!(run.recorder.creates(uid(&pod)), 1);
    provider.set(&reference(&pod), running());
    fixture.see("web", "a running pod", is_running).await;
    fixture.delete("web", Some(10)).await;
    fixture.see_gone(&pod).await;
}

/// Nobody resolves on the way what the provider may want to resolve itself.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_reaches_the_provider_as_the_api_server_has_it() {
    let fixture = PodFixture::admin("untouched").await;
    let run = fixture.start(fixture.mock());
    let field = |path: &str| json!({"fieldRef": {"apiVersion": "v1", "fieldPath": path}});
    let env = json!([
        {"name": "NAME", "valueFrom": field("metadata.name")},
        {"name": "PLACE", "valueFrom": field("spec.nodeName")},
        {"name": "ECHO", "value": "$(NAME) and $$(NAME)"},
        {"name": "FIRST", "value": "1"},
    ]);
    let containers = json!([{"name": "main", "image": "example.com/app:1", "env": env}]);
    let pod = fixture.create("web", json!({"spec": {"containers": containers}})).await;
    let created = until("a create", || run.recorder.created(uid(&pod)), |all| !all.is_empty()).await;
    assert_eq!(created[0].spec, pod.spec);
    assert_eq!(created[0].metadata.name, pod.metadata.name);
}

/// A listing repeats what is known; that is no change.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_is_seen_again_unchanged_is_no_update() {
    let fixture = PodFixture::admin("unchanged").await;
    let (sender, pod_watch) = mpsc::unbounded();
    let setup = Setup { pod_watch: Some(pod_watch.boxed()), ..Setup::default() };
    let run = fixture.start_with(fixture.mock(), setup);
    let created = Arc::new(fixture.create("web", json!({})).await);
    let see = |pod_watch: Vec<PodWatchEvent>| {
        for event in pod_watch {
            sender.unbounded_send(event).unwrap();
        }
    };
    see(vec![PodWatchEvent::Restarted, PodWatchEvent::Applied(created), PodWatchEvent::Listed]);
    let pod = Arc::new(fixture.see("web", "a running pod", is_running).await);
    for _ in 0..5 {
        see(vec![PodWatchEvent::Restarted, PodWatchEvent::Applied(Arc::clone(&pod)), PodWatchEvent::Listed]);
    }
    let other = Arc::new(fixture.create("other", json!({})).await);
    see(vec![PodWatchEvent::Applied(other)]);
    fixture.see("other", "a running pod", is_running).await;
    assert_eq!((run.recorder.creates(uid(&pod)), run.recorder.updates(uid(&pod)).len()), (1, 0));
    run.wrote(2).await;
}
