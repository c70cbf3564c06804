//! The fixture of these tests: a node's name, a namespace, a backend that outlives controllers, and controllers.

use std::{
    fmt::Debug,
    future::Future,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{ContainerStatus, Event, Node, Pod, PodCondition, PodStatus};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use vk_kube::{Client, Fence};
use vk_node::{
    pods::{
        Controller, Policy,
        pod_store::PodStore,
        shared_trial_watch::SharedTrialWatch,
        watch::{PodWatch, of_node},
    },
    resolve::{Limits, ResolverFactory, ServiceCache, Sources},
};
use vk_provider::{PodRef, Provider};
use vk_provider_mock::{Mock, PodHost};
use vk_supervisor::{Clock, Supervisor, task};
use vk_testing::{ControlPlane, eventually};

use super::recording_provider::RecordingProvider;
use crate::harness::{SOON, Who};

pub(super) const HOST_IP: &str = "192.0.2.7";

/// A node's name, a namespace for its pods, and the backend in which they live.
pub(super) struct PodFixture<'a> {
    who: Who,
    pub(super) cluster: &'a ControlPlane,
    pub(super) node: String,
    pub(super) namespace: String,
    pub(super) pods: Api<Pod>,
    pub(super) host: PodHost,
}

/// What a controller is started with, beside its provider.
pub(super) struct Setup {
    /// How often the provider's pods are compared with the API server's.
    pub(super) compare: Duration,
    /// In place of a watch.
    pub(super) pod_watch: Option<PodWatch>,
    /// Whether the node takes pods on trial.
    pub(super) takes_trials: bool,
    /// When a pod that does not stop leaves all the same.
    pub(super) force_after: Option<Duration>,
    /// The other policies.
    pub(super) policy: Policy,
    /// The Node, for decisions about pods.
    pub(super) node_object: watch::Receiver<Option<Arc<Node>>>,
    /// What writes and calls have to pass.
    pub(super) fence: Option<Fence>,
    /// The node's wall clock.
    pub(super) clock: Clock,
}

/// A running controller.
pub(super) struct Run {
    pub(super) recorder: Arc<RecordingProvider>,
    supervisor: Supervisor,
    _kill: oneshot::Sender<()>,
    ended: watch::Receiver<bool>,
    requests: Registry,
}

// === impl Setup ===

impl Default for Setup {
    fn default() -> Self {
        Self {
            compare: Duration::from_mins(1),
            pod_watch: None,
            takes_trials: false,
            force_after: None,
            fence: None,
            clock: Clock::system(),
            policy: Policy::default(),
            node_object: watch::Sender::new(None).subscribe(),
        }
    }
}

// === impl PodFixture ===

impl PodFixture<'static> {
    pub(super) async fn new(who: Who, prefix: &str) -> Self {
        Self::on(ControlPlane::shared().await, who, prefix).await
    }

    pub(super) async fn admin(prefix: &str) -> Self {
        Self::new(Who::Admin, prefix).await
    }
}

impl<'a> PodFixture<'a> {
    pub(super) async fn on(cluster: &'a ControlPlane, who: Who, prefix: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let node = format!("pods-{prefix}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let admin = cluster.admin().unwrap();
        let namespace = cluster.namespace(prefix).await.unwrap().name().to_owned();
        if who == Who::Node {
            let object: Node = serde_json::from_value(json!({"metadata": {"name": node}})).unwrap();
            let nodes = Api::<Node>::all(admin.clone());
            nodes.create(&PostParams::default(), &object).await.unwrap();
            let room = json!({"status": {"allocatable": {"cpu": "4"}, "capacity": {"cpu": "4"}}});
            nodes.patch_status(&node, &PatchParams::default(), &Patch::Merge(room)).await.unwrap();
        }
        let pods = Api::namespaced(admin, &namespace);
        Self { who, cluster, node, namespace, pods, host: PodHost::default() }
    }

    /// A mock on the backend of this fixture.
    pub(super) fn mock(&self) -> Mock {
        Mock::builder(self.node.as_str()).host(self.host.clone()).host_ip(HOST_IP.parse().unwrap()).build()
    }

    pub(super) fn client(&self, requests: &mut Registry) -> Client {
        let api = match self.who {
            Who::Admin => self.cluster.admin().unwrap(),
            Who::Node => self.cluster.node_client(&self.node).unwrap(),
        };
        Client::fixed(api, vk_kube::Metrics::register(requests))
    }

    pub(super) fn start(&self, provider: impl Provider) -> Run {
        self.start_with(provider, Setup::default())
    }

