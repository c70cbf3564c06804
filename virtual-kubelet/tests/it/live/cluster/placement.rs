//! `virtual-kubelet placement`: pods behind the scheduling gate, and pods that are stuck, with real schedulers in both clusters.

mod configuration_file;
mod groups;
mod kills;
mod lower_pods;
#[cfg(feature = "e2e")]
mod older_version;
mod permissions;
mod scenarios;
mod trial;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;
use vk_testing::{ControlPlane, control_plane::Options, eventually, kubectl};

use super::super::Process;
use super::{
    cluster_pair::{ClusterPair, TAINT, lower},
    namespace_client::{NamespaceClient, TIMEOUT, condition, text},
};
use crate::vk;

const PLACED: &str = "multicluster.virtual-kubelet.io/Placed";
const SCHEDULED: &str = "multicluster.virtual-kubelet.io/Scheduled";
const NAME: &str = "virtual-kubelet-placement";
/// The longest time without a leader after a crash.
const TAKEOVER: Duration = Duration::from_secs(20);

/// An upper cluster with the admission policy and the published permissions.
struct PlacementTest {
    upper: ControlPlane,
    folder: TempDir,
}

impl PlacementTest {
    async fn new(policy_flags: &[&str]) -> Self {
        Self::with(Options::with_controllers(), policy_flags).await
    }

    async fn with(options: Options, policy_flags: &[&str]) -> Self {
        let test = Self::without_policy(options).await;
        let kubeconfig = test.upper.admin_kubeconfig().to_str().unwrap().to_owned();
        let policy = [&["placement", "print", "policy", "--kubeconfig", &kubeconfig], policy_flags].concat();
        test.apply(&vk(&policy).run().ok()).await;
        test.wait_converted().await;
        test
    }

    /// Waits until the API server has noticed the policy, which takes a moment.
    async fn wait_converted(&self) {
        let file = self.folder.path().join("pod.json");
        std::fs::write(&file, pod("converted", 1).to_string()).unwrap();
        let words = ["create", "--dry-run=server", "-o", "json", "-f", file.to_str().unwrap()];
        eventually("pods that opt in are converted", TIMEOUT, || async {
            let output = kubectl(&self.upper, words).await.map_err(|error| error.to_string())?;
            let is_converted = output.success() && output.stdout.contains(TAINT);
            if is_converted { Ok(()) } else { Err(format!("{output:?}")) }
        })
        .await;
    }

    /// Pods are not converted.
    async fn without_policy(options: Options) -> Self {
        let upper = ControlPlane::start(options).await.unwrap();
        let test = Self { upper, folder: TempDir::new().unwrap() };
        test.apply(&vk(&["placement", "print", "rbac"]).run().ok()).await;
        test
    }

    async fn apply(&self, manifest: &str) {
        let file = self.folder.path().join("manifest.yaml");
        std::fs::write(&file, manifest).unwrap();
        let output = kubectl(&self.upper, ["apply", "--filename", file.to_str().unwrap()]).await.unwrap();
        assert!(output.success(), "{output:?}");
    }

    /// The kubeconfig of the published ServiceAccount.
    async fn account(&self) -> PathBuf {
        let words = ["-n", "kube-system", "create", "token", NAME];
        let output = kubectl(&self.upper, words).await.unwrap();
        assert!(output.success(), "{output:?}");
        let path = self.folder.path().join("account");
        self.upper.write_token_kubeconfig(&path, output.stdout.trim()).unwrap();
        path
    }

    async fn namespace(&self, prefix: &str) -> NamespaceClient<'_> {
        let namespace = self.upper.namespace(prefix).await.unwrap();
        NamespaceClient::new(&self.upper, namespace.name())
    }

    /// The holder of the Lease.
    async fn leader(&self) -> String {
        let words = ["-n", "kube-system", "get", "lease", NAME, "-o", "jsonpath={.spec.holderIdentity}"];
        kubectl(&self.upper, words).await.unwrap().stdout
    }
}

fn placement(kubeconfig: &Path, flags: &[&str]) -> Process {
    let kubeconfig = kubeconfig.to_str().unwrap();
    vk(&[&["placement", "--kubeconfig", kubeconfig, "--metrics-addr", "off"], flags].concat()).start()
}

/// A pod that opted in, and that only a machine with so many CPUs takes.
fn pod(name: &str, cpu: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"virtual-pod": "true"}},
        "spec": spec(cpu),
    })
}

