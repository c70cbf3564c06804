//! Resource usage, as the engine shows what this backend says.

#![expect(clippy::disallowed_methods, reason = "the tasks of a test end with its runtime")]

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use vk_provider::{Changes, Context, Extensions, PodRef};
use vk_supervisor::Supervisor;
use vk_testing::conformance::{Subject as _, bundle};

use super::provider_suite::EmulatedAccount;

#[tokio::test(start_paused = true)]
async fn a_container_is_shown_with_its_own_start() {
    let account = EmulatedAccount::simulated();
    let context = Context {
        supervisor: Supervisor::new(),
        node_name: "eci".to_owned(),
        internal_ip: "192.0.2.10".parse().unwrap(),
        kubelet_port: 10250,
        operating_system: "linux".to_owned(),
        cluster_domain: "cluster.local".to_owned(),
        cluster: None,
        state_dir: "unused".into(),
        shared_dir: "unused".into(),
        extensions: Extensions::new(),
    };
    let provider = account.open(context).await.unwrap();
    let Changes::Push(mut changes) = provider.changes() else { panic!("changes are pushed") };
    tokio::spawn(async move { while changes.next().await.is_some() {} });
    // Its container is started a second time after a minute.
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "6f0c1f2a-52f5-4b0e-9d5e-3f1b7f0a9c11",
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"restartPolicy": "Always", "containers": [
            {"name": "web", "image": "nginx", "command": ["sh", "-c", "sleep 60; exit 1"]}]},
    }))
    .unwrap();
    let (pod, id) = (Arc::new(pod.clone()), PodRef::of(&pod).unwrap());
    provider.create_pod(bundle(&pod, true)).await.unwrap();
    let start = vk_testing::eventually("it has started again", Duration::from_mins(3), || async {
        let status = provider.pod_status(&id).await.map_err(|error| error.to_string())?;
        let container = status.container_statuses.iter().flatten().next().ok_or("no container")?;
        let running = container.state.as_ref().and_then(|state| state.running.as_ref());
        let started = running.and_then(|running| running.started_at.as_ref());
        started
            .filter(|_| container.restart_count == 1)
            .map(|time| time.0)
            .ok_or("not started again")
            .map_err(str::to_owned)
    })
    .await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let summary = provider.stats().unwrap().summary().await.unwrap();
    let figures = &summary.pods[0];
    let container = &figures.containers[0];
    assert_eq!(container.start_time, start);
    assert!(figures.start_time < start, "the pod is older: {figures:?}");
    let measured = container.cpu.as_ref().unwrap().time;
    assert!(measured.duration_since(start) >= jiff::SignedDuration::from_secs(19), "{measured} {start}");
}
