//! Test fixture: a node with an identity, and controllers that run it.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    future::Future,
    net::{IpAddr, Ipv4Addr},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Event, Node, NodeCondition, Taint},
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use prometheus_client::registry::Registry;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::sync::{oneshot, watch};
use vk_kube::{
    Client, Instance,
    lease::{INSTANCE_ANNOTATION, LeaseConflict, LeaseTimes},
};
use vk_node::{
    node::{self, Controller, Metrics, NodeConfig, OnStop, Progress, Settings, SharedNodeWatch},
    pods::watch_audit::AuditFailure,
};
use vk_provider_mock::Mock;
use vk_supervisor::{Clock, Supervisor, task};
use vk_testing::{ControlPlane, eventually, kubectl};

use crate::scripted_provider::ScriptedProvider;

/// Generous, because test machines are busy. Tests that need speed measure it.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// The identity of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Admin,
    Node,
}

/// A node with its identity, and the administrator's view of it.
pub(crate) struct NodeTest<'a> {
    pub(crate) cluster: &'a ControlPlane,
    pub(crate) who: Who,
    pub(crate) name: String,
    pub(crate) nodes: Api<Node>,
    pub(crate) leases: Api<Lease>,
}

/// Parameters of a controller.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) settings: Settings,
    pub(crate) instance: Instance,
    /// A shared watch, instead of a separate one.
    pub(crate) watch: Option<SharedNodeWatch>,
    /// Another client than one with the fixture's identity.
    pub(crate) client: Option<Client>,
    /// Failures of the audit of the pod watch.
    pub(crate) audit_failure: watch::Receiver<Option<Arc<AuditFailure>>>,
    /// The fingerprint of the serving key.
    pub(crate) serving_key: watch::Receiver<Option<Arc<str>>>,
}

/// A running controller.
pub(crate) struct RunningController {
    pub(crate) mock: Mock,
    pub(crate) provider: Arc<ScriptedProvider>,
    pub(crate) progress: watch::Receiver<Progress>,
    supervisor: Supervisor,
    kill: oneshot::Sender<()>,
    end: watch::Receiver<Option<Result<(), LeaseConflict>>>,
    requests: Registry,
}

/// Runs a test under both identities.
macro_rules! under_both_identities {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            #[tokio::test]
            #[ignore = "needs the control plane: make test"]
            async fn as_admin() {
                Box::pin(super::$name($crate::harness::Who::Admin)).await;
            }

            #[tokio::test]
            #[ignore = "needs the control plane: make test"]
            async fn as_the_node() {
                Box::pin(super::$name($crate::harness::Who::Node)).await;
            }
        }
    )+};
}
pub(crate) use under_both_identities;

/// Runs a test that mostly waits under both identities at once.
macro_rules! under_both_identities_at_once {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            #[tokio::test]
            #[ignore = "needs the control plane: make test"]
            async fn as_admin_and_as_the_node() {
                let both = [$crate::harness::Who::Admin, $crate::harness::Who::Node];
                futures::future::join_all(both.map(|who| Box::pin(super::$name(who)))).await;
            }
        }
    )+};
}
pub(crate) use under_both_identities_at_once;

// === impl Setup ===

impl Default for Setup {
    fn default() -> Self {
        Self {
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            taints: vec![taint("virtual-kubelet.io/provider", "mock", "NoSchedule")],
            settings: Settings {
                ping_interval: Duration::from_millis(200),
                ping_timeout: Duration::from_secs(1),
                status_interval: Duration::from_mins(5),
                lease: LeaseTimes {
                    duration: Duration::from_secs(40),
                    renew_deadline: Duration::from_secs(27),
                    standby: None,
                },
                on_stop: OnStop::Leave,
            },
            instance: Instance::current(),
            watch: None,
            client: None,
            audit_failure: watch::Sender::new(None).subscribe(),
            serving_key: watch::Sender::new(None).subscribe(),
        }
    }
}

impl Setup {
    /// A lease that is renewed every second.
    pub(crate) fn short_lease(mut self) -> Self {
        self.settings.lease.duration = Duration::from_secs(4);
        self.settings.lease.renew_deadline = Duration::from_secs(3);
        self
    }

    /// As if a process on another machine ran it.
    pub(crate) fn elsewhere(self) -> Self {
        Self { instance: "elsewhere/boot/pid:[1]/4711/1".parse().unwrap(), ..self }
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }
}

// === impl NodeTest ===

impl NodeTest<'static> {
    pub(crate) async fn shared(who: Who, prefix: &str) -> Self {
        Self::on(ControlPlane::shared().await, who, prefix)
    }
}