    pub(super) fn start_with(&self, provider: impl Provider, setup: Setup) -> Run {
        let mut requests = Registry::default();
        let mut client = self.client(&mut requests);
        if let Some(fence) = setup.fence {
            client = client.fenced(fence);
        }
        let recorder = Arc::new(RecordingProvider::new(Arc::new(provider)));
        let supervisor = Supervisor::new();
        let sources = Sources {
            services: ServiceCache::new(client.clone(), &supervisor),
            client: client.clone(),
            node: self.node.clone(),
            ips: vec![HOST_IP.parse().unwrap()],
            observed_node: setup.node_object.clone(),
            clock: Clock::system(),
            limits: Limits::default(),
            watches: Gauge::default(),
        };
        let resolvers = ResolverFactory::new(sources, &supervisor);
        let controller = Controller {
            trial_watch: setup
                .takes_trials
                .then(|| SharedTrialWatch::new(client.clone(), &supervisor).for_node(&self.node)),
            node: self.node.clone(),
            provider: Arc::clone(&recorder) as Arc<dyn Provider>,
            policy: Policy {
                host_ips: vec![HOST_IP.to_owned()],
                compare: setup.compare,
                force_after: setup.force_after,
                may_label: self.who == Who::Admin,
                ..setup.policy
            },
            node_object: setup.node_object,
            audit_failure: watch::Sender::new(None),
            pod_watch: setup.pod_watch.unwrap_or_else(|| of_node(client.clone(), &self.node)),
            pod_store: PodStore::default(),
            client,
            resolvers,
            clock: setup.clock,
        };
        let (kill, killed) = oneshot::channel();
        let (end, ended) = watch::channel(false);
        let run = Box::pin(controller.run(supervisor.clone()));
        supervisor.spawn("pods", task::Kind::Work, async move {
            tokio::select! {
                () = run => {}
                _ = killed => {}
            }
            end.send_replace(true);
        });
        Run { recorder, supervisor, _kill: kill, ended, requests }
    }

    /// A pod that is bound to the node, with `more` merged into it.
    pub(super) fn pod(&self, name: &str, more: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "nodeName": self.node,
                "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": "example.com/app:1"}],
            },
        });
        merge(&mut pod, more);
        serde_json::from_value(pod).unwrap()
    }

    pub(super) async fn create(&self, name: &str, more: Value) -> Pod {
        self.pods.create(&PostParams::default(), &self.pod(name, more)).await.unwrap()
    }

    /// A pod, as soon as it runs and is ready.
    pub(super) async fn create_running(&self, name: &str, more: Value) -> Pod {
        self.create(name, more).await;
        self.see(name, "a running pod", is_running).await
    }

    pub(super) async fn get(&self, name: &str) -> Option<Pod> {
        self.pods.get_opt(name).await.unwrap()
    }

    pub(super) async fn delete(&self, name: &str, grace: Option<u32>) {
        let params = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
        self.pods.delete(name, &params).await.unwrap();
    }

    /// Changes the pod as somebody else.
    pub(super) async fn patch(&self, name: &str, body: Value) -> Pod {
        let params = PatchParams { field_manager: Some("somebody".to_owned()), ..PatchParams::default() };
        self.pods.patch(name, &params, &Patch::Strategic(body)).await.unwrap()
    }

    /// Changes the pod's status as somebody else.
    pub(super) async fn patch_status(&self, name: &str, body: Value) -> Pod {
        let params = PatchParams { field_manager: Some("somebody".to_owned()), ..PatchParams::default() };
        self.pods.patch_status(name, &params, &Patch::Strategic(body)).await.unwrap()
    }

    /// Waits until the pod is as `check` wants it.
    #[track_caller]
    pub(super) fn see<'c>(
        &'c self,
        name: &'c str,
        what: &'c str,
        check: impl Fn(&Pod) -> bool + 'c,
    ) -> impl Future<Output = Pod> + 'c {
        let check = Rc::new(check);
        eventually(what, SOON, move || {
            let check = Rc::clone(&check);
            async move {
                let found = self.pods.get(name).await.map_err(|error| error.to_string())?;
                if check(&found) { Ok(found) } else { Err(serde_json::to_string(&found).unwrap()) }
            }
        })
    }

    /// Waits until the API server has no pod of this UID.
    #[track_caller]
    pub(super) fn see_gone<'c>(&'c self, pod: &'c Pod) -> impl Future<Output = ()> + 'c {
        eventually("the pod has left the API server", SOON, move || async move {
            let name = pod.metadata.name.as_deref().unwrap();
            match self.pods.get_opt(name).await.map_err(|error| error.to_string())? {
                Some(found) if found.metadata.uid == pod.metadata.uid => {
                    Err(serde_json::to_string(&found).unwrap())
                }
                _ => Ok(()),
            }
        })
    }

    /// Events on the pod.
    pub(super) async fn events(&self, pod: &Pod) -> Vec<Event> {
        let events = Api::<Event>::namespaced(self.cluster.admin().unwrap(), &self.namespace);
        let list = ListParams::default().fields(&format!("involvedObject.uid={}", uid(pod)));
        events.list(&list).await.unwrap().items
    }

    /// Waits for an event on the pod.
    #[track_caller]
    pub(super) fn see_event<'c>(&'c self, pod: &'c Pod, reason: &'c str) -> impl Future<Output = Event> + 'c {
        eventually("an event on the pod", SOON, move || async move {
            let all = self.events(pod).await;
            let reasons: Vec<String> = all.iter().filter_map(|event| event.reason.clone()).collect();
            let found = all.into_iter().find(|event| event.reason.as_deref() == Some(reason));
            found.ok_or_else(|| format!("{reason} is not among {reasons:?}"))
        })
    }
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

