//! An upper cluster with its scheduler, virtual nodes with their lower clusters, and faults.

mod api_server;
mod eviction;
mod group;
mod kube_scheduler;
mod process;
mod trial;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};

use self::process::Process;
use super::lower_cluster::{Behaviour, LowerCluster, cpus};
use crate::{
    effect::{ApiCall, CallId, Input},
    names, pod_state,
    state_machine::Settings,
};

const START: &str = "2027-01-01T00:00:00Z";

/// What happens later.
enum Scheduled {
    /// The watches of a process deliver what they have.
    Deliver(u32),
    Input(u32, Box<Input>),
    /// A process begins to lead, unless another one has since so many were started.
    Start(u32),
    /// A process that does not lead any more ends.
    End(u32),
    /// A controller creates a pod again.
    Create(Box<Pod>),
    Bind(String),
    CreateBelow(String),
    Wake(u32, Duration),
    Remove(String),
    SyncNode(String, String),
    /// A call takes effect.
    Call(u32, CallId, Box<ApiCall>),
}

/// What goes wrong, as probabilities.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// A call fails without an effect.
    pub(super) fails: f64,
    /// A call takes effect, and its answer is lost.
    pub(super) lost: f64,
    /// The scheduler does not bind a pod.
    pub(super) unbound: f64,
    /// The longest delay of the watch, of answers and of the scheduler.
    pub(super) delay: Duration,
    /// The longest time until a call takes effect. The process may have crashed by then, and another one leads.
    pub(super) late: Duration,
}

pub(super) struct World {
    /// The last one leads.
    processes: Vec<Process>,
    settings: Settings,
    pub(super) now: Duration,
    pub(super) pods: BTreeMap<String, Pod>,
    nodes: BTreeMap<String, Node>,
    pub(super) lower: BTreeMap<String, LowerCluster>,
    queue: BTreeMap<(Duration, u64), Scheduled>,
    sequence: u64,
    /// The version of the last write.
    version: u64,
    pub(super) rng: StdRng,
    pub(super) faults: Faults,
    /// Counts processes.
    started: u32,
    /// Writes to the API server by placement.
    pub(super) writes: u32,
    pub(super) evicted: Vec<String>,
    /// How many of them were bound.
    pub(super) descheduled: u32,
    /// Whether controllers create other pods for those that are evicted.
    pub(super) recreates: bool,
    pub(super) avoid_writes: u32,
    /// Calls that would write the avoid table.
    pub(super) avoid_calls: u32,
    pub(super) config_map: BTreeMap<String, String>,
    pub(super) events: Vec<(String, &'static str, String)>,
    /// Pods that waited in a lower cluster.
    pub(super) waited_below: u32,
    /// Trials that were begun.
    pub(super) trials: u32,
    pub(super) scheduler_is_away: bool,
    /// kube-scheduler binds no pod to this node, for reasons that placement does not know.
    pub(super) forbidden: Option<String>,
    /// When a pod of a group was deleted.
    group_changes: BTreeMap<String, Duration>,
    /// What happened, if a test wants to know.
    pub(super) trace: Option<Vec<String>>,
}

impl World {
    pub(super) fn new(seed: u64, settings: Settings) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        Self {
            processes: Vec::new(),
            settings,
            now: Duration::from_secs(1),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            lower: BTreeMap::new(),
            queue: BTreeMap::new(),
            sequence: 0,
            version: 0,
            rng,
            faults: Faults::default(),
            started: 0,
            writes: 0,
            evicted: Vec::new(),
            descheduled: 0,
            recreates: false,
            avoid_writes: 0,
            avoid_calls: 0,
            config_map: BTreeMap::new(),
            events: Vec::new(),
            waited_below: 0,
            trials: 0,
            scheduler_is_away: false,
            forbidden: None,
            group_changes: BTreeMap::new(),
            trace: None,
        }
    }

