//! Pods in another process, with restarts of both processes.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use vk_provider::{NodeChange, PodChange, Provider, error::Kind};
use vk_provider_mock::Mock;

use crate::support::{bundle, changes, next, phase, pod, reference, until};

const LIMIT: Duration = Duration::from_secs(30);

/// A backend process; killed when dropped.
struct Backend(Child);

impl Backend {
    fn start(socket: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_vk-mock-backend"))
            .arg("--socket")
            .arg(socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "{line}");
        Self(child)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn socket() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("mock.sock");
    (folder, socket)
}

async fn connect(node: &str, socket: &Path) -> Mock {
    let mock = Mock::builder(node).backend(socket).build();
    mock.connected(LIMIT).await.unwrap();
    mock
}

#[tokio::test]
async fn pods_outlive_the_mock_that_made_them_and_are_adopted_by_the_next() {
    let (_folder, socket) = socket();
    let _backend = Backend::start(&socket);
    let first = connect("node", &socket).await;
    first.create_pod(bundle(pod("u1", &[]))).await.unwrap();
    drop(first);

    let second = connect("node", &socket).await;
    let listed = second.pods().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].pod.clone(), listed[0].node.as_deref()), (reference("u1"), Some("node")));
    second.create_pod(bundle(pod("u1", &[]))).await.unwrap();
    assert_eq!(second.creations("u1").await.unwrap(), 1);
    assert_eq!(phase(&second.pod_status(&reference("u1")).await.unwrap()), "Running");

    let other = connect("other", &socket).await;
    assert!(other.pods().await.unwrap().is_empty());
}

#[tokio::test]
async fn changes_come_over_the_socket() {
    let (_folder, socket) = socket();
    let _backend = Backend::start(&socket);
    let mock = connect("node", &socket).await;
    let mut changes = changes(&mock);
    mock.create_pod(bundle(pod("u1", &[("start-delay", "10ms")]))).await.unwrap();
    until(
        &mut changes,
        |change| matches!(change, PodChange::Status(_, status) if phase(status) == "Running"),
    )
    .await;
    mock.finish(&reference("u1"), "app", 2).await.unwrap();
    until(&mut changes, |change| {
        let PodChange::Status(_, status) = change else { return false };
        let last = status.container_statuses.as_ref().unwrap()[0].last_state.as_ref();
        last.is_some_and(|last| last.terminated.as_ref().unwrap().exit_code == 2)
    })
    .await;
    mock.vanish(&reference("u1")).await.unwrap();
    until(&mut changes, |change| *change == PodChange::Refresh(reference("u1"))).await;
}

#[tokio::test]
async fn a_killed_backend_is_unavailable_and_all_pods_are_refreshed_after_the_reconnect() {
    let (_folder, socket) = socket();
    let backend = Backend::start(&socket);
    let mock = connect("node", &socket).await;
    let mut changes = changes(&mock);
    let mut node = mock.node_changes().unwrap();
    mock.create_pod(bundle(pod("u1", &[]))).await.unwrap();
    until(&mut changes, |change| matches!(change, PodChange::Status(..))).await;

    drop(backend);
    assert_eq!(next(&mut node).await, NodeChange::Refresh);
    for error in [
        mock.ping().await.unwrap_err(),
        mock.pod_status(&reference("u1")).await.unwrap_err(),
        mock.pods().await.unwrap_err(),
        mock.delete_pod(&reference("u1"), None, Duration::ZERO).await.unwrap_err(),
    ] {
        assert_eq!(*error.kind(), Kind::Unavailable, "{error}");
    }

    let _backend = Backend::start(&socket);
    mock.connected(LIMIT).await.unwrap();
    until(&mut changes, |change| *change == PodChange::Refresh(reference("u1"))).await;
    // Its pods ended with the process, which is known only now.
    assert_eq!(*mock.pod_status(&reference("u1")).await.unwrap_err().kind(), Kind::NotFound);
    mock.ping().await.unwrap();
}

#[tokio::test]
async fn many_calls_are_under_way_at_once() {
    let (_folder, socket) = socket();
    let _backend = Backend::start(&socket);
    let mock = connect("node", &socket).await;
    let calls = (0..500).map(|index| {
        let mock = mock.clone();
        async move { mock.create_pod(bundle(pod(&format!("u{index}"), &[]))).await }
    });
    futures::future::try_join_all(calls).await.unwrap();
    assert_eq!(mock.pods().await.unwrap().len(), 500);
    assert!(mock.journal().await.unwrap().values().all(|count| *count == 1));
}
