//! Eviction of pods: drains within a budget, and taints.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::time::Instant;
use vk_testing::{ControlPlane, eventually};

use super::workload_test::{CURT, PATIENCE, TAINT, WorkloadTest};

/// How many pods of this application are on each node, those that leave aside.
async fn places(test: &WorkloadTest<'_>, app: &str) -> BTreeMap<String, usize> {
    let mut places = BTreeMap::new();
    for (name, pod) in test.list().await {
        if name.starts_with(app) && pod.metadata.deletion_timestamp.is_none() {
            *places.entry(pod.spec.unwrap().node_name.unwrap_or_default()).or_default() += 1;
        }
    }
    places
}

/// Spreads the pods of a Deployment over the nodes.
fn spread(deployment: &mut serde_json::Value, app: &str) {
    deployment["spec"]["template"]["spec"]["topologySpreadConstraints"] = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": app}},
    }]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_the_disruption_budget_and_then_passes() {
    let begun = Instant::now();
    let cluster = ControlPlane::shared_with_controllers().await;
    let test = WorkloadTest::open(cluster, "drain", 2, CURT).await;
    let mut deployment = test.deployment("web", 6);
    spread(&mut deployment, "web");
    test.apply(&deployment).await;
    let budget = |least: usize| {
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
            "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "web"}}},
        })
    };
    test.apply(&budget(6)).await;
    test.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    test.agreed(6).await;
    let healthy = |found: &serde_json::Value| found["status"]["currentHealthy"] == 6;
    test.see("pdb/web", "the budget knows its pods", healthy).await;
    let before = test.running().await;
    let on_first = places(&test, "web-").await[&test.nodes[0]];
    assert!(on_first > 0);

    let refused = test.try_kubectl(&["drain", &test.nodes[0], "--timeout=7s"]).await;
    assert!(!refused.success(), "{refused:?}");
    assert!(refused.stderr.contains("would violate the pod's disruption budget"), "{refused:?}");
    test.agreed(6).await;
    assert_eq!(test.running().await, before, "somebody was moved");

    let then = test.log.now();
    test.apply(&budget(5)).await;
    test.kubectl(&["drain", &test.nodes[0], "--timeout=180s"]).await;
    test.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    test.agreed(6).await;
    assert_eq!(places(&test, "web-").await, [(test.nodes[1].clone(), 6)].into());
    let after = test.running().await;
    let stayed = before.iter().filter(|(uid, instance)| after.get(*uid) == Some(*instance)).count();
    assert_eq!(stayed, 6 - on_first, "those on the other node had no reason to change");
    let fewest = test.log.fewest_ready("web-", then);
    assert!(fewest >= 5, "only {fewest} were ready");

    test.kubectl(&["uncordon", &test.nodes[0]]).await;
    test.kubectl(&["delete", "deployment/web", "pdb/web"]).await;
    let pods = test.close().await;
    println!(
        "drain of {on_first} pods within a budget of one: {:.1?}; {pods} pods, at least {fewest} ready",
        begun.elapsed()
    );
}

