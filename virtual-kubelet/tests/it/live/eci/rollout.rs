//! Many pods: rollouts while the command is killed and the cloud has every fault, and a thousand pods at once. Their containers are simulated.

#![allow(clippy::print_stdout, reason = "what was measured on the way")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::Instant;
use vk_testing::{
    ControlPlane,
    cloud::eci::{EciEmulator, Fault, Options as Cloud, Rule, Timing},
    control_plane::Options,
    eventually,
};

use super::{super::becomes_ready, EciNode};
use crate::live::container_node::number;

const LIMIT: Duration = Duration::from_mins(5);
/// Of another cluster in the account.
const FOREIGN: &str = "somebody-elses";

async fn cloud() -> EciEmulator {
    let mut options = Cloud { limits_rates: false, seed: number("VK_SEED", 1) as u64, ..Cloud::new() };
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

/// Checks that no second of a pod was billed twice: no two groups of one pod existed at the same time.
fn billed_once(node: &EciNode<'_>) -> usize {
    let mut owners: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for bill in node.emulator.bills().into_iter().filter(|bill| bill.name != FOREIGN) {
        // The name is that of the pod's UID, and of the attempt from the second on.
        let pod = bill.name.splitn(3, '-').take(2).collect::<Vec<_>>().join("-");
        owners.entry(pod).or_default().push(bill);
    }
    for (pod, bills) in &mut owners {
        bills.sort_by_key(|bill| bill.from);
        for pair in bills.windows(2) {
            assert!(pair[0].to.is_some_and(|to| to <= pair[1].from), "{pod} is paid for twice: {pair:?}");
        }
    }
    owners.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make e2e-groups"]
async fn kills_during_rollouts_on_a_cloud_with_every_fault_leave_one_group_for_each_pod() {
    let (kills, replicas) = (number("VK_GROUP_KILLS", 100), number("VK_GROUP_PODS", 200));
    let cluster = ControlPlane::start(Options::with_controllers()).await.unwrap();
    let mut node = EciNode::start_on(&cluster, "rollout", cloud().await).await;
    let foreign = node.emulator.create(&foreign_group()).unwrap();
    let before = node.emulator.request(&foreign);
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
    let uids: BTreeSet<String> = node.get("pods").await["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned())
        .collect();
    eventually("the cloud has one group for each pod and no other", LIMIT, || async {
        let groups = node.emulator.groups();
        let own: Vec<_> = groups.iter().filter(|group| group.id != foreign).collect();
        let owners: BTreeSet<_> = own
            .iter()
            .filter_map(|group| group.tags.iter().map(|(_, value)| value).find(|value| uids.contains(*value)))
            .collect();
        let counts = (own.len(), owners.len());
        if counts == (uids.len(), uids.len()) { Ok(()) } else { Err(format!("{counts:?} of {}", uids.len())) }
    })
    .await;
    assert_eq!(node.emulator.request(&foreign), before, "a foreign group was changed");
    let is_there =
        node.emulator.groups().iter().any(|group| group.id == foreign && group.status != "Terminating");
    assert!(is_there, "a foreign group was deleted");
    let calls = node.emulator.calls();
    let sum = |of: fn(&vk_testing::cloud::eci::CallCount) -> u64| calls.values().map(of).sum::<u64>();
    println!(
        "seed {}: {kills} kills in {:.0?}, {replicas} pods run, {} pods had a group, {} calls, {} of them refused",
        number("VK_SEED", 1),
        begin.elapsed(),
        billed_once(&node),
        sum(|count| count.total),
        sum(|count| count.refused),
    );
    node.kubectl(&["delete", "deployment/web"]).await;
    eventually("the cloud has the foreign group only", LIMIT, || async {
        let groups = node.emulator.groups();
        if groups.len() == 1 { Ok(()) } else { Err(format!("{} groups", groups.len())) }
    })
    .await;
    billed_once(&node);
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
    let node = EciNode::start_on(&cluster, "burst", cloud().await).await;
    node.emulator.reset_calls();
    let begin = Instant::now();
    node.apply(&deployment(&node, pods, 0)).await;
    settled(&node, pods, 0).await;
    let running = begin.elapsed();
    node.kubectl(&["delete", "deployment/web"]).await;
    eventually("the cloud is empty", LIMIT, || async {
        let groups = node.emulator.groups();
        if groups.is_empty() { Ok(()) } else { Err(format!("{} groups", groups.len())) }
    })
    .await;
    let calls = node.emulator.calls();
    assert_eq!(billed_once(&node), pods);
    assert_eq!(calls["CreateContainerGroup"].total, pods as u64, "{calls:?}");
    assert_eq!(calls.values().map(|count| count.throttled).sum::<u64>(), 0, "{calls:?}");
    let total = calls.values().map(|count| count.total).sum::<u64>();
    println!(
        "{pods} pods Running after {running:.1?}, gone after {:.1?}; {total} calls, {} for 100 pods",
        begin.elapsed(),
        total * 100 / pods as u64
    );
}
