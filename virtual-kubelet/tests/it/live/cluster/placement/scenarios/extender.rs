//! A stock kube-scheduler with the printed configuration, which asks the extender about virtual nodes. No pod has a gate.

use std::path::PathBuf;

use serde_json::{Value, json};
use tokio::sync::OnceCell;
use vk_testing::{control_plane::Options, eventually};

use super::{
    ClusterPair, NamespaceClient, PlacementTest, Process, ProcessReaper, SharedPlacement, TIMEOUT, by_trial,
    condition,
    fragmentation::{BIG, SMALL, count, waited},
    is_stuck, is_unschedulable, occupy, offers,
    overflow::send_heartbeats,
    pod_without_placement,
    preemption::{low, priority_class, with_priority},
    running,
};
use crate::{
    live::{
        cluster::{capacity::join, cluster_pair::lower, namespace_client::text},
        get, ports,
    },
    vk,
};

const SCHEDULER: &str = "multicluster";
const SECRET: &str = "virtual-kubelet-placement-tls";
/// The reason of the extender.
const REFUSED: &str = "no lower node takes the pod (insufficient cpu)";
const CALL_SECONDS: &str = "virtual_kubelet_placement_extender_seconds";

static EXTENDER: OnceCell<(SharedPlacement, u16)> = OnceCell::const_new();

/// An upper cluster whose scheduler gets the printed configuration.
struct ExtenderTest {
    test: PlacementTest,
    account: PathBuf,
    /// The port of the extender, and the one of its metrics.
    ports: [u16; 2],
}

// === impl ExtenderTest ===

impl ExtenderTest {
    async fn new() -> Self {
        let config =
            json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"});
        let options = Options { scheduler_config: Some(config.to_string()), ..Options::with_controllers() };
        let test = PlacementTest::with(options, &[]).await;
        let account = test.account().await;
        let first = ports(2);
        Self { test, account, ports: [first, first + 1] }
    }

    /// Starts the command and waits until it answers.
    async fn launch(&self) -> Process {
        let [listen, metrics] = self.ports.map(|port| format!("127.0.0.1:{port}"));
        let kubeconfig = self.account.to_str().unwrap();
        let flags = ["--kubeconfig", kubeconfig, "--metrics-addr", &metrics, "--extender-listen", &listen];
        let process = vk(&[&["extender"][..], &flags].concat()).start();
        eventually("the extender is served, and answers", TIMEOUT, || async {
            let log = process.stderr();
            if log.contains("serving the extender") && log.contains("the extender answers") {
                Ok(())
            } else {
                Err(log)
            }
        })
        .await;
        process
    }

    /// Restarts kube-scheduler with the printed configuration.
    async fn configure_scheduler(&self) {
        let url = format!("https://localhost:{}", self.ports[0]);
        let kubeconfig = self.test.upper.admin_kubeconfig().to_str().unwrap();
        let print = vk(&["placement", "print", "scheduler", "--url", &url, "--kubeconfig", kubeconfig]).run();
        assert_eq!(print.stderr, "", "the certificate is for this name");
        self.test.upper.restart_scheduler(&print.ok()).await.unwrap();
    }

    fn doctor(&self) -> String {
        let kubeconfig = self.test.upper.admin_kubeconfig().to_str().unwrap();
        vk(&["doctor", "--placement", "--kubeconfig", kubeconfig]).run().stdout
    }

    async fn secret(&self) -> Value {
        let secrets = NamespaceClient::new(&self.test.upper, "kube-system");
        secrets.get(&format!("secrets/{SECRET}")).await["data"].clone()
    }
}

/// A scheduler with the extender, which tests share.
async fn by_extender() -> &'static SharedPlacement {
    &shared().await.0
}

async fn shared() -> &'static (SharedPlacement, u16) {
    let start = async || {
        let extender = ExtenderTest::new().await;
        let process = extender.launch().await;
        extender.configure_scheduler().await;
        let reaper = ProcessReaper::of(&[process.pid()]);
        (SharedPlacement { test: extender.test, process, _reaper: reaper }, extender.ports[1])
    };
    EXTENDER.get_or_init(start).await
}

