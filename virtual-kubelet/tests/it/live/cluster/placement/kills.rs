//! Placement and two virtual nodes are killed at random times during rollouts of gated pods: no pod is lost, doubled or left over.

#![allow(clippy::print_stdout, reason = "what was measured on the way")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use tokio::sync::watch;
use vk_testing::eventually;

use super::{PlacementTest, lower_pods, placement, running, spec};
use crate::live::{
    Process,
    cluster::{
        cluster_pair::{ClusterPair, ORIGIN_UID, SCHEDULED, lower, start_lower},
        namespace_client::{NamespaceClient, TIMEOUT, condition, text},
    },
    container_node::number,
};

/// With more kills than this, each virtual node has a lower cluster of its own. Control planes are expensive: otherwise they share one, and
/// each has a lower namespace of its own there, so that two lower pods of one upper pod do not collide by their names.
const FEW: usize = 50;
/// Pods that a lower node takes.
const PER_LOWER_NODE: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_rollout_of_gated_pods_loses_and_duplicates_nothing_while_everything_is_killed() {
    Box::pin(roll_out_and_kill("estimate", "kills")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_rollout_of_pods_on_trial_loses_and_duplicates_nothing_while_everything_is_killed() {
    Box::pin(roll_out_and_kill("trial", "trial-kills")).await;
}

/// Placement, the first and the second virtual node and all of them together are killed in turn, while a Deployment is rolled out behind the gate.
async fn roll_out_and_kill(gates: &str, prefix: &str) {
    let (kills, replicas) = (number("VK_PLACEMENT_KILLS", 9), number("VK_PLACEMENT_PODS", 40));
    let seed = number("VK_SEED", 1);
    let own = if kills > FEW { vec![start_lower().await, start_lower().await] } else { Vec::new() };
    let lowers = match &own[..] {
        [first, second] => [first, second],
        _ => [lower().await; 2],
    };
    let timeout = if own.is_empty() { 2 * TIMEOUT } else { 5 * TIMEOUT };
    let flags = ["--gates", gates];
    let test = PlacementTest::new(&flags).await;
    let account = test.account().await;
    let team = test.namespace(prefix).await;
    // More than fits on one virtual node, and enough on both for a rollout, which has a quarter more.
    let lower_nodes = u16::try_from((replicas * 13 / 10).div_ceil(2 * PER_LOWER_NODE)).unwrap();
    let (mut pairs, mut places) = (Vec::new(), Vec::new());
    for (suffix, lower) in ["a", "b"].into_iter().zip(lowers) {
        let namespace = format!("{}-{suffix}", team.namespace);
        let config = json!({"namespaces": {&team.namespace: namespace}});
        let name = format!("{prefix}-{suffix}");
        pairs.push(ClusterPair::open(&test.upper, lower, &name, lower_nodes, config, &[]).await);
        places.push(NamespaceClient::new(lower, &namespace));
    }
    let (enough, watched) = watch::channel(false);
    let rollout = async {
        let mut process = placement(&account, &flags);
        team.create("deployments", &deployment(replicas, 0)).await;
        let rng = &mut StdRng::seed_from_u64(seed as u64);
        for kill in 1..=kills {
            tokio::time::sleep(Duration::from_millis(rng.random_range(50..1500))).await;
            kill_in_turn(kill, &mut pairs, &mut process, || placement(&account, &flags));
            if kill % 10 == 0 {
                team.patch("deployments/web", &deployment(replicas, kill)).await;
            }
        }
        settle(&team, &places, replicas, kills / 10 * 10, timeout).await;
        enough.send(true).unwrap();
        process
    };
    let (report, _process) = tokio::join!(lower_pods::observe(&places, watched), rollout);
    assert_eq!(report.doubled, Vec::<String>::new(), "two lower pods of one pod at the same time");
    if gates == "estimate" {
        let again: Vec<_> = report.seen.iter().filter(|(_, lower)| lower.len() > 1).collect();
        assert!(again.is_empty(), "made more than once: {again:?}");
    }
    println!(
        "seed {seed}: {kills} kills with {gates}, {} upper pods came below, {replicas} run",
        report.seen.len()
    );
    team.delete("deployments/web", None).await;
    eventually("nothing is left in any cluster", timeout, || async {
        let mut counts = vec![team.list("pods").await.len()];
        for place in &places {
            counts.push(place.list("pods").await.len());
        }
        if counts == [0, 0, 0] { Ok(()) } else { Err(format!("{counts:?}")) }
    })
    .await;
}

fn deployment(replicas: usize, revision: usize) -> Value {
    let labels = json!({"app": "web", "virtual-pod": "true"});
    json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": labels, "annotations": {"revision": revision.to_string()}},
                "spec": spec(1),
            },
        },
    })
}

fn kill_in_turn(
    kill: usize,
    pairs: &mut [ClusterPair<'_>],
    placement: &mut Process,
    start: impl Fn() -> Process,
) {
    let victim = kill % 4;
    let nodes = match victim {
        1 | 2 => victim - 1..victim,
        3 => 0..pairs.len(),
        _ => 0..0,
    };
    if matches!(victim, 0 | 3) {
        placement.kill();
    }
    for pair in &mut pairs[nodes.clone()] {
        pair.kill();
    }
    if matches!(victim, 0 | 3) {
        *placement = start();
    }
    for pair in &mut pairs[nodes] {
        pair.launch();
    }
}

/// Waits until all pods of the last revision run, and each is exactly once below.
async fn settle(
    team: &NamespaceClient<'_>,
    places: &[NamespaceClient<'_>],
    replicas: usize,
    revision: usize,
    timeout: Duration,
) {
    eventually("all pods of the last revision run, each once below", timeout, || async {
        let above = team.list("pods").await;
        let current =
            |pod: &&Value| pod["metadata"]["annotations"]["revision"] == json!(revision.to_string());
        let running = running(&above.iter().filter(current).cloned().collect::<Vec<_>>());
        let upper: BTreeSet<String> =
            above.iter().map(|pod| text(&pod["metadata"]["uid"]).to_owned()).collect();
        let mut lower: BTreeMap<String, usize> = BTreeMap::new();
        for place in places {
            for pod in place.list("pods").await {
                *lower.entry(text(&pod["metadata"]["labels"][ORIGIN_UID]).to_owned()).or_default() += 1;
            }
        }
        let counts = (running, above.len(), lower.values().sum::<usize>());
        if counts == (replicas, replicas, replicas) && lower.keys().eq(&upper) {
            Ok(())
        } else {
            Err(format!("{counts:?}"))
        }
    })
    .await;
    let stuck = |pod: &&Value| condition(pod, SCHEDULED)["status"] == "False";
    assert_eq!(team.list("pods").await.iter().filter(stuck).count(), 0, "no pod waits below");
}
