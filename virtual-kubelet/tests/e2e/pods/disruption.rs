//! Pods that are to leave their node: drained within a budget, or pushed off by a taint.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::time::Instant;
use vk_testing::{ControlPlane, eventually};

use super::site::{CURT, PATIENCE, Site, TAINT};

/// How many pods of this application are on each node, those that leave aside.
async fn places(site: &Site<'_>, app: &str) -> BTreeMap<String, usize> {
    let mut places = BTreeMap::new();
    for (name, pod) in site.list().await {
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
    let site = Site::open(cluster, "drain", 2, CURT).await;
    let mut deployment = site.deployment("web", 6);
    spread(&mut deployment, "web");
    site.apply(&deployment).await;
    let budget = |least: usize| {
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
            "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "web"}}},
        })
    };
    site.apply(&budget(6)).await;
    site.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    site.agreed(6).await;
    let healthy = |found: &serde_json::Value| found["status"]["currentHealthy"] == 6;
    site.see("pdb/web", "the budget knows its pods", healthy).await;
    let before = site.running().await;
    let on_first = places(&site, "web-").await[&site.nodes[0]];
    assert!(on_first > 0);

    let refused = site.try_kubectl(&["drain", &site.nodes[0], "--timeout=7s"]).await;
    assert!(!refused.success(), "{refused:?}");
    assert!(refused.stderr.contains("would violate the pod's disruption budget"), "{refused:?}");
    site.agreed(6).await;
    assert_eq!(site.running().await, before, "somebody was moved");

    let then = site.chronicle.now();
    site.apply(&budget(5)).await;
    site.kubectl(&["drain", &site.nodes[0], "--timeout=180s"]).await;
    site.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    site.agreed(6).await;
    assert_eq!(places(&site, "web-").await, [(site.nodes[1].clone(), 6)].into());
    let after = site.running().await;
    let stayed = before.iter().filter(|(uid, instance)| after.get(*uid) == Some(*instance)).count();
    assert_eq!(stayed, 6 - on_first, "those on the other node had no reason to change");
    let fewest = site.chronicle.fewest_ready("web-", then);
    assert!(fewest >= 5, "only {fewest} were ready");

    site.kubectl(&["uncordon", &site.nodes[0]]).await;
    site.kubectl(&["delete", "deployment/web", "pdb/web"]).await;
    let pods = site.close().await;
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
    let site = Site::open(cluster, "taint", 2, CURT).await;
    let apps = ["soon", "later", "never"];
    for app in apps {
        let mut deployment = site.deployment(app, 4);
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
        site.apply(&deployment).await;
    }
    for app in apps {
        site.kubectl(&["rollout", "status", &format!("deployment/{app}"), "--timeout=180s"]).await;
    }
    site.agreed(12).await;
    let first = site.nodes[0].clone();
    let before = site.list().await;
    let on_first = |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&first);
    for app in apps {
        let there = before.iter().filter(|(name, pod)| name.starts_with(app) && on_first(pod)).count();
        assert!(there > 0, "{app} is not on {first}");
    }

    // Or those that tolerate the taint would come back.
    site.kubectl(&["cordon", &first]).await;
    let tainted = Instant::now();
    site.kubectl(&["taint", "node", &first, "example.com/out=now:NoExecute"]).await;
    let moved = async |app: &str| {
        eventually(&format!("{app} has moved"), PATIENCE, || async {
            let places = places(&site, app).await;
            if places.contains_key(&first) { Err(format!("{places:?}")) } else { Ok(()) }
        })
        .await;
        tainted.elapsed()
    };
    let soon = moved("soon").await;
    let later = moved("later").await;
    assert!(later >= TOLERATED, "moved after {later:?}, tolerated for {TOLERATED:?}");
    site.agreed(12).await;
    let after = site.list().await;
    for (name, pod) in &before {
        let stays = name.starts_with("never") || !on_first(&pod);
        assert_eq!(after.get(name).is_some_and(|now| now.metadata.uid == pod.metadata.uid), stays, "{name}");
    }
    // Our own taint is still there, and theirs is not touched.
    let node = site.get(&format!("node/{first}")).await;
    let keys: Vec<_> = node["spec"]["taints"].as_array().unwrap().iter().map(|taint| &taint["key"]).collect();
    assert!(keys.contains(&&json!(TAINT)) && keys.contains(&&json!("example.com/out")), "{keys:?}");
    site.kubectl(&["taint", "node", &first, "example.com/out-"]).await;
    site.kubectl(&["delete", "deployments", "--all"]).await;
    let pods = site.close().await;
    println!(
        "NoExecute: at once after {soon:.1?}, tolerated for {TOLERATED:?} after {later:.1?}; {pods} pods in {:.1?}",
        begun.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_node_that_lost_its_backend_move_and_the_old_ones_are_stopped_when_it_is_back() {
    let begun = Instant::now();
    let cluster = ControlPlane::shared_with_controllers().await;
    let mut site = Site::open(cluster, "lost", 2, CURT).await;
    let mut deployment = site.deployment("web", 6);
    spread(&mut deployment, "web");
    let spec = &mut deployment["spec"]["template"]["spec"];
    spec["terminationGracePeriodSeconds"] = json!(2);
    spec["tolerations"] = json!([
        {"key": TAINT, "operator": "Exists"},
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2},
    ]);
    site.apply(&deployment).await;
    site.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    site.agreed(6).await;
    let before = site.running().await;
    let first = site.nodes[0].clone();
    let there = places(&site, "web-").await[&first];
    assert!(there > 0);

    let lost = Instant::now();
    site.pull_out(0).await;
    eventually("all have moved", PATIENCE, || async {
        let places = places(&site, "web-").await;
        if places.contains_key(&first) { Err(format!("{places:?}")) } else { Ok(()) }
    })
    .await;
    let moved = lost.elapsed();
    site.see("deployment/web", "all are there again", |found| found["status"]["availableReplicas"] == 6)
        .await;
    // Nobody can tell whether the old ones still run, and so they stay.
    let pods = site.list().await;
    let leaving: Vec<_> = pods.values().filter(|pod| pod.metadata.deletion_timestamp.is_some()).collect();
    assert_eq!((pods.len(), leaving.len()), (6 + there, there));
    assert!(leaving.iter().all(|pod| before.contains_key(pod.metadata.uid.as_ref().unwrap())));

    site.plug_in(0);
    site.agreed(6).await;
    site.there(0).await;
    let after = site.running().await;
    let stayed = before.iter().filter(|(uid, instance)| after.get(*uid) == Some(*instance)).count();
    assert_eq!(stayed, 6 - there);
    site.kubectl(&["delete", "deployment/web"]).await;
    let pods = site.close().await;
    println!(
        "a backend that is lost: {there} pods moved after {moved:.1?}, all in order after {:.1?}; {pods} pods",
        begun.elapsed()
    );
}
