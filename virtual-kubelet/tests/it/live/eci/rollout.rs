//! Many pods: rollouts while the command is killed and the cloud has every fault, and a thousand pods at once. Their containers are simulated.

#![allow(clippy::print_stdout, reason = "what was measured on the way")]

use std::{collections::BTreeSet, time::Duration};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::Instant;
use vk_testing::{
    ControlPlane,
    cloud::eci::{self, EciEmulator, Fault, GroupSummary, Options as Cloud, Rule, Timing},
    control_plane::Options,
    eventually,
};

use super::{super::becomes_ready, EciNode, billed_once};
use crate::live::container_node::number;

const LIMIT: Duration = Duration::from_mins(5);
/// Of another cluster in the account.
const FOREIGN: &str = "somebody-elses";

/// A cloud with the vendor's rate limits.
async fn cloud() -> EciEmulator {
    let mut options = Cloud { seed: number("VK_SEED", 1) as u64, ..Cloud::new() };
    options.settings.timing = Timing::instant();
    EciEmulator::start(options).await.unwrap()
}

/// Every fault, each for a share of all calls.
fn faults() -> Vec<Rule> {
    let code = || "ServiceUnavailable".to_owned();
    let often = [
        Fault::Error { status: 503, code: code(), retry_after: None },
        Fault::Error { status: 400, code: "Throttling.User".to_owned(), retry_after: Some(200) },
        Fault::ErrorAfter { status: 500, code: "InternalError".to_owned() },
        Fault::ErrorInside200 { code: code() },
        Fault::ResetBefore,
        Fault::ResetAfter,
        Fault::Late { milliseconds: 500 },
        Fault::Truncated,
        Fault::Html { status: 502 },
        Fault::RepeatedPage,
        Fault::PageTokenRefused,
        Fault::UnknownFields,
        Fault::UnknownStates,
        Fault::NumbersAsText,
        Fault::TextAsNumbers,
    ];
    let seldom = [Fault::HangBefore, Fault::HangAfter, Fault::LostPage, Fault::EmptyList];
    let rule = |share: f64| move |fault: Fault| Rule::always(fault).with_probability(share);
    often.into_iter().map(rule(0.015)).chain(seldom.into_iter().map(rule(0.004))).collect()
}

fn deployment(node: &EciNode<'_>, replicas: usize, revision: usize) -> Value {
    let labels = json!({"app": "web"});
    let mut spec = node.spec("sleep 3600");
    spec["terminationGracePeriodSeconds"] = json!(1);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {"revision": revision.to_string()}},
                "spec": spec,
            },
        },
    })
}

/// Waits until all pods of a revision run, and there are no others.
async fn settled(node: &EciNode<'_>, replicas: usize, revision: usize) {
    eventually("all pods of the last revision run, and no others", LIMIT, || async {
        let pods = node.get("pods").await["items"].as_array().unwrap().clone();
        let is_current = |pod: &&Value| {
            pod["metadata"]["annotations"]["revision"] == json!(revision.to_string())
                && pod["status"]["phase"] == "Running"
        };
        let counts = (pods.iter().filter(is_current).count(), pods.len());
        if counts == (replicas, replicas) {
            return Ok(());
        }
        let others = pods.iter().filter(|pod| !is_current(pod)).take(3);
        let shown: Vec<_> = others
            .map(|pod| {
                let metadata = &pod["metadata"];
                format!("{} {} {}", metadata["name"], metadata["deletionTimestamp"], pod["status"])
            })
            .collect();
        Err(format!("{counts:?}, such as {shown:?}"))
    })
    .await;
}

/// A group of another cluster in the account.
struct Foreign {
    id: String,
    request: Option<Value>,
}

// === impl Foreign ===

impl Foreign {
    fn create(node: &EciNode<'_>) -> Self {
        let id = node.emulator.create(&foreign_group()).unwrap();
        let request = node.emulator.request(&id);
        Self { id, request }
    }

    fn is_unchanged(&self, node: &EciNode<'_>) {
        assert_eq!(node.emulator.request(&self.id), self.request, "a foreign group was changed");
        let is_there = |group: &GroupSummary| group.id == self.id && group.status != "Terminating";
        assert!(node.emulator.groups().iter().any(is_there), "a foreign group was deleted");
    }
}

/// Checks that no second of a pod was billed twice. Returns how many pods had a group.
fn pods_billed_once(node: &EciNode<'_>) -> usize {
    let bills: Vec<_> = node.emulator.bills().into_iter().filter(|bill| bill.name != FOREIGN).collect();
    billed_once(&bills)
}

