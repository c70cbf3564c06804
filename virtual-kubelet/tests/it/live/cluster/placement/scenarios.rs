//! Scenarios that users of other multi-cluster projects have reported, and that placement has to handle.
//!
//! Three upper clusters with placement are shared: by estimate with the descheduler, by trial, and with the extender. Each scenario has virtual
//! nodes of its own, to which node affinity confines its pods.
//!
//! | scenario | tests: in the modules here, in `live::cluster`, or in another package |
//! |---|---|
//! | Liqo 2712: big pods keep small ones away | `fragmentation::liqo_2712_*`, `extender::liqo_2712_*`; `vk-provider-cluster` `fit::liqo_2712_*` |
//! | karmada 6783: pods on their way are not counted | `fragmentation::karmada_6783_*`, `extender::karmada_6783_*`; `vk-provider-cluster` `fit::pods_of_others_and_pods_that_are_not_scheduled_yet_take_their_room` |
//! | Liqo 1353, Admiralty 201: own machines first, then other clusters | `overflow::liqo_1353_and_admiralty_201_*` |
//! | Liqo 3007: a quota of the lower namespace | `constraints::liqo_3007_*`; `vk-provider-cluster` `fit::liqo_3007_*` |
//! | Liqo 1478: a lower cluster that adds nodes | `constraints::liqo_1478_*`; `vk-provider-cluster` `fit::liqo_1478_*` |
//! | Admiralty 5, 82: another lower scheduler | `constraints::admiralty_5_and_82_*` |
//! | Admiralty 119: a namespace that a lower cluster does not take | `constraints::admiralty_119_*`; `live::cluster` `rejection::admiralty_20_and_119_*` |
//! | Admiralty 127: constraints for both levels | `constraints::admiralty_127_*`; `vk-placement` `differential` |
//! | Admiralty 97: a pod preempts others in several clusters | `preemption::admiralty_97_*` |
//! | preemption in vain | `preemption::pods_of_high_priority_*`, `extender::with_the_extender_a_pod_of_high_priority_*` |
//! | mixed real and virtual nodes | `extender::with_the_extender_pods_go_to_machines_*`; `overflow::*` |
//! | the extender is down, or a node hangs | `extender::without_the_extender_*`, `extender::with_the_extender_a_node_that_hangs_*` |
//! | Liqo 1194: pods stay with a cluster that is lost | `outage::liqo_1194_*`; `live::cluster` `lifecycle::liqo_1194_*` |
//! | Admiralty 20, 106: a cluster that hangs or is gone | `outage::admiralty_20_and_106_*`, `outage::admiralty_106_*`; `live::cluster` `outage::admiralty_106_*` |
//! | Liqo 1398, Admiralty 114: pods of DaemonSets | `workloads::liqo_1398_and_admiralty_114_*`; `live::cluster` `lifecycle::pods_of_kube_system_and_daemon_sets_*` |
//! | a Job that we do not fail | `workloads::jobs_*` |
//! | tensile-kube: its descheduler's races | `workloads::tensile_kube_a_stateful_set_*` |
//! | tensile-kube: its webhook and pods without labels | `conversion::tensile_kube_pods_without_labels_*` |
//! | a gate of others | `conversion::a_foreign_gate_*` |
//! | tensile-kube 56: several lower clusters | `several_clusters::tensile_kube_56_*` |
//! | a mesh of two clusters | `several_clusters::clusters_that_are_nodes_of_each_other_*` |

mod constraints;
mod conversion;
mod extender;
mod fragmentation;
mod outage;
mod overflow;
mod preemption;
mod several_clusters;
mod workloads;

use serde_json::{Value, json};
use tokio::sync::OnceCell;
use vk_testing::{ControlPlane, eventually};

use super::{PLACED, PlacementTest, gated, placement, pod, running, spec};
use crate::live::{
    Process,
    cluster::{
        capacity::{foreign, offers},
        cluster_pair::{ClusterPair, ProcessReaper, TAINT, lower},
        namespace_client::{NamespaceClient, TIMEOUT, condition},
    },
};
use crate::vk;

/// What is free of each lower node that others use, and what they use.
const LEFT_FREE: u32 = 3;
const USED_BY_OTHERS: u32 = 5;