/// Waits until the extender has asked these nodes: a call waits 100 ms, which is less than it may take to connect.
async fn wait_connected(process: &Process, pairs: &[&ClusterPair<'_>]) {
    eventually("the extender is connected to the nodes", TIMEOUT, || async {
        let log = process.stderr();
        let answers = |pair: &&ClusterPair<'_>| {
            let node = format!("\"node\":\"{}\"", pair.node);
            log.lines().any(|line| line.contains("the node answers") && line.contains(&node))
        };
        if pairs.iter().all(answers) { Ok(()) } else { Err(log.clone()) }
    })
    .await;
}

/// The pod is for the scheduler that asks the extender.
fn asked_about(mut pod: Value) -> Value {
    pod["spec"]["schedulerName"] = json!(SCHEDULER);
    pod
}

fn pod(nodes: &[&str], name: &str, cpu: u32) -> Value {
    asked_about(pod_without_placement(nodes, name, cpu))
}

/// Waits until kube-scheduler finds no node for a pod, for a reason that contains these texts.
async fn wait_refused(client: &NamespaceClient<'_>, name: &str, reasons: &[&str]) {
    let is_refused = |pod: &Value| {
        let condition = condition(pod, "PodScheduled");
        is_unschedulable(pod) && reasons.iter().all(|reason| text(&condition["message"]).contains(reason))
    };
    client.wait_for(&format!("pods/{name}"), &format!("is refused: {reasons:?}"), is_refused).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_2712_with_the_extender_big_pods_wait_above_and_a_small_one_runs() {
    let (placement, metrics) = shared().await;
    let pair = placement.node("2712-extender", 3, json!({})).await;
    wait_connected(&placement.process, &[&pair]).await;
    let team = placement.team("2712-extender").await;
    let before = partial_calls(*metrics);
    let names = ["big-0", "big-1", "big-2"];
    for name in names {
        team.upper.create("pods", &pod(&[&pair.node], name, BIG)).await;
    }
    for name in names {
        wait_refused(&team.upper, name, &[REFUSED]).await;
    }
    team.upper.create("pods", &pod(&[&pair.node], "small", SMALL)).await;
    team.wait_running_on("small", &pair).await;
    // On a busy machine the node may answer too late, and then a pod passes.
    let (below, late) = (team.lower.list("pods").await.len() as u64, partial_calls(*metrics) - before);
    assert!(
        below <= 1 + late,
        "{below} pods are in the lower cluster, and {late} calls were not answered in time"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn karmada_6783_with_the_extender_all_pods_of_a_whole_lower_node_run_and_at_most_two_have_waited_below()
{
    let placement = by_extender().await;
    let free: u16 = if cfg!(feature = "e2e") { 50 } else { 8 };
    // What others leave free of the first cluster looks like more whole lower nodes.
    let fragments = free / 2;
    let other = by_trial().await.upper();
    let (first, second) = tokio::join!(
        placement.node("6783-extender-a", free + fragments, json!({})),
        ClusterPair::open(placement.upper(), other, "6783-extender-b", free, json!({}), &[]),
    );
    occupy(&first, free..free + fragments, 8 - super::LEFT_FREE).await;
    let sum = u32::from(free) * 8 + u32::from(fragments) * super::LEFT_FREE;
    offers(placement.upper(), &first.node, &json!({"cpu": sum.to_string()})).await;
    wait_connected(&placement.process, &[&first, &second]).await;
    let nodes = [&*first.node, &*second.node];
    let pods = usize::from(2 * free);
    let team = placement.team("6783-extender").await;
    for index in 0..pods {
        team.upper.create("pods", &pod(&nodes, &format!("whole-{index}"), 8)).await;
    }
    // On a busy machine an answer may come too late to count, and then a pod waits below.
    let stuck = eventually("all run, but for two that wait below at most", 2 * TIMEOUT, || async {
        let all = team.upper.list("pods").await;
        let (runs, stuck, refused) = (running(&all), count(&all, is_stuck), count(&all, is_unschedulable));
        let is_right = runs + stuck == pods && stuck <= 2 && refused == 0;
        if is_right { Ok(stuck) } else { Err(format!("{runs} run, {stuck} wait below, {refused} above")) }
    })
    .await;
    let second_below = NamespaceClient::new(other, &team.lower.namespace);
    let waited = [waited(&team.lower).await, waited(&second_below).await].concat();
    assert!(waited.len() <= 2, "{waited:?}");
    // Those that wait have left room in the other cluster.
    for index in 0..stuck {
        let name = format!("instead-{index}");
        team.upper.create("pods", &pod(&nodes, &name, 8)).await;
        team.upper.wait_running(&name).await;
    }
    team.upper.create("pods", &pod(&nodes, "one-too-many", 8)).await;
    // One that waits below takes what the sum of the fragments would hold, and then kube-scheduler refuses by itself.
    let reasons: &[&str] = if stuck == 0 { &[REFUSED] } else { &[] };
    wait_refused(&team.upper, "one-too-many", reasons).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn with_the_extender_a_pod_of_high_priority_preempts_where_that_helps_and_never_in_vain() {
    const CLASS: &str = "scenario-extender";
    let placement = by_extender().await;
    let pair = placement.node("preempt", 2, json!({})).await;
    wait_connected(&placement.process, &[&pair]).await;
    let team = placement.team("preempt").await;
    placement.cluster_scope().create("priorityclasses", &priority_class(CLASS)).await;
    // All 16 CPUs.
    for index in 0..8 {
        team.upper.create("pods", &pod(&[&pair.node], &format!("low-{index}"), 2)).await;
    }
    for index in 0..8 {
        team.wait_running_on(&format!("low-{index}"), &pair).await;
    }
    let high = |name, cpu| with_priority(pod(&[&pair.node], name, cpu), CLASS);
    team.upper.create("pods", &high("in-vain", 12)).await;
    wait_refused(&team.upper, "in-vain", &["Insufficient cpu", "preemption"]).await;
    assert_eq!(low(&team.upper).await, 8, "all of low priority are left alone");
    team.upper.create("pods", &high("helps", 2)).await;
    team.wait_running_on("helps", &pair).await;
    assert_eq!(low(&team.upper).await, 7, "one has made room");
    assert!(is_unschedulable(&team.upper.get("pods/in-vain").await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn with_the_extender_pods_go_to_machines_of_the_upper_cluster_where_no_lower_node_has_room() {
    let placement = by_extender().await;
    let (pair, _others) = placement.fragmented_node("mixed", 4, json!({})).await;
    wait_connected(&placement.process, &[&pair]).await;
    let team = placement.team("mixed").await;
    let all = placement.cluster_scope();
    let machine = join(&all, "mixed", &json!({"cpu": "8", "memory": "16Gi", "pods": "110"})).await;
    let scheduled = async {
        let nodes = [&*machine, &*pair.node];
        // 12 CPUs are free in sum of the virtual node, and 3 on each lower node.
        for name in ["local-0", "local-1"] {
            team.upper.create("pods", &pod(&nodes, name, 4)).await;
            team.upper
                .wait_for(&format!("pods/{name}"), "is on the machine", |pod| {
                    pod["spec"]["nodeName"] == json!(machine)
                })
                .await;
        }
        team.upper.create("pods", &pod(&nodes, "nowhere", 4)).await;
        wait_refused(&team.upper, "nowhere", &["Insufficient cpu", REFUSED]).await;
        team.upper.create("pods", &pod(&nodes, "virtual", 3)).await;
        team.wait_running_on("virtual", &pair).await;
    };
    tokio::select! {
        () = scheduled => {}
        () = send_heartbeats(&all, &machine) => {}
    }
    all.delete(&format!("nodes/{machine}"), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn with_the_extender_a_node_that_hangs_delays_no_pod_of_another_node() {
    let (placement, metrics) = shared().await;
    let (hangs, well) = tokio::join!(
        placement.node("hang-extender", 1, json!({})),
        placement.node("well-extender", 1, json!({})),
    );
    wait_connected(&placement.process, &[&hangs, &well]).await;
    let team = placement.team("hang-extender").await;
    hangs.suspend();
    let before = slow_calls(*metrics);
    // The node that hangs is asked about each of the first ones, and passes: they may go to either node.
    for index in 0..6 {
        team.upper.create("pods", &pod(&[&hangs.node, &well.node], &format!("either-{index}"), 0)).await;
        team.upper.create("pods", &pod(&[&well.node], &format!("well-{index}"), 1)).await;
    }
    let is_bound = |pod: &Value| pod["spec"]["nodeName"].is_string();
    for index in 0..6 {
        team.upper.wait_for(&format!("pods/either-{index}"), "is bound", is_bound).await;
        team.wait_running_on(&format!("well-{index}"), &well).await;
    }
    // The scheduler does nothing else during a call, and gives up after a second.
    assert_eq!(slow_calls(*metrics), before, "no call has waited for the node");
    let (_, text) = get(*metrics, "/metrics").unwrap();
    assert!(text.contains("outcome=\"partial\""), "the node was asked, and has not answered: {text}");
}

/// How many calls were not answered by all nodes in time.
fn partial_calls(metrics: u16) -> u64 {
    let (_, text) = get(metrics, "/metrics").unwrap();
    let lines =
        text.lines().filter(|line| line.contains("extender_calls") && line.contains("outcome=\"partial\""));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// How many calls took longer than a second: all queries of a call share 100 ms, and the rest is for a busy machine.
fn slow_calls(metrics: u16) -> u64 {
    let (_, text) = get(metrics, "/metrics").unwrap();
    let value = |name: &str| -> u64 {
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    };
    let fast: u64 = text
        .lines()
        .filter(|line| line.starts_with(&format!("{CALL_SECONDS}_bucket")) && line.contains("le=\"1.0\""))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum();
    let all = value(&format!("{CALL_SECONDS}_count"));
    all - fast
}

/// The scheduler is restarted once, when it gets the configuration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn without_the_extender_pods_are_scheduled_as_ever_and_a_process_that_takes_over_is_accepted() {
    let extender = ExtenderTest::new().await;
    let mut process = extender.launch().await;
    assert!(extender.doctor().contains("no scheduler has called it yet"), "{}", extender.doctor());
    extender.configure_scheduler().await;
    let upper = &extender.test.upper;
    let pair = ClusterPair::open(upper, lower().await, "down-extender", 2, json!({}), &[]).await;
    wait_connected(&process, &[&pair]).await;
    let team = extender.test.namespace("down-extender").await;
    let nodes = [&*pair.node];
    team.create("pods", &pod(&nodes, "refused", BIG)).await;
    wait_refused(&team, "refused", &[REFUSED]).await;
    let expected = ["ok       extender: a scheduler has called it since", "ok       nodes: 1 can be asked"];
    eventually("doctor sees the calls", TIMEOUT, || async {
        let findings = extender.doctor();
        if expected.iter().all(|line| findings.contains(line)) { Ok(()) } else { Err(findings) }
    })
    .await;
    team.delete("pods/refused", Some(0)).await;
    team.wait_deleted("pods/refused").await;

    let issued = extender.secret().await;
    process.kill();
    team.create("pods", &pod(&nodes, "in-vain", BIG)).await;
    team.wait_for("pods/in-vain", "is stuck", is_stuck).await;
    team.delete("pods/in-vain", None).await;
    team.wait_deleted("pods/in-vain").await;

    process = extender.launch().await;
    wait_connected(&process, &[&pair]).await;
    team.create("pods", &pod(&nodes, "refused-again", BIG)).await;
    wait_refused(&team, "refused-again", &[REFUSED]).await;
    assert_eq!(extender.secret().await, issued, "another process goes on with the same certificates");
    let log = process.stderr();
    assert!(!log.contains("orbidden") && !log.contains("WARN"), "{log}");
}