fn spec(cpu: u32) -> Value {
    json!({
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "main", "image": "example.com/app:1", "resources": {"requests": {"cpu": cpu.to_string()}},
        }],
    })
}

fn running(pods: &[Value]) -> usize {
    pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count()
}

fn gated(pods: &[Value]) -> usize {
    pods.iter().filter(|pod| pod["spec"]["schedulingGates"].is_array()).count()
}

/// Liqo 2712 and karmada 6783 with two virtual nodes, and a leader that is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn gated_pods_wait_until_a_lower_node_has_room_whatever_happens_to_the_leader() {
    let lower = lower().await;
    let test = PlacementTest::new(&["--gates", "estimate"]).await;
    let account = test.account().await;
    let mut leader = placement(&account, &["--gates", "estimate"]);
    let first = ClusterPair::open(&test.upper, lower, "gates-a", 2, json!({}), &[]).await;
    let team = test.namespace("gates").await;

    for name in ["big-0", "big-1"] {
        team.create("pods", &pod(name, 12)).await;
    }
    let why = format!("0 of 1 nodes: {}: 0 of 2 lower nodes (2 insufficient cpu)", first.node);
    for name in ["big-0", "big-1"] {
        let big = team
            .wait_for(&format!("pods/{name}"), "says why it waits", |pod| {
                text(&condition(pod, PLACED)["message"]) == why
            })
            .await;
        assert_eq!(condition(&big, PLACED)["reason"], "NoFeasibleNode");
        assert_eq!(condition(&big, "PodScheduled")["reason"], "SchedulingGated");
        team.wait_event(name, &["NoFeasibleNode", &why]).await;
    }
    team.create("pods", &pod("small", 6)).await;
    team.wait_running("small").await;

    let second = ClusterPair::open(&test.upper, lower, "gates-b", 2, json!({}), &[]).await;
    for index in 0..6 {
        team.create("pods", &pod(&format!("whole-{index}"), 8)).await;
    }
    eventually("three whole lower nodes are used", TIMEOUT, || async {
        let pods = team.list("pods").await;
        let counts = (running(&pods), gated(&pods));
        if counts == (4, 5) { Ok(()) } else { Err(format!("{counts:?}")) }
    })
    .await;
    assert!(
        team.list("pods").await.iter().all(|pod| condition(pod, SCHEDULED).is_null()),
        "none waited below"
    );

    let standby = placement(&account, &["--gates", "estimate"]);
    let before = test.leader().await;
    leader.kill();
    let killed = Instant::now();
    team.delete("pods/small", None).await;
    eventually("the standby takes over", TIMEOUT, || async {
        let now = test.leader().await;
        if now == before || now.is_empty() { Err(now) } else { Ok(()) }
    })
    .await;
    assert!(killed.elapsed() < TAKEOVER, "{:?}", killed.elapsed());
    eventually("the fourth lower node is used", TIMEOUT, || async {
        let pods = team.list("pods").await;
        let counts = (running(&pods), gated(&pods));
        if counts == (4, 4) { Ok(()) } else { Err(format!("{counts:?}")) }
    })
    .await;
    let (log, denied) = (standby.stderr(), "orbidden");
    assert!(!log.contains(denied), "{log}");
    drop(second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn settings_that_do_not_go_together_are_reported() {
    let test = PlacementTest::new(&["--gates", "estimate"]).await;
    let account = test.account().await;
    let leader = placement(&account, &["--descheduler"]);
    eventually("gates without a process that removes them are reported", TIMEOUT, || async {
        let log = leader.stderr();
        if log.contains("nobody removes it: set --gates estimate") { Ok(()) } else { Err(log) }
    })
    .await;
    let standby = placement(&account, &["--gates", "estimate"]);
    eventually("other settings than the leader's are reported", TIMEOUT, || async {
        let log = standby.stderr();
        if log.contains("give all processes the same settings") { Ok(()) } else { Err(log) }
    })
    .await;
}

/// `print policy`, `print rbac` and `placement --gates` are all that a user types.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn the_process_switches_on_the_gate_that_the_printed_policy_leaves_to_it() {
    let test = PlacementTest::new(&[]).await;
    let system = NamespaceClient::new(&test.upper, "kube-system");
    let settings = format!("configmaps/{NAME}");
    assert!(system.get(&settings).await["data"]["gate"].is_null());
    let account = test.account().await;
    let process = placement(&account, &["--gates", "estimate"]);
    system.wait_for(&settings, "gates pods", |map| map["data"]["gate"] == "true").await;
    let team = test.namespace("switched-on").await;
    eventually("pods that opt in get the gate", TIMEOUT, || async {
        let name = format!("gated-{}", team.list("pods").await.len());
        team.create("pods", &pod(&name, 1)).await;
        let pods = team.list("pods").await;
        if gated(&pods) > 0 { Ok(()) } else { Err(format!("{pods:?}")) }
    })
    .await;
    // The policy is applied again, for example by a new version: the decision stays.
    let kubeconfig = test.upper.admin_kubeconfig().to_str().unwrap();
    let print = |more: &[&str]| {
        vk(&[&["placement", "print", "policy", "--kubeconfig", kubeconfig], more].concat()).run().ok()
    };
    test.apply(&print(&[])).await;
    assert_eq!(system.get(&settings).await["data"]["gate"], "true");
    // Whoever decides otherwise is not overruled.
    test.apply(&print(&["--gates", "off"])).await;
    drop(process);
    let process = placement(&account, &["--gates", "estimate"]);
    eventually("the process says so", TIMEOUT, || async {
        let log = process.stderr();
        if log.contains("pods do not get the scheduling gate") { Ok(()) } else { Err(log) }
    })
    .await;
    assert_eq!(system.get(&settings).await["data"]["gate"], "false");
}

