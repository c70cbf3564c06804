//! DaemonSets: one pod on each node that it tolerates.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tokio::time::Instant;
use vk_testing::ControlPlane;

use super::site::{BRISK, Site};

fn daemon_set(name: &str, template: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
    })
}

/// The nodes on which pods of this application are, with their UIDs.
async fn places(site: &Site<'_>, app: &str) -> BTreeMap<String, String> {
    let pods = site.list().await.into_values();
    let of = pods.filter(|pod| pod.metadata.labels.as_ref().is_some_and(|all| all["app"] == app));
    of.map(|pod| (pod.spec.unwrap().node_name.unwrap_or_default(), pod.metadata.uid.unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_set_has_a_pod_on_every_node_and_keeps_it() {
    let begun = Instant::now();
    let cluster = ControlPlane::shared_with_controllers().await;
    let mut site = Site::open(cluster, "daemon", 4, BRISK).await;
    // Without a toleration the nodes are out of bounds.
    let mut shy = site.template("shy", &[]);
    shy["spec"]["tolerations"] = json!([]);
    site.apply(&daemon_set("shy", &shy)).await;
    site.apply(&daemon_set("agent", &site.template("agent", &[]))).await;
    site.kubectl(&["rollout", "status", "daemonset/agent", "--timeout=180s"]).await;
    site.agreed(4).await;
    let first = places(&site, "agent").await;
    assert_eq!(first.keys().collect::<BTreeSet<_>>(), site.nodes.iter().collect());
    let shy = site.get("daemonset/shy").await;
    assert_eq!(shy["status"]["desiredNumberScheduled"], 0);
    let instances = site.running().await;

    // A cordoned and drained node keeps its daemons; so does one whose process was killed.
    site.kubectl(&["drain", &site.nodes[0], "--ignore-daemonsets", "--timeout=60s"]).await;
    site.restart().await;
    site.agreed(4).await;
    assert_eq!(places(&site, "agent").await, first);
    assert_eq!(site.running().await, instances);

    // One that is deleted comes back on its node, also on a cordoned one.
    let (place, uid) = first.first_key_value().unwrap();
    assert_eq!(*place, site.nodes[0]);
    let name =
        site.list().await.into_iter().find(|(_, pod)| pod.metadata.uid.as_ref() == Some(uid)).unwrap().0;
    site.kubectl(&["delete", "pod", &name]).await;
    site.agreed(4).await;
    let second = places(&site, "agent").await;
    assert_ne!(second[place], *uid);
    assert!(second.iter().filter(|(node, _)| *node != place).all(|(node, uid)| first[node] == *uid));

    // Node by node, as the default has it.
    let then = site.chronicle.now();
    site.kubectl(&["set", "image", "daemonset/agent", "main=example.com/app:2"]).await;
    site.kubectl(&["rollout", "status", "daemonset/agent", "--timeout=180s"]).await;
    site.agreed(4).await;
    let fewest = site.chronicle.fewest_ready("agent-", then);
    assert!(fewest >= 3, "only {fewest} of 4 were ready");
    site.kubectl(&["delete", "daemonset/agent", "daemonset/shy"]).await;
    let pods = site.close().await;
    println!(
        "DaemonSet on 4 nodes: drained, restarted, deleted and replaced in {:.1?}; {pods} pods",
        begun.elapsed()
    );
}
