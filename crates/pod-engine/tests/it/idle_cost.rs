//! A pod that has to wait makes no calls.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::sync::watch;
use vk_provider::Provider;

use crate::support::{FOREVER, TestEngine, container, deleted, gated, pod, reference};

/// A pod with a volume that is never ready.
fn unmountable() -> Arc<Pod> {
    let mut app = container("app", FOREVER);
    app["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    pod("a", json!({ "volumes": [{ "name": "data", "configMap": { "name": "m" } }], "containers": [app] }))
}

/// Lets all tasks run without time passing.
async fn busy_moment() {
    for _ in 0..300 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_changes_while_the_network_is_away_is_looked_at_once() {
    let test = TestEngine::new();
    let (wanted, gate) = (unmountable(), watch::Sender::new(false));
    test.engine().create_pod(gated(&wanted, &gate)).await.unwrap();
    let made = reference(&wanted);
    tokio::time::sleep(Duration::from_secs(20)).await;
    test.runtime.network(false);
    test.engine().ping().await.unwrap_err();
    gate.send_replace(true);
    busy_moment().await;
    assert_eq!(test.count(&made, "NetworkNotReady"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_changes_while_the_runtime_is_away_is_looked_at_once() {
    let test = TestEngine::new();
    let (wanted, gate) = (unmountable(), watch::Sender::new(false));
    test.engine().create_pod(gated(&wanted, &gate)).await.unwrap();
    let made = reference(&wanted);
    tokio::time::sleep(Duration::from_secs(20)).await;
    test.runtime.down();
    let before = test.runtime.calls();
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_secs(30)).await.unwrap();
    gate.send_replace(true);
    busy_moment().await;
    let calls = test.runtime.calls() - before;
    assert!(calls < 10, "{calls} calls in no time");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_away_is_not_besieged_by_its_pods() {
    const PODS: u64 = 50;
    let test = TestEngine::new();
    test.engine().ping().await.unwrap();
    test.runtime.down();
    for number in 0..PODS {
        test.create(&pod(&format!("pod-{number}"), json!({ "containers": [container("app", FOREVER)] })))
            .await;
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    let before = test.runtime.calls();
    tokio::time::sleep(Duration::from_mins(1)).await;
    let calls = test.runtime.calls() - before;
    // The list, every second; the question how it is; and each pod as seldom as a kubelet asks after a failure.
    assert!(calls < 60 + 13 + PODS * 13, "{calls} calls in a minute");
    test.runtime.up();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(test.runtime.containers().len(), 50, "all start as soon as it is back");
}