/// Waits until the cloud has one group for each pod, and but for them only the foreign one.
async fn one_group_for_each_pod(node: &EciNode<'_>, foreign: &Foreign) {
    let pods = node.get("pods").await["items"].as_array().unwrap().clone();
    let uids: BTreeSet<String> =
        pods.iter().map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned()).collect();
    eventually("the cloud has one group for each pod and no other", LIMIT, || async {
        let groups = node.emulator.groups();
        let own: Vec<_> = groups.iter().filter(|group| group.id != foreign.id).collect();
        let owners: BTreeSet<_> = own
            .iter()
            .filter_map(|group| group.tags.iter().map(|(_, value)| value).find(|value| uids.contains(*value)))
            .collect();
        let counts = (own.len(), owners.len());
        if counts == (uids.len(), uids.len()) { Ok(()) } else { Err(format!("{counts:?} of {}", uids.len())) }
    })
    .await;
}

/// Deletes the Deployment, and waits until the cloud has the foreign group only.
async fn all_gone(node: &EciNode<'_>) {
    node.kubectl(&["delete", "deployment/web"]).await;
    eventually("the cloud has the foreign group only", LIMIT, || async {
        let groups = node.emulator.groups();
        if groups.len() == 1 { Ok(()) } else { Err(format!("{} groups", groups.len())) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make e2e-groups"]
async fn kills_during_rollouts_on_a_cloud_with_every_fault_leave_one_group_for_each_pod() {
    let (kills, replicas) = (number("VK_GROUP_KILLS", 100), number("VK_GROUP_PODS", 200));
    let cluster = ControlPlane::start(Options::with_controllers()).await.unwrap();
    let mut node = EciNode::start_on(&cluster, "rollout", cloud().await).await;
    let foreign = Foreign::create(&node);
    for rule in faults() {
        node.emulator.add_fault(rule);
    }
    let begin = Instant::now();
    let rng = &mut StdRng::seed_from_u64(number("VK_SEED", 1) as u64);
    let mut revision = 0;
    node.apply(&deployment(&node, replicas, revision)).await;
    for kill in 1..=kills {
        tokio::time::sleep(Duration::from_millis(rng.random_range(50..1500))).await;
        node.process.take().unwrap().kill();
        node.process = Some(node.launch(&[]));
        if kill % 20 == 0 {
            revision = kill;
            node.apply(&deployment(&node, replicas, revision)).await;
        }
    }
    node.emulator.clear_faults();
    becomes_ready(&cluster, &node.name).await;
    settled(&node, replicas, revision).await;
    one_group_for_each_pod(&node, &foreign).await;
    foreign.is_unchanged(&node);
    let calls = node.emulator.calls();
    let sum = |of: fn(&vk_testing::cloud::eci::CallCount) -> u64| calls.values().map(of).sum::<u64>();
    println!(
        "seed {}: {kills} kills in {:.0?}, {replicas} pods run, {} pods had a group, {} calls, {} of them refused",
        number("VK_SEED", 1),
        begin.elapsed(),
        pods_billed_once(&node),
        sum(|count| count.total),
        sum(|count| count.refused),
    );
    all_gone(&node).await;
    pods_billed_once(&node);
    foreign.is_unchanged(&node);
    tokio::task::block_in_place(|| eci::judge(&node.emulator));
}

/// What another cluster has created in the account.
fn foreign_group() -> Vec<(String, String)> {
    let parameters = [
        ("RegionId", "cn-hangzhou"),
        ("ContainerGroupName", FOREIGN),
        ("SecurityGroupId", "sg-1"),
        ("VSwitchId", "vsw-a"),
        ("Container.1.Name", "main"),
        ("Container.1.Image", "busybox:1"),
        ("Tag.1.Key", "owner"),
        ("Tag.1.Value", "somebody"),
    ];
    parameters.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make e2e-groups"]
async fn a_thousand_pods_are_created_run_and_deleted_with_few_calls() {
    let pods = number("VK_GROUP_BURST", 1000);
    let cluster = ControlPlane::start(Options::with_controllers()).await.unwrap();
    let budget = json!({"requestsPerSecond": 10, "burst": 20});
    let node = EciNode::start_with(&cluster, "burst", cloud().await, budget).await;
    let foreign = Foreign::create(&node);
    node.emulator.reset_calls();
    let begin = Instant::now();
    node.apply(&deployment(&node, pods, 0)).await;
    settled(&node, pods, 0).await;
    let running = begin.elapsed();
    one_group_for_each_pod(&node, &foreign).await;
    all_gone(&node).await;
    let calls = node.emulator.calls();
    assert_eq!(pods_billed_once(&node), pods);
    foreign.is_unchanged(&node);
    assert_eq!(calls["CreateContainerGroup"].total, pods as u64, "{calls:?}");
    assert_eq!(calls.values().map(|count| count.throttled).sum::<u64>(), 0, "{calls:?}");
    tokio::task::block_in_place(|| eci::judge(&node.emulator));
    let total = calls.values().map(|count| count.total).sum::<u64>();
    println!(
        "{pods} pods Running after {running:.1?}, gone after {:.1?}; {total} calls, {} for 100 pods",
        begin.elapsed(),
        total * 100 / pods as u64
    );
}