impl<'a> NodeTest<'a> {
    pub(crate) fn on(cluster: &'a ControlPlane, who: Who, prefix: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let admin = cluster.admin().unwrap();
        Self {
            cluster,
            who,
            name: format!(
                "{prefix}-{}-{}",
                if who == Who::Node { "node" } else { "admin" },
                COUNT.fetch_add(1, Ordering::Relaxed)
            ),
            nodes: Api::all(admin.clone()),
            leases: Api::namespaced(admin, "kube-node-lease"),
        }
    }

    /// The same node with another identity.
    pub(crate) fn as_who(&self, who: Who) -> Self {
        let (nodes, leases) = (self.nodes.clone(), self.leases.clone());
        Self { cluster: self.cluster, who, name: self.name.clone(), nodes, leases }
    }

    /// Starts a controller and returns at once.
    pub(crate) fn start(&self, setup: Setup) -> RunningController {
        let mock = Mock::builder(self.name.as_str()).build();
        let provider = Arc::new(ScriptedProvider::new(mock.clone()));
        let mut requests = Registry::default();
        let api = match self.who {
            Who::Admin => self.cluster.admin().unwrap(),
            Who::Node => self.cluster.node_client(&self.name).unwrap(),
        };
        let fixed = || Client::fixed(api, vk_kube::Metrics::register(&mut requests));
        let client = setup.client.unwrap_or_else(fixed);
        let (sender, progress) = watch::channel(Progress::default());
        let controller = Controller {
            config: NodeConfig {
                name: self.name.clone(),
                internal_ip: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)),
                external_ip: None,
                hostname: None,
                kubelet_port: 10_250,
                operating_system: "linux".to_owned(),
                kubelet_version: "v1.36.4-vk-test".to_owned(),
                labels: setup.labels,
                annotations: setup.annotations,
                taints: setup.taints,
                declared_features: None,
            },
            provider: provider.clone(),
            settings: setup.settings,
            observations: match setup.watch {
                Some(shared) => shared.subscribe(&self.name),
                None => node::watch::watch_one(client.clone(), &self.name),
            },
            client,
            restricted: self.who == Who::Node,
            clock: Clock::system(),
            metrics: Metrics::default(),
            instance: setup.instance,
            audit_failure: setup.audit_failure,
            serving_key: setup.serving_key,
            progress: sender,
            observed_node: watch::Sender::new(None),
        };
        let supervisor = Supervisor::new();
        let (kill, killed) = oneshot::channel();
        let (ended, end) = watch::channel(None);
        let run = Box::pin(controller.run(supervisor.clone()));
        supervisor.spawn("node", task::Kind::Work, async move {
            tokio::select! {
                result = run => { ended.send_replace(Some(result)); }
                Ok(()) = killed => {}
            }
        });
        RunningController { mock, provider, progress, supervisor, kill, end, requests }
    }

    /// Starts a controller and waits until the node is Ready.
    pub(crate) async fn start_ready(&self, setup: Setup) -> RunningController {
        let mut controller = self.start(setup);
        let ready = controller.progress.wait_for(|progress| progress.ready);
        tokio::time::timeout(SOON, ready).await.expect("Ready in time").unwrap();
        controller
    }

    pub(crate) async fn node(&self) -> Node {
        self.nodes.get(&self.name).await.unwrap()
    }

    pub(crate) async fn lease(&self) -> Lease {
        self.leases.get(&self.name).await.unwrap()
    }

    /// Waits until the Node satisfies `check`.
    #[track_caller]
    pub(crate) fn wait_for<'c>(
        &'c self,
        what: &'c str,
        check: impl Fn(&Node) -> bool + 'c,
    ) -> impl Future<Output = Node> + 'c {
        wait_for(&self.nodes, &self.name, what, check)
    }

    /// Waits until the lease satisfies `check`.
    #[track_caller]
    pub(crate) fn wait_for_lease<'c>(
        &'c self,
        what: &'c str,
        check: impl Fn(&Lease) -> bool + 'c,
    ) -> impl Future<Output = Lease> + 'c {
        wait_for(&self.leases, &self.name, what, check)
    }

    /// Waits for an event on the node.
    #[track_caller]
    pub(crate) fn wait_for_event(&self, reason: &str) -> impl Future<Output = Event> {
        let events = Api::<Event>::namespaced(self.cluster.admin().unwrap(), "default");
        let list = ListParams::default().fields(&format!("involvedObject.name={}", self.name));
        eventually("an event on the node", SOON, move || {
            let (events, list) = (events.clone(), list.clone());
            async move {
                let all = events.list(&list).await.map_err(|error| error.to_string())?.items;
                let reasons: Vec<String> = all.iter().filter_map(|event| event.reason.clone()).collect();
                let found = all.into_iter().find(|event| event.reason.as_deref() == Some(reason));
                found.ok_or_else(|| format!("{reason} is not among {reasons:?}"))
            }
        })
    }

    /// Changes the Node with another field manager.
    pub(crate) async fn patch(&self, body: Value) -> Node {
        let params = PatchParams { field_manager: Some("somebody".to_owned()), ..PatchParams::default() };
        self.nodes.patch(&self.name, &params, &Patch::Strategic(body)).await.unwrap()
    }

    /// Changes the Node's status with another field manager.
    pub(crate) async fn patch_status(&self, body: Value) -> Node {
        let params = PatchParams { field_manager: Some("somebody".to_owned()), ..PatchParams::default() };
        self.nodes.patch_status(&self.name, &params, &Patch::Strategic(body)).await.unwrap()
    }

    /// Runs kubectl as the administrator.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> String {
        let output = kubectl(self.cluster, args).await.unwrap();
        assert!(output.success(), "{}", output.stderr);
        output.stdout
    }
}