const TOLERATED: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread")]
async fn a_taint_moves_pods_to_the_other_node_when_their_toleration_ends() {
    let begun = Instant::now();
    let cluster = ControlPlane::shared_with_controllers().await;
    let test = WorkloadTest::open(cluster, "taint", 2, CURT).await;
    let apps = ["soon", "later", "never"];
    for app in apps {
        let mut deployment = test.deployment(app, 4);
        spread(&mut deployment, app);
        let ours = json!({"key": TAINT, "operator": "Exists"});
        let theirs = json!({"key": "example.com/out", "operator": "Exists", "effect": "NoExecute"});
        let mut timed = theirs.clone();
        timed["tolerationSeconds"] = TOLERATED.as_secs().into();
        deployment["spec"]["template"]["spec"]["tolerations"] = match app {
            "soon" => json!([ours]),
            "later" => json!([ours, timed]),
            _ => json!([ours, theirs]),
        };
        test.apply(&deployment).await;
    }
    for app in apps {
        test.kubectl(&["rollout", "status", &format!("deployment/{app}"), "--timeout=180s"]).await;
    }
    test.agreed(12).await;
    let first = test.nodes[0].clone();
    let before = test.list().await;
    let on_first = |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&first);
    for app in apps {
        let there = before.iter().filter(|(name, pod)| name.starts_with(app) && on_first(pod)).count();
        assert!(there > 0, "{app} is not on {first}");
    }

    // Or those that tolerate the taint would come back.
    test.kubectl(&["cordon", &first]).await;
    let tainted = Instant::now();
    test.kubectl(&["taint", "node", &first, "example.com/out=now:NoExecute"]).await;
    let moved = async |app: &str| {
        eventually(&format!("{app} has moved"), PATIENCE, || async {
            let places = places(&test, app).await;
            if places.contains_key(&first) { Err(format!("{places:?}")) } else { Ok(()) }
        })
        .await;
        tainted.elapsed()
    };
    let soon = moved("soon").await;
    let later = moved("later").await;
    assert!(later >= TOLERATED, "moved after {later:?}, tolerated for {TOLERATED:?}");
    test.agreed(12).await;
    let after = test.list().await;
    for (name, pod) in &before {
        let stays = name.starts_with("never") || !on_first(&pod);
        assert_eq!(after.get(name).is_some_and(|now| now.metadata.uid == pod.metadata.uid), stays, "{name}");
    }
    // Our own taint is still there, and theirs is not touched.
    let node = test.get(&format!("node/{first}")).await;
    let keys: Vec<_> = node["spec"]["taints"].as_array().unwrap().iter().map(|taint| &taint["key"]).collect();
    assert!(keys.contains(&&json!(TAINT)) && keys.contains(&&json!("example.com/out")), "{keys:?}");
    test.kubectl(&["taint", "node", &first, "example.com/out-"]).await;
    test.kubectl(&["delete", "deployments", "--all"]).await;
    let pods = test.close().await;
    println!(
        "NoExecute: at once after {soon:.1?}, tolerated for {TOLERATED:?} after {later:.1?}; {pods} pods in {:.1?}",
        begun.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_node_that_lost_its_backend_move_and_the_old_ones_are_stopped_when_it_is_back() {
    let begun = Instant::now();
    let cluster = ControlPlane::shared_with_controllers().await;
    let mut test = WorkloadTest::open(cluster, "lost", 2, CURT).await;
    let mut deployment = test.deployment("web", 6);
    spread(&mut deployment, "web");
    let spec = &mut deployment["spec"]["template"]["spec"];
    spec["terminationGracePeriodSeconds"] = json!(2);
    spec["tolerations"] = json!([
        {"key": TAINT, "operator": "Exists"},
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2},
    ]);
    test.apply(&deployment).await;
    test.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    test.agreed(6).await;
    let before = test.running().await;
    let first = test.nodes[0].clone();
    let there = places(&test, "web-").await[&first];
    assert!(there > 0);

    let lost = Instant::now();
    test.pull_out(0).await;
    eventually("all have moved", PATIENCE, || async {
        let places = places(&test, "web-").await;
        if places.contains_key(&first) { Err(format!("{places:?}")) } else { Ok(()) }
    })
    .await;
    let moved = lost.elapsed();
    test.see("deployment/web", "all are there again", |found| found["status"]["availableReplicas"] == 6)
        .await;
    // Nobody can tell whether the old ones still run, and so they stay.
    let pods = test.list().await;
    let leaving: Vec<_> = pods.values().filter(|pod| pod.metadata.deletion_timestamp.is_some()).collect();
    assert_eq!((pods.len(), leaving.len()), (6 + there, there));
    assert!(leaving.iter().all(|pod| before.contains_key(pod.metadata.uid.as_ref().unwrap())));

    test.plug_in(0);
    test.agreed(6).await;
    test.there(0).await;
    let after = test.running().await;
    let stayed = before.iter().filter(|(uid, instance)| after.get(*uid) == Some(*instance)).count();
    assert_eq!(stayed, 6 - there);
    test.kubectl(&["delete", "deployment/web"]).await;
    let pods = test.close().await;
    println!(
        "a backend that is lost: {there} pods moved after {moved:.1?}, all in order after {:.1?}; {pods} pods",
        begun.elapsed()
    );
}