/// A pod that was bound although no machine has room for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_stuck_pod_moves_to_another_virtual_node_as_soon_as_one_has_room() {
    let lower = lower().await;
    let test = PlacementTest::new(&[]).await;
    let first = ClusterPair::open(&test.upper, lower, "stuck-a", 2, json!({}), &[]).await;
    // Others use 5 of 8 CPUs of each lower node: 6 are free in sum.
    let others = NamespaceClient::new(lower, lower.namespace("others").await.unwrap().name());
    for index in 0..2 {
        let mut other = pod(&format!("other-{index}"), 5);
        other["spec"]["nodeName"] = json!(first.lower_node(index));
        others.create("pods", &other).await;
    }
    let all = NamespaceClient::new(&test.upper, "default");
    let node = format!("nodes/{}", first.node);
    all.wait_for(&node, "advertises what is left", |node| node["status"]["allocatable"]["cpu"] == "6").await;

    let team = test.namespace("stuck").await;
    let labels = json!({"app": "web", "virtual-pod": "true"});
    let deployment = json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": labels}, "spec": spec(6)},
        },
    });
    team.create("deployments", &deployment).await;
    let stuck = eventually("a pod is stuck", TIMEOUT, || async {
        let pods = team.list("pods").await;
        let stuck = pods.iter().find(|pod| condition(pod, SCHEDULED)["status"] == "False").cloned();
        stuck.ok_or_else(|| format!("{pods:?}"))
    })
    .await;
    let name = text(&stuck["metadata"]["name"]).to_owned();

    let account = test.account().await;
    // The command of tensile-kube, with its flag.
    let flags = ["descheduler", "--kubeconfig", account.to_str().unwrap(), "--metrics-addr", "off"];
    let process = vk(&[&flags[..], &["--descheduling-interval", "2s"]].concat()).start();
    team.wait_event(&name, &["NotDescheduled", "no other node can be asked"]).await;
    let second = ClusterPair::open(&test.upper, lower, "stuck-b", 1, json!({}), &[]).await;
    eventually("another pod runs on the other node", TIMEOUT, || async {
        let pods = team.list("pods").await;
        let moved = |pod: &Value| {
            pod["status"]["phase"] == "Running" && pod["spec"]["nodeName"] == json!(second.node)
        };
        if pods.len() == 1 && moved(&pods[0]) {
            Ok(())
        } else {
            Err(format!("{pods:?}\n{}", process.stderr()))
        }
    })
    .await;
    team.wait_event(&name, &["Descheduled", &second.node]).await;
    let settings = NamespaceClient::new(&test.upper, "kube-system").get(&format!("configmaps/{NAME}")).await;
    let controller = text(&stuck["metadata"]["ownerReferences"][0]["uid"]);
    let avoided = text(&settings["data"][format!("avoid.{}.{controller}", team.namespace)]);
    assert!(avoided.starts_with(&format!("{}=", first.node)), "{settings}");
}