// === impl Run ===

impl Run {
    /// Ends it as a signal would.
    pub(super) async fn stop(mut self) {
        self.supervisor.stop();
        tokio::time::timeout(SOON, self.ended.wait_for(|ended| *ended)).await.expect("an end").unwrap();
    }

    /// How many calls of this kind the API server was asked for.
    pub(super) fn requests(&self, verb: &str, resource: &str) -> u64 {
        self.answers(&[&format!("verb=\"{verb}\""), &format!("resource=\"{resource}\"")])
    }

    /// Waits until this many statuses were written, and sees that there are no more.
    #[track_caller]
    pub(super) fn wrote(&self, count: u64) -> impl Future<Output = ()> {
        let look = || self.requests("patch_status", "pods");
        async move {
            let seen = until("the writes of statuses", look, |seen| *seen >= count).await;
            assert_eq!(seen, count, "writes of statuses");
        }
    }

    /// How often the API server said that we may not.
    pub(super) fn refusals(&self) -> u64 {
        self.answers(&["result=\"Forbidden\""])
    }

    fn answers(&self, labels: &[&str]) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.requests).unwrap();
        text.lines()
            .filter(|line| labels.iter().all(|label| line.contains(label)))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }
}

/// Waits until nothing of this pod runs in the backend.
#[track_caller]
pub(super) fn see_stopped<'c>(provider: &'c dyn Provider, pod: &'c Pod) -> impl Future<Output = ()> + 'c {
    eventually("nothing of the pod runs in the backend", SOON, move || async move {
        match provider.pod_status(&reference(pod)).await {
            Ok(status) if runs(&status) => Err(format!("{status:?}")),
            _ => Ok(()),
        }
    })
}

/// Waits until `check` holds.
#[track_caller]
pub(super) fn until<'c, T: Debug + 'c>(
    what: &'c str,
    look: impl Fn() -> T + 'c,
    check: impl Fn(&T) -> bool + 'c,
) -> impl Future<Output = T> + 'c {
    eventually(what, SOON, move || {
        let seen = look();
        let good = check(&seen);
        async move { if good { Ok(seen) } else { Err(format!("{seen:?}")) } }
    })
}

// === views ===

pub(super) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap()
}

pub(super) fn reference(pod: &Pod) -> PodRef {
    PodRef::of(pod).unwrap()
}

pub(super) fn status(pod: &Pod) -> PodStatus {
    pod.status.clone().unwrap_or_default()
}

pub(super) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(super) fn message(pod: &Pod) -> String {
    status(pod).message.unwrap_or_default()
}

pub(super) fn reason(pod: &Pod) -> String {
    status(pod).reason.unwrap_or_default()
}

pub(super) fn condition(pod: &Pod, kind: &str) -> Option<PodCondition> {
    status(pod).conditions?.into_iter().find(|condition| condition.type_ == kind)
}

pub(super) fn holds(pod: &Pod, kind: &str) -> bool {
    condition(pod, kind).is_some_and(|condition| condition.status == "True")
}

pub(super) fn is_running(pod: &Pod) -> bool {
    phase(pod) == "Running" && holds(pod, "ContainersReady")
}

pub(super) fn container(pod: &Pod, name: &str) -> ContainerStatus {
    let all = status(pod).container_statuses.unwrap_or_default();
    all.into_iter().find(|one| one.name == name).unwrap_or_default()
}

fn runs(status: &PodStatus) -> bool {
    let all = status.container_statuses.iter().flatten();
    all.filter_map(|one| one.state.as_ref()).any(|state| state.terminated.is_none())
}
