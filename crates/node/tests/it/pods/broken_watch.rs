//! Watches and lists that are not what they should be.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt as _, channel::mpsc, stream};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use serde_json::json;
use vk_node::pods::watch::PodWatchEvent;
use vk_provider::{Changes, ObservedPod, PodBundle, PodRef, Provider, Result};

use super::{
    fixture::{PodFixture, Setup, is_running, reference, see_stopped, uid, until},
    scripted_provider::{ScriptedProvider, report},
};

type Stops = Vec<(Arc<str>, u64)>;

/// A provider, with pods in its listing that it does not have.
#[derive(Clone)]
pub(super) struct Listing {
    provider: Arc<dyn Provider>,
    more: Arc<Mutex<Vec<ObservedPod>>>,
    lists: Arc<AtomicU64>,
    /// Which pod was to stop, and how many listings there had been.
    stops: Arc<Mutex<Stops>>,
}

impl Listing {
    pub(super) fn new(provider: impl Provider) -> Self {
        Self {
            provider: Arc::new(provider),
            more: Arc::default(),
            lists: Arc::default(),
            stops: Arc::default(),
        }
    }

    /// How often it was asked for its pods.
    pub(super) fn lists(&self) -> u64 {
        self.lists.load(Ordering::Relaxed)
    }

    /// How many listings there had been each time when this pod was to stop.
    pub(super) fn stops(&self, uid: &str) -> Vec<u64> {
        self.stops.lock().iter().filter(|(known, _)| &**known == uid).map(|(_, lists)| *lists).collect()
    }

    /// Lists a pod of this UID too.
    pub(super) fn also(&self, uid: &str, node: Option<&str>) {
        let pod = PodRef::new("default", uid, uid);
        let node = node.map(str::to_owned);
        self.more.lock().push(ObservedPod { pod, node, status: PodStatus::default() });
    }
}

#[async_trait]
impl Provider for Listing {
    async fn create_pod(&self, pod: PodBundle) -> Result<()> {
        self.provider.create_pod(pod).await
    }

    async fn update_pod(&self, pod: PodBundle) -> Result<()> {
        self.provider.update_pod(pod).await
    }

    async fn delete_pod(&self, pod: &PodRef, last_known: Option<Arc<Pod>>, grace: Duration) -> Result<()> {
        self.stops.lock().push((Arc::clone(&pod.uid), self.lists()));
        self.provider.delete_pod(pod, last_known, grace).await
    }

    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
        self.provider.pod_status(pod).await
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        let mut pods = self.provider.pods().await?;
        pods.extend(self.more.lock().iter().cloned());
        Ok(pods)
    }

    fn changes(&self) -> Changes {
        self.provider.changes()
    }
}

fn see(sender: &mpsc::UnboundedSender<PodWatchEvent>, pod_watch: impl IntoIterator<Item = PodWatchEvent>) {
    for event in pod_watch {
        sender.unbounded_send(event).unwrap();
    }
}

/// A delete in a gap of the watch shows in the listing after it, by the pod's absence.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_delete_that_a_watch_gap_hides_is_noticed_by_the_next_listing() {
    let fixture = PodFixture::admin("gap").await;
    let mock = fixture.mock();
    let (sender, pod_watch) = mpsc::unbounded();
    let setup = Setup { pod_watch: Some(pod_watch.boxed()), ..Setup::default() };
    let run = fixture.start_with(mock.clone(), setup);
    let pod = fixture.create("web", json!({})).await;
    let other = fixture.create("other", json!({})).await;
    let (pod, other) = (Arc::new(pod), Arc::new(other));
    see(
        &sender,
        [
            PodWatchEvent::Restarted,
            PodWatchEvent::Applied(Arc::clone(&pod)),
            PodWatchEvent::Applied(Arc::clone(&other)),
            PodWatchEvent::Listed,
        ],
    );
    fixture.see("web", "a running pod", is_running).await;
    fixture.delete("web", Some(0)).await;
    // A namesake came in the same gap.
    let new = Arc::new(fixture.create("web", json!({})).await);
    see(
        &sender,
        [
            PodWatchEvent::Restarted,
            PodWatchEvent::Applied(other),
            PodWatchEvent::Applied(Arc::clone(&new)),
            PodWatchEvent::Listed,
        ],
    );
    see_stopped(&mock, &pod).await;
    let running = fixture.see("web", "the namesake", is_running).await;
    assert_eq!(uid(&running), uid(&new));
    assert_eq!(run.recorder.deletes(uid(&pod)).len(), 1);
    assert_eq!(mock.creations(uid(&pod)).await.unwrap(), 1);
}