    /// Adds a virtual node with its lower nodes.
    pub(super) fn add_virtual_node(&mut self, name: &str, lower_nodes: usize, cpus: i64) {
        let lower = LowerCluster::new(lower_nodes, cpus);
        let node = json!({
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/hostname": name},
                "annotations": {"virtual-kubelet.io/placement": "fit,trial"},
            },
            "spec": {"taints": [{"key": "virtual-kubelet.io/provider", "value": "cluster", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": {"cpu": lower.total().to_string(), "pods": "1000"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        self.lower.insert(name.to_owned(), lower);
        self.apply_node(serde_json::from_value(node).unwrap());
    }

    /// Adds a node of the upper cluster.
    pub(super) fn add_local_node(&mut self, name: &str, cpus: i64) {
        let node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {
                "allocatable": {"cpu": cpus.to_string(), "pods": "1000"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        self.apply_node(serde_json::from_value(node).unwrap());
    }

    pub(super) fn apply_node(&mut self, node: Node) {
        self.nodes.insert(node.metadata.name.clone().unwrap(), node.clone());
        self.announce(&Input::Node(Box::new(node)));
    }

    /// A pod with our gate. `change` is a JSON merge patch.
    pub(super) fn create_pod(&mut self, name: &str, cpus: i64, change: Value) {
        self.create_changed(name, cpus, &[change]);
    }

    fn create_changed(&mut self, name: &str, cpus: i64, changes: &[Value]) {
        let created = self.wall();
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "owner", "controller": true});
        let mut pod = json!({
            "metadata": {
                "namespace": "team", "name": name, "uid": name, "creationTimestamp": Time(created), "ownerReferences": [owner],
            },
            "spec": {
                "schedulingGates": [{"name": names::GATE}],
                "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
                "containers": [{"name": "main", "resources": {"requests": {"cpu": cpus.to_string()}}}],
            },
            "status": {"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"},
            ]},
        });
        for change in changes {
            json_patch::merge(&mut pod, change);
        }
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.change_pod(name, pod);
    }

    /// A pod that kube-scheduler has bound to a virtual node, without placement.
    pub(super) fn create_bound(&mut self, name: &str, node: &str, cpus: i64, change: Value) {
        let bound = json!({"spec": {"schedulingGates": null, "nodeName": node}});
        self.create_changed(name, cpus, &[bound, change]);
        self.create_below(name);
    }

    pub(super) fn change_pod(&mut self, uid: &str, mut pod: Pod) {
        self.version += 1;
        pod.metadata.resource_version = Some(self.version.to_string());
        self.pods.insert(uid.to_owned(), pod.clone());
        self.tell_nodes(uid);
        let pod = Arc::new(pod);
        let is_over = vk_provider::pod::is_terminal(&pod);
        if !is_over {
            return self.announce(&Input::Pod(pod));
        }
        self.announce(&Input::PodGone(Arc::clone(&pod)));
        self.announce_succeeded(pod);
    }

    /// Removes a pod from both clusters.
    pub(super) fn delete_pod(&mut self, uid: &str) {
        let Some(pod) = self.pods.remove(uid) else { return };
        self.observe_group_change(&pod);
        if let Some(node) = pod_state::node(&pod) {
            self.remove_below(node, uid);
        }
        self.tell_nodes(uid);
        self.announce_succeeded_gone(&pod);
        self.announce(&Input::PodGone(Arc::new(pod)));
    }

    fn record(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:?} {}", self.now, what()));
        }
    }

    fn delay(&mut self) -> Duration {
        if self.faults.delay.is_zero() {
            return Duration::from_millis(1);
        }
        let most = u64::try_from(self.faults.delay.as_millis()).unwrap();
        Duration::from_millis(self.rng.random_range(1..=most))
    }

    fn schedule(&mut self, after: Duration, what: Scheduled) {
        self.sequence += 1;
        self.queue.insert((self.now + after, self.sequence), what);
    }

    /// The pod is removed some time later.
    pub(super) fn remove_later(&mut self, uid: &str, after: Duration) {
        self.schedule(after, Scheduled::Remove(uid.to_owned()));
    }

    pub(super) fn wall(&self) -> Timestamp {
        START.parse::<Timestamp>().unwrap() + self.now
    }