/// Label of namespaces whose pods opt in.
const OFFLOAD: &str = "multicluster.virtual-kubelet.io/offload";

static ESTIMATE: OnceCell<SharedPlacement> = OnceCell::const_new();
static TRIAL: OnceCell<SharedPlacement> = OnceCell::const_new();

/// An upper cluster with placement, which scenarios share.
struct SharedPlacement {
    test: PlacementTest,
    process: Process,
    _reaper: ProcessReaper,
}

/// A namespace of a scenario, with the same name in both clusters.
struct Team {
    placement: &'static SharedPlacement,
    upper: NamespaceClient<'static>,
    lower: NamespaceClient<'static>,
}

/// Placement by estimate, which fills the cluster's own machines first, with the descheduler.
async fn by_estimate() -> &'static SharedPlacement {
    let flags = ["--gates", "estimate", "--order", "local", "--descheduler", "--descheduler-after", "2s"];
    ESTIMATE.get_or_init(|| SharedPlacement::start(&["--gates", "estimate"], &flags)).await
}

/// Placement by trial, of pods that stay on nodes that are lost.
async fn by_trial() -> &'static SharedPlacement {
    let policy = ["--gates", "trial", "--tolerate-lost"];
    TRIAL.get_or_init(|| SharedPlacement::start(&policy, &["--gates", "trial"])).await
}

// === impl SharedPlacement ===

impl SharedPlacement {
    async fn start(policy: &[&str], flags: &[&str]) -> Self {
        let test = PlacementTest::new(policy).await;
        let process = placement(&test.account().await, flags);
        let reaper = ProcessReaper::of(&[process.pid()]);
        Self { test, process, _reaper: reaper }
    }

    fn upper(&self) -> &ControlPlane {
        &self.test.upper
    }

    /// A virtual node for a scenario, with lower nodes of 8 CPUs in the lower cluster that tests share.
    async fn node(&'static self, name: &str, lower_nodes: u16, config: Value) -> ClusterPair<'static> {
        ClusterPair::open(self.upper(), lower().await, name, lower_nodes, config, &[]).await
    }

    /// A virtual node of which others use so much that [`LEFT_FREE`] CPUs are free on each lower node. Returns also the namespace of the
    /// others, where `other-N` is on the lower node N.
    async fn fragmented_node(
        &'static self,
        name: &str,
        lower_nodes: u16,
        config: Value,
    ) -> (ClusterPair<'static>, NamespaceClient<'static>) {
        let pair = self.node(name, lower_nodes, config).await;
        let others = occupy(&pair, 0..lower_nodes, USED_BY_OTHERS).await;
        let free = u32::from(lower_nodes) * LEFT_FREE;
        offers(self.upper(), &pair.node, &json!({"cpu": free.to_string()})).await;
        (pair, others)
    }

    /// A namespace in the upper cluster.
    async fn team(&'static self, prefix: &str) -> Team {
        let upper = self.test.namespace(prefix).await;
        let lower = NamespaceClient::new(lower().await, &upper.namespace);
        Team { placement: self, upper, lower }
    }

    /// A namespace in the upper cluster whose pods opt in.
    async fn offloaded_team(&'static self, name: &str) -> Team {
        let upper = NamespaceClient::new(self.upper(), name);
        create_namespace(&upper, &json!({OFFLOAD: "true"})).await;
        Team { placement: self, upper, lower: NamespaceClient::new(lower().await, name) }
    }

    /// Objects of the upper cluster that are in no namespace.
    fn cluster_scope(&self) -> NamespaceClient<'_> {
        NamespaceClient::new(self.upper(), "default")
    }
}

// === impl Team ===

impl Team {
    /// Waits until a pod waits for a node and `placement explain` gives a reason that contains this text.
    async fn wait_waiting(&self, name: &str, why: &str) {
        let is_waiting = |pod: &Value| condition(pod, PLACED)["reason"] == "NoFeasibleNode";
        let pod = self.upper.wait_for(&format!("pods/{name}"), "waits for a node", is_waiting).await;
        assert_eq!(gated(std::slice::from_ref(&pod)), 1, "{pod}");
        let kubeconfig = self.upper.cluster.admin_kubeconfig().to_str().unwrap();
        let explain = ["placement", "explain", name, "-n", &self.upper.namespace, "--kubeconfig", kubeconfig];
        eventually(&format!("{name} waits, because {why:?}"), TIMEOUT, || async {
            let explained = vk(&explain).run();
            if explained.stdout.contains(why) { Ok(()) } else { Err(format!("{explained:?}")) }
        })
        .await;
    }

