//! Tests of the contract with pods in this process.

use std::time::Duration;

use vk_provider::{
    Config, Context, Factory, NodeChange, NodeEvent, NodeTemplate, PodChange, Provider, Quantity, error::Kind,
};
use vk_provider_mock::{Call, Fault, Lifecycle, Mock, MockFactory, PodHost};

use crate::support::{bundle, changes, next, phase, pod, reference, until};

fn context(node: &str) -> Context {
    Context {
        node_name: node.into(),
        internal_ip: [192, 0, 2, 7].into(),
        kubelet_port: 10250,
        operating_system: "linux".into(),
        cluster_domain: "cluster.local".into(),
        cluster: None,
        state_dir: "/nonexistent".into(),
        shared_dir: "/nonexistent".into(),
        extensions: vk_provider::Extensions::default(),
        supervisor: vk_provider::Supervisor::new(),
    }
}

async fn open(text: &str, node: &str) -> vk_provider::Result<std::sync::Arc<dyn Provider>> {
    let config = Config::File { path: "mock.yaml".into(), text: text.into() };
    let backend = MockFactory.open(config, context(node)).await?;
    match next(&mut backend.nodes()).await {
        NodeEvent::Added(name, provider) => {
            assert_eq!(name, node);
            Ok(provider)
        }
        NodeEvent::Removed(_) => panic!("the node was removed"),
    }
}