    /// Lets time pass.
    pub(super) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= end) {
            let (at, _) = *entry.key();
            let what = entry.remove();
            self.now = self.now.max(at);
            self.happen(what);
        }
        self.now = end;
    }

    fn happen(&mut self, what: Scheduled) {
        match &what {
            Scheduled::Bind(uid) => self.record(|| format!("bind {uid}")),
            Scheduled::CreateBelow(uid) => self.record(|| format!("create {uid} below")),
            Scheduled::Remove(uid) => self.record(|| format!("remove {uid}")),
            Scheduled::SyncNode(node, uid) => self.record(|| format!("{node} looks at {uid}")),
            Scheduled::End(process) => self.record(|| format!("process {process} ends")),
            _ => {}
        }
        match what {
            Scheduled::Deliver(process) => self.deliver(process),
            Scheduled::Input(process, input) => self.handle(process, vec![*input]),
            Scheduled::Wake(process, at) => self.wake(process, at),
            Scheduled::Start(started) if started == self.started => self.start(),
            Scheduled::Start(_) => {}
            Scheduled::End(process) => self.processes.retain(|other| other.id != process),
            Scheduled::Create(pod) => self.create_again(*pod),
            Scheduled::Bind(uid) => self.bind(&uid),
            Scheduled::CreateBelow(uid) => self.create_below(&uid),
            Scheduled::Remove(uid) => self.delete_pod(&uid),
            Scheduled::SyncNode(node, uid) => self.sync_node(&node, &uid),
            Scheduled::Call(process, id, call) => self.carry_out(process, id, &call),
        }
    }

    /// kube-scheduler, which follows the nomination.
    fn bind(&mut self, uid: &str) {
        let Some(mut pod) = self.pods.get(uid).cloned() else { return };
        if pod_state::node(&pod).is_some() || self.scheduler_is_away {
            return;
        }
        let node = self.choose(&pod).filter(|node| self.free_above(node, uid) >= cpus(&pod));
        if node.is_none() || self.rng.random_bool(self.faults.unbound) {
            self.set_condition(&mut pod, "PodScheduled", false, "Unschedulable", "0/1 nodes are available");
            if self.pins() {
                // Before Kubernetes 1.35.
                pod.status.as_mut().unwrap().nominated_node_name = None;
            }
            return self.change_pod(uid, pod);
        }
        pod.spec.as_mut().unwrap().node_name.clone_from(&node);
        pod.status.as_mut().unwrap().nominated_node_name = None;
        self.set_condition(&mut pod, "PodScheduled", true, "", "");
        self.change_pod(uid, pod);
        let delay = self.delay();
        self.schedule(delay, Scheduled::CreateBelow(uid.to_owned()));
    }

    /// What kube-scheduler has left of a node for a pod: those that are bound use it, and those that are nominated get it.
    pub(super) fn free_above(&self, node: &str, uid: &str) -> i64 {
        let allocatable = self.nodes.get(node).and_then(|node| node.status.as_ref()?.allocatable.as_ref());
        let Some(total) = allocatable.and_then(|all| all["cpu"].0.parse::<i64>().ok()) else { return 0 };
        let uses = |pod: &Pod| {
            let is_open = pod_state::gating(pod) == pod_state::Gating::Open;
            let nominated = pod_state::nominated_node(pod).filter(|_| is_open);
            pod_state::node(pod).or(nominated) == Some(node) && !vk_provider::pod::is_terminal(pod)
        };
        let others = self.pods.iter().filter(|(other, pod)| *other != uid && uses(pod));
        total - others.map(|(_, pod)| cpus(pod)).sum::<i64>()
    }

    /// kube-scheduler tries a pod again that it has not bound.
    pub(super) fn bind_again(&mut self, uid: &str) {
        self.schedule(Duration::ZERO, Scheduled::Bind(uid.to_owned()));
    }

    /// The provider creates the lower pod, and the lower scheduler places it.
    fn create_below(&mut self, uid: &str) {
        let Some(mut pod) = self.pods.get(uid).cloned() else { return };
        let cpus = cpus(&pod);
        let elsewhere =
            self.lower.iter().find(|(name, lower)| pod_state::node(&pod) != Some(name) && lower.runs(uid));
        assert!(elsewhere.is_none(), "{uid} has two lower pods");
        let Some(lower) = pod_state::node(&pod).and_then(|node| self.lower.get_mut(node)) else {
            pod.status.get_or_insert_default().phase = Some("Running".to_owned());
            return self.change_pod(uid, pod);
        };
        // With trials, only pods of StatefulSets come below for the first time when they are bound.
        let has_trials = self.settings.gates.as_ref().is_some_and(|gates| gates.trial.is_some());
        let is_by_estimate =
            has_trials && pod_state::controller(&pod).is_some_and(|owner| owner.kind == "StatefulSet");
        let scheduled = lower.create(uid, cpus);
        self.waited_below += u32::from(!scheduled && !is_by_estimate);
        self.report_scheduled(uid, scheduled);
    }

    fn report_scheduled(&mut self, uid: &str, scheduled: bool) {
        let Some(mut pod) = self.pods.get(uid).cloned() else { return };
        if scheduled {
            pod.status.get_or_insert_default().phase = Some("Running".to_owned());
        }
        self.set_condition(&mut pod, names::SCHEDULED, scheduled, "Unschedulable", "insufficient cpu");
        self.change_pod(uid, pod);
    }

    // === what tests ask ===

    pub(super) fn pod(&self, uid: &str) -> &Pod {
        self.pods.get(uid).unwrap_or_else(|| panic!("{uid} is gone"))
    }

    /// The node of a pod, or why it waits.
    pub(super) fn place(&self, uid: &str) -> String {
        let pod = self.pod(uid);
        if let Some(node) = pod_state::node(pod) {
            return node.to_owned();
        }
        let placed = pod_state::condition(pod, names::PLACED);
        placed.and_then(|condition| condition.message.clone()).unwrap_or_default()
    }

    pub(super) fn set_behaviour(&mut self, node: &str, behaviour: Behaviour) {
        self.lower.get_mut(node).unwrap().behaviour = behaviour;
    }

    /// Something about the node changes, as its annotations do when the usage of its lower nodes does.
    pub(super) fn touch_node(&mut self, name: &str) {
        let mut node = self.nodes[name].clone();
        let free = self.rng.random::<u32>().to_string();
        let annotations = node.metadata.annotations.get_or_insert_default();
        annotations.insert("multicluster.virtual-kubelet.io/largest-free".to_owned(), free);
        self.apply_node(node);
    }

    pub(super) fn queries(&self) -> u32 {
        self.lower.values().map(|lower| lower.queries).sum()
    }
}
