//! DaemonSets: one pod on each node that it tolerates.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tokio::time::Instant;
use vk_testing::ControlPlane;

use super::workload_test::{BRISK, WorkloadTest};

fn daemon_set(name: &str, template: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
    })
}

/// The nodes on which pods of this application are, with their UIDs.
async fn places(test: &WorkloadTest<'_>, app: &str) -> BTreeMap<String, String> {
    let pods = test.list().await.into_values();
    let of = pods.filter(|pod| pod.metadata.labels.as_ref().is_some_and(|all| all["app"] == app));
    of.map(|pod| (pod.spec.unwrap().node_name.unwrap_or_default(), pod.metadata.uid.unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_set_has_a_pod_on_every_node_and_keeps_it() {
    let begun = Instant::now();
    let cluster = ControlPlane::shared_with_controllers().await;
    let mut test = WorkloadTest::open(cluster, "daemon", 4, BRISK).await;
    // Without a toleration the nodes are out of bounds.
    let mut shy = test.template("shy", &[]);
    shy["spec"]["tolerations"] = json!([]);
    test.apply(&daemon_set("shy", &shy)).await;
    test.apply(&daemon_set("agent", &test.template("agent", &[]))).await;
    test.kubectl(&["rollout", "status", "daemonset/agent", "--timeout=180s"]).await;
    test.agreed(4).await;
    let first = places(&test, "agent").await;
    assert_eq!(first.keys().collect::<BTreeSet<_>>(), test.nodes.iter().collect());
    let shy = test.get("daemonset/shy").await;
    assert_eq!(shy["status"]["desiredNumberScheduled"], 0);
    let instances = test.running().await;

    // A cordoned and drained node keeps its daemons; so does one whose process was killed.
    test.kubectl(&["drain", &test.nodes[0], "--ignore-daemonsets", "--timeout=60s"]).await;
    test.restart().await;
    test.agreed(4).await;
    assert_eq!(places(&test, "agent").await, first);
    assert_eq!(test.running().await, instances);

    // One that is deleted comes back on its node, also on a cordoned one.
    let (place, uid) = first.first_key_value().unwrap();
    assert_eq!(*place, test.nodes[0]);
    let name =
        test.list().await.into_iter().find(|(_, pod)| pod.metadata.uid.as_ref() == Some(uid)).unwrap().0;
    test.kubectl(&["delete", "pod", &name]).await;
    test.agreed(4).await;
    let second = places(&test, "agent").await;
    assert_ne!(second[place], *uid);
    assert!(second.iter().filter(|(node, _)| *node != place).all(|(node, uid)| first[node] == *uid));

    // Node by node, as the default has it.
    let then = test.log.now();
    test.kubectl(&["set", "image", "daemonset/agent", "main=example.com/app:2"]).await;
    test.kubectl(&["rollout", "status", "daemonset/agent", "--timeout=180s"]).await;
    test.agreed(4).await;
    let fewest = test.log.fewest_ready("agent-", then);
    assert!(fewest >= 3, "only {fewest} of 4 were ready");
    test.kubectl(&["delete", "daemonset/agent", "daemonset/shy"]).await;
    let pods = test.close().await;
    println!(
        "DaemonSet on 4 nodes: drained, restarted, deleted and replaced in {:.1?}; {pods} pods",
        begun.elapsed()
    );
}