/// Even without a listing, the answer to a write tells that the pod is gone; and what the watch says late about it does not
/// bring it back.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_write_that_finds_no_pod_ends_it_and_late_news_do_not_bring_it_back() {
    let fixture = PodFixture::admin("late").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let (sender, pod_watch) = mpsc::unbounded();
    let setup = Setup { pod_watch: Some(pod_watch.boxed()), ..Setup::default() };
    let run = fixture.start_with(provider.clone(), setup);
    let first = Arc::new(fixture.create("web", json!({})).await);
    see(
        &sender,
        [PodWatchEvent::Restarted, PodWatchEvent::Applied(Arc::clone(&first)), PodWatchEvent::Listed],
    );
    let pod = fixture.see("web", "a running pod", is_running).await;
    let late = fixture.patch("web", json!({"metadata": {"labels": {"late": "news"}}})).await;
    fixture.delete("web", Some(0)).await;
    provider.set(&reference(&pod), report("Running", &json!({"running": {}}), 1));
    until("a stop", || run.recorder.deletes(uid(&pod)), |graces| graces.len() == 1).await;
    see_stopped(&provider, &pod).await;
    see(&sender, [PodWatchEvent::Applied(Arc::new(late))]);
    // Another pod's whole way, behind the late news.
    let other = Arc::new(fixture.create("other", json!({})).await);
    see(&sender, [PodWatchEvent::Applied(other)]);
    fixture.see("other", "a running pod", is_running).await;
    assert_eq!(run.recorder.creates(uid(&pod)), 1, "it is gone, whatever the watch says late");
    assert!(provider.pod_status(&reference(&pod)).await.is_err());
}

/// While the watch has not come up, nothing is taken for a leftover.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn without_a_watch_no_pod_is_cleaned_up() {
    let fixture = PodFixture::admin("nowatch").await;
    let run = fixture.start(fixture.mock());
    let pod = fixture.create_running("web", json!({})).await;
    run.stop().await;
    let mock = fixture.mock();
    let setup = Setup {
        pod_watch: Some(stream::pending().boxed()),
        compare: Duration::from_millis(50),
        ..Setup::default()
    };
    let run = fixture.start_with(mock.clone(), setup);
    // The controller is awake for long enough when another one, beside it, has done a pod's whole way.
    let helper = fixture.start(fixture.mock());
    until("adoption", || helper.recorder.creates(uid(&pod)), |count| *count == 1).await;
    fixture.create_running("other", json!({})).await;
    assert!(run.recorder.deletes(uid(&pod)).is_empty());
    assert!(is_running(&fixture.get("web").await.unwrap()));
}

/// The pod is gone, and what hangs for it is dropped.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_create_that_hangs_does_not_outlive_a_pod_that_the_next_listing_does_not_have() {
    let fixture = PodFixture::admin("gaphang").await;
    let mock = fixture.mock();
    mock.faults().set(vk_provider_mock::Call::Create, vk_provider_mock::Fault::hang());
    let (sender, pod_watch) = mpsc::unbounded();
    let setup = Setup { pod_watch: Some(pod_watch.boxed()), ..Setup::default() };
    let run = fixture.start_with(mock.clone(), setup);
    let pod = Arc::new(fixture.create("web", json!({})).await);
    see(&sender, [PodWatchEvent::Restarted, PodWatchEvent::Applied(Arc::clone(&pod)), PodWatchEvent::Listed]);
    until("a create", || run.recorder.creates(uid(&pod)), |count| *count == 1).await;
    fixture.delete("web", Some(0)).await;
    see(&sender, [PodWatchEvent::Restarted, PodWatchEvent::Listed]);
    until("a stop", || run.recorder.deletes(uid(&pod)), |graces| graces.len() == 1).await;
    mock.faults().clear_all();
    let other = Arc::new(fixture.create("other", json!({})).await);
    see(&sender, [PodWatchEvent::Applied(other)]);
    fixture.see("other", "a running pod", is_running).await;
    assert_eq!(mock.creations(uid(&pod)).await.unwrap(), 0);
}