#[tokio::test(start_paused = true)]
async fn every_step_of_a_pods_life_is_pushed() {
    let life = Lifecycle {
        start_delay: Duration::from_secs(1),
        ready_delay: Duration::from_secs(2),
        ..Lifecycle::default()
    };
    let mock = Mock::builder("node").life(life).build();
    let mut changes = changes(&mock);
    mock.create_pod(bundle(pod("u1", &[]))).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let PodChange::Status(changed, status) = next(&mut changes).await else { panic!("a pod is gone") };
        assert_eq!(changed, reference("u1"));
        let ready = status.container_statuses.as_ref().unwrap()[0].ready;
        seen.push((phase(&status).to_owned(), ready));
    }
    assert_eq!(seen, [("Pending".into(), false), ("Running".into(), false), ("Running".into(), true)]);
    mock.delete_pod(&reference("u1"), None, Duration::from_secs(30)).await.unwrap();
    until(
        &mut changes,
        |change| matches!(change, PodChange::Status(_, status) if phase(status) == "Succeeded"),
    )
    .await;
    until(&mut changes, |change| *change == PodChange::Refresh(reference("u1"))).await;
    let gone = mock.pod_status(&reference("u1")).await.unwrap_err();
    assert_eq!(*gone.kind(), Kind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_the_newest_status_once() {
    let mock = Mock::builder("node").build();
    let mut changes = changes(&mock);
    for uid in ["u1", "u2"] {
        mock.create_pod(bundle(pod(uid, &[]))).await.unwrap();
    }
    mock.finish(&reference("u1"), "app", 1).await.unwrap();
    let PodChange::Status(first, status) = next(&mut changes).await else { panic!() };
    assert_eq!(first, reference("u1"));
    assert!(status.container_statuses.unwrap()[0].last_state.is_some());
    let PodChange::Status(second, _) = next(&mut changes).await else { panic!() };
    assert_eq!(second, reference("u2"));
}

#[tokio::test(start_paused = true)]
async fn a_new_mock_on_the_same_host_adopts_the_pods() {
    let host = PodHost::default();
    let old = Mock::builder("node").host(host.clone()).build();
    old.create_pod(bundle(pod("u1", &[]))).await.unwrap();
    drop(old);
    let new = Mock::builder("node").host(host.clone()).build();
    let listed = new.pods().await.unwrap();
    assert_eq!(listed[0].pod, reference("u1"));
    assert_eq!(listed[0].node.as_deref(), Some("node"));
    new.create_pod(bundle(pod("u1", &[]))).await.unwrap();
    assert_eq!(new.creations("u1").await.unwrap(), 1);
    assert!(Mock::builder("other").host(host).build().pods().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn annotations_script_one_pod() {
    let mock = Mock::builder("node").build();
    let failing = pod("u1", &[("fail-create", "Exhausted: no room")]);
    let error = mock.create_pod(bundle(failing)).await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (&Kind::Exhausted, "no room"));
    let error = mock.create_pod(bundle(pod("u2", &[("run-for", "long")]))).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Invalid);
    assert!(error.message().contains("run-for") && error.message().contains("long"), "{error}");
    let mut changes = changes(&mock);
    mock.create_pod(bundle(pod("u3", &[("vanish-after", "9s")]))).await.unwrap();
    until(&mut changes, |change| *change == PodChange::Refresh(reference("u3"))).await;
    assert_eq!(*mock.pod_status(&reference("u3")).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(mock.calls(Call::Create), 3);
}

#[tokio::test(start_paused = true)]
async fn a_create_that_fails_after_success_has_created_the_pod_once() {
    let lost = Fault::error(Kind::Unavailable, "the answer is lost").times(1).after_success();
    let mock = Mock::builder("node").fault(Call::Create, lost).build();
    assert_eq!(*mock.create_pod(bundle(pod("u1", &[]))).await.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(mock.pods().await.unwrap().len(), 1);
    mock.create_pod(bundle(pod("u1", &[]))).await.unwrap();
    assert_eq!(mock.creations("u1").await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_node_is_described_and_its_changes_are_reported() {
    let provider = open("vk: {cpu: 2, providerID: 'mock://a', others: {gpu: 4}}", "vk").await.unwrap();
    let mut node = NodeTemplate::default();
    provider.configure_node(&mut node);
    assert_eq!(node.capacity["cpu"], Quantity::units(2));
    assert_eq!(node.capacity["gpu"], Quantity::units(4));
    assert_eq!(node.capacity, node.allocatable);
    assert_eq!(node.provider_id.as_deref(), Some("mock://a"));
    assert!(node.system.container_runtime_version.starts_with("mock://"));

    let mock = Mock::builder("node").build();
    let mut told = mock.node_changes().unwrap();
    mock.set_capacity("cpu", Quantity::units(7));
    assert_eq!(next(&mut told).await, NodeChange::Refresh);
    let mut node = NodeTemplate::default();
    mock.configure_node(&mut node);
    assert_eq!(node.capacity["cpu"], Quantity::units(7));
    mock.faults().set(Call::Ping, Fault::error(Kind::Unavailable, "down"));
    assert_eq!(next(&mut told).await, NodeChange::Refresh);
    assert_eq!(mock.ping().await.unwrap_err().message(), "down");
}

#[tokio::test(start_paused = true)]
async fn a_wrong_configuration_is_invalid_and_an_absent_backend_unavailable() {
    let wrong = open("vk: {cpu: lots}", "vk").await.err().unwrap();
    assert_eq!(*wrong.kind(), Kind::Invalid);
    let absent = open("backend: /nonexistent/mock.sock", "vk").await.err().unwrap();
    assert_eq!(*absent.kind(), Kind::Unavailable);
    assert!(absent.message().contains("/nonexistent/mock.sock"), "{absent}");
}

#[tokio::test(start_paused = true)]
async fn pods_have_addresses_of_their_own_and_the_nodes_as_host() {
    let provider = open("podCIDR: 10.9.0.0/24", "vk").await.unwrap();
    for index in 0..100 {
        provider.create_pod(bundle(pod(&format!("u{index}"), &[]))).await.unwrap();
    }
    let listed = provider.pods().await.unwrap();
    let addresses: std::collections::BTreeSet<_> =
        listed.iter().map(|pod| pod.status.pod_ip.clone().unwrap()).collect();
    assert_eq!(addresses.len(), 100);
    assert!(addresses.iter().all(|address| address.starts_with("10.9.0.")));
    assert!(listed.iter().all(|pod| pod.status.host_ip.as_deref() == Some("192.0.2.7")));
}