#[track_caller]
fn wait_for<'c, K>(
    api: &'c Api<K>,
    name: &'c str,
    what: &'c str,
    check: impl Fn(&K) -> bool + 'c,
) -> impl Future<Output = K> + 'c
where
    K: Clone + Debug + DeserializeOwned + Serialize + 'c,
{
    let check = Rc::new(check);
    eventually(what, SOON, move || {
        let check = Rc::clone(&check);
        async move {
            let found = api.get(name).await.map_err(|error| error.to_string())?;
            if check(&found) { Ok(found) } else { Err(serde_json::to_string(&found).unwrap()) }
        }
    })
}

// === impl RunningController ===

impl RunningController {
    /// Stops it gracefully.
    pub(crate) async fn stop(mut self) -> Result<(), LeaseConflict> {
        self.supervisor.stop();
        self.end().await
    }

    /// Aborts it, like kill -9.
    pub(crate) async fn kill(mut self) {
        self.kill.send(()).unwrap();
        assert!(self.end.wait_for(Option::is_some).await.is_err(), "it ended before it was killed");
    }

    /// Waits for its end.
    pub(crate) async fn end(&mut self) -> Result<(), LeaseConflict> {
        let end = tokio::time::timeout(SOON, self.end.wait_for(Option::is_some)).await;
        end.expect("an end in time").unwrap().clone().unwrap()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.end.borrow().is_none()
    }

    /// Number of requests of this kind, optionally with this result.
    pub(crate) fn requests(&self, verb: &str, resource: &str, result: Option<&str>) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.requests).unwrap();
        let verb = format!("verb=\"{verb}\"");
        let resource = format!("resource=\"{resource}\"");
        let result = result.map(|result| format!("result=\"{result}\"")).unwrap_or_default();
        text.lines()
            .filter(|line| [&verb, &resource, &result].into_iter().all(|part| line.contains(part.as_str())))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }
}

// === views ===

pub(crate) fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// Status and reason of a condition.
pub(crate) fn state<'a>(node: &'a Node, kind: &str) -> (&'a str, &'a str) {
    condition(node, kind).map_or(("", ""), |condition| {
        (condition.status.as_str(), condition.reason.as_deref().unwrap_or_default())
    })
}

pub(crate) fn is_ready(node: &Node) -> bool {
    state(node, "Ready").0 == "True"
}

pub(crate) fn capacity(node: &Node, resource: &str) -> String {
    let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
    capacity.and_then(|all| all.get(resource)).map(|amount| amount.0.clone()).unwrap_or_default()
}

pub(crate) fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// `key=value:effect` of every taint except those of Kubernetes controllers, sorted.
pub(crate) fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let mut texts: Vec<String> = taints
        .iter()
        .filter(|taint| !taint.key.starts_with("node.kubernetes.io/"))
        .map(|taint| format!("{}={}:{}", taint.key, taint.value.as_deref().unwrap_or(""), taint.effect))
        .collect();
    texts.sort();
    texts
}

pub(crate) fn has_taint(node: &Node, key: &str) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == key)
}

pub(crate) fn taint(key: &str, value: &str, effect: &str) -> Taint {
    let value = (!value.is_empty()).then(|| value.to_owned());
    Taint { key: key.to_owned(), value, effect: effect.to_owned(), time_added: None }
}

pub(crate) fn uid(node: &Node) -> &str {
    node.metadata.uid.as_deref().unwrap()
}

pub(crate) fn renewed(lease: &Lease) -> Timestamp {
    lease.spec.as_ref().unwrap().renew_time.as_ref().unwrap().0
}

/// The UID of the Node that owns the lease.
pub(crate) fn owner(lease: &Lease) -> Option<&str> {
    let owners = lease.metadata.owner_references.as_ref()?;
    owners.iter().find(|owner| owner.kind == "Node").map(|owner| owner.uid.as_str())
}

/// The process that holds the lease.
pub(crate) fn holder(lease: &Lease) -> Option<&str> {
    lease.metadata.annotations.as_ref()?.get(INSTANCE_ANNOTATION).map(String::as_str)
}
