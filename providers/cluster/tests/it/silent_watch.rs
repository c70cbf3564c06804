//! A watch of the lower cluster that falls silent without an error: the API server is asked before a pod is called lost, missing or ended.

use serde_json::json;
use vk_provider::{Provider as _, error::Kind};

use crate::{
    fake_api_server::soon,
    scripted_cluster::{
        GRACE, LONG_AGO, ScriptedCluster, ScriptedNode, bundle, lower_pod, reference, upper_pod,
    },
};

const POD: &str = "/api/v1/namespaces/web/pods/a";
const NODE: &str = "/api/v1/nodes/n";

fn running() -> serde_json::Value {
    lower_pod("Running", &json!({"running": {}}))
}

#[tokio::test]
async fn a_pod_that_the_watch_never_showed_is_not_lost() {
    let mut cluster = ScriptedCluster::default();
    cluster.live.insert(POD.to_owned(), running());
    let node = ScriptedNode::start(cluster).await;
    let _changes = node.lead();
    soon(node.provider.create_pod(bundle(upper_pod("Running")))).await.unwrap();
    assert_eq!(soon(node.listed()).await, Some(("Running".to_owned(), String::new())));
    let status = soon(node.provider.pod_status(&reference())).await.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));

    node.cluster.lock().live.remove(POD);
    let lost = Some(("Failed".to_owned(), "LowerPodDeleted".to_owned()));
    assert_eq!(soon(node.listed()).await, lost, "the API server confirms that it is gone");
}

#[tokio::test]
async fn a_pod_is_lost_with_its_node_only_after_both_were_read() {
    let ready = |status| {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "resourceVersion": "7"},
            "status": {"conditions": [{"type": "Ready", "status": status}]}})
    };
    let mut overdue = running();
    overdue["metadata"]["deletionTimestamp"] = json!(LONG_AGO);
    let mut cluster = ScriptedCluster::default();
    cluster.watched.insert("pods", vec![overdue.clone()]);
    cluster.watched.insert("nodes", vec![ready("False")]);
    cluster.live.insert(POD.to_owned(), overdue);
    cluster.live.insert(NODE.to_owned(), ready("True"));
    let node = ScriptedNode::start(cluster).await;
    let _changes = node.lead();
    soon(node.provider.create_pod(bundle(upper_pod("Running")))).await.unwrap();
    let still_runs = Some(("Running".to_owned(), String::new()));
    assert_eq!(soon(node.listed()).await, still_runs, "the node is back, which the watch did not show");
}

#[tokio::test]
async fn a_pod_that_ended_by_the_watch_alone_has_not_ended() {
    let mut cluster = ScriptedCluster::default();
    let ended = lower_pod("Failed", &json!({"terminated": {"exitCode": 1}}));
    cluster.watched.insert("pods", vec![ended]);
    cluster.live.insert(POD.to_owned(), running());
    let node = ScriptedNode::start(cluster).await;
    let _changes = node.lead();
    soon(node.provider.create_pod(bundle(upper_pod("Running")))).await.unwrap();
    assert_eq!(soon(node.listed()).await, Some(("Running".to_owned(), String::new())));
}

/// The core removes a pod when its status shows that nothing runs.
#[tokio::test]
async fn a_stopping_pod_is_gone_only_after_it_was_read() {
    let mut cluster = ScriptedCluster::default();
    // A container between two restarts, when the watch fell silent.
    let mut crashed = lower_pod("Running", &json!({"terminated": {"exitCode": 1}}));
    crashed["metadata"]["deletionTimestamp"] = json!(LONG_AGO);
    crashed["metadata"]["deletionGracePeriodSeconds"] = json!(1);
    cluster.watched.insert("pods", vec![crashed]);
    cluster.live.insert(POD.to_owned(), running());
    let node = ScriptedNode::start(cluster).await;
    let _changes = node.lead();
    soon(node.provider.create_pod(bundle(upper_pod("Running")))).await.unwrap();
    soon(node.provider.delete_pod(&reference(), None, GRACE)).await.unwrap();
    let status = soon(node.provider.pod_status(&reference())).await.unwrap();
    let state = status.container_statuses.unwrap()[0].state.clone().unwrap();
    assert!(state.running.is_some(), "{state:?}");

    node.cluster.lock().live.remove(POD);
    node.cluster.lock().watched.clear();
    let gone = soon(node.provider.pod_status(&reference())).await.unwrap_err();
    assert_eq!(*gone.kind(), Kind::NotFound, "{}", gone.report());
}