    /// Waits until a pod runs, on this node of the upper cluster. Returns its lower pod.
    async fn wait_running_on(&self, name: &str, pair: &ClusterPair<'_>) -> Value {
        let pod = self.upper.wait_running(name).await;
        assert_eq!(pod["spec"]["nodeName"], json!(pair.node), "{pod}");
        self.lower.wait_running(name).await
    }

    /// Waits until a bound pod waits in the lower cluster, and kubectl shows that.
    async fn wait_stuck(&self, name: &str) -> Value {
        self.upper.wait_for(&format!("pods/{name}"), "is stuck", is_stuck).await
    }

    /// Removes a pod that is not needed any more.
    async fn remove(&self, name: &str) {
        self.upper.delete(&format!("pods/{name}"), None).await;
        self.upper.wait_deleted(&format!("pods/{name}")).await;
        self.lower.wait_deleted(&format!("pods/{name}")).await;
    }
}

impl Drop for Team {
    #[expect(clippy::print_stderr, reason = "what placement said, beside the panic")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.placement.process.stderr();
            let own: Vec<&str> = log.lines().filter(|line| line.contains(&self.upper.namespace)).collect();
            let from = own.len().saturating_sub(40);
            eprintln!("--- log of placement about {}\n{}", self.upper.namespace, own[from..].join("\n"));
        }
    }
}

/// Creates the namespace of a client with these labels, and waits until it accepts pods. A label that is added later is not effective at once.
async fn create_namespace(client: &NamespaceClient<'_>, labels: &Value) {
    let namespace = json!({"metadata": {"name": client.namespace, "labels": labels}});
    client.create("namespaces", &namespace).await;
    client.wait_exists("serviceaccounts/default").await;
}

/// Lets pods of others use so many CPUs of each of these lower nodes. Returns their namespace in the lower cluster.
async fn occupy<'a>(
    pair: &ClusterPair<'a>,
    lower_nodes: std::ops::Range<u16>,
    cpu: u32,
) -> NamespaceClient<'a> {
    let name = pair.lower.namespace("others").await.unwrap().name().to_owned();
    let others = NamespaceClient::new(pair.lower, &name);
    for index in lower_nodes {
        let requests = json!({"cpu": cpu.to_string()});
        let mut pod = foreign(&format!("other-{index}"), &pair.lower_node(index), &requests);
        // The lower node has to end a pod before another one gets its place, or it refuses that.
        pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
        others.create("pods", &pod).await;
    }
    others
}

/// The spec of pods for these nodes of the upper cluster.
fn spec_for(nodes: &[&str], cpu: u32) -> Value {
    let expression = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": nodes});
    let mut spec = spec(cpu);
    spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
    spec
}

/// A pod for these nodes that opted in.
fn pod_for(nodes: &[&str], name: &str, cpu: u32) -> Value {
    let mut pod = pod(name, cpu);
    pod["spec"] = spec_for(nodes, cpu);
    pod
}

/// A pod for these nodes that did not opt in: kube-scheduler binds it without placement.
fn pod_without_placement(nodes: &[&str], name: &str, cpu: u32) -> Value {
    let mut pod = pod_for(nodes, name, cpu);
    pod["metadata"]["labels"] = json!({"app": name});
    pod["spec"]["tolerations"] = tolerations();
    pod
}

fn tolerations() -> Value {
    json!([{"key": TAINT, "operator": "Exists"}])
}

/// Whether a pod is bound and no lower node takes it.
pub(super) fn is_stuck(pod: &Value) -> bool {
    let containers = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
    containers.iter().any(|container| container["state"]["waiting"]["reason"] == "LowerUnschedulable")
}

/// Whether kube-scheduler finds no node for a pod.
fn is_unschedulable(pod: &Value) -> bool {
    condition(pod, "PodScheduled")["reason"] == "Unschedulable"
}
