//! Start, shutdown and restart of a process.

use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::Instant;
use vk_testing::{ControlPlane, control_plane::Options, eventually, kubectl};

use super::{
    SOON, answers, becomes, becomes_ready, exists, leases, node, ports, ready, run, run_as, token_kubeconfig,
};

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_node_is_ready_while_its_process_runs_and_marked_when_it_stops() {
    let cluster = ControlPlane::shared().await;
    let mut process = run(cluster, &["--nodename", "life"]).start();
    becomes_ready(cluster, "life").await;
    let listed = kubectl(cluster, ["get", "nodes", "life", "--no-headers"]).await.unwrap();
    let columns: Vec<&str> = listed.stdout.split_whitespace().collect();
    assert_eq!(columns[..2], ["life", "Ready"], "{listed:?}");

    let outcome = process.stop(Duration::from_secs(10)).await;
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, ""), "{outcome:?}");
    let condition = ready(&node(cluster, "life").await);
    assert_eq!((&condition["status"], &condition["reason"]), (&"False".into(), &"NodeShutdown".into()));
    let listed = kubectl(cluster, ["get", "nodes", "life", "--no-headers"]).await.unwrap();
    assert!(listed.stdout.contains("NotReady"), "{listed:?}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_node_and_its_lease_are_deleted_at_the_end_when_asked_for() {
    let cluster = ControlPlane::shared().await;
    let mut process = run(cluster, &["--nodename", "goes", "--shutdown-node", "delete"]).start();
    becomes_ready(cluster, "goes").await;
    process.signal(Signal::INT);
    assert_eq!(process.end(Duration::from_secs(10)).await.code, 0);
    assert!(!exists(cluster, "goes").await);
    assert!(leases(cluster).get("goes").await.is_err());
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_hanging_api_server_does_not_keep_a_process_from_stopping() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let mut process = run(&cluster, &["--nodename", "stuck", "--shutdown-timeout", "3s"]).start();
    becomes_ready(&cluster, "stuck").await;
    cluster.pause_api_server().await.unwrap();
    let begin = Instant::now();
    let outcome = process.stop(Duration::from_secs(5)).await;
    let took = begin.elapsed();
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(took >= Duration::from_millis(2900), "it gave up after {took:?}");

    // Nobody could write that it stopped; the next process says that it is there again.
    cluster.resume_api_server().await.unwrap();
    let port = ports(1);
    let admin = format!("127.0.0.1:{port}");
    let _next = run(&cluster, &["--nodename", "stuck", "--metrics-addr", &admin]).start();
    answers(port, "/readyz", 200, Duration::from_secs(10)).await;
}

#[tokio::test]
async fn a_process_that_waits_for_its_api_server_stops_when_told() {
    // The kernel takes connections, and nobody answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = TempDir::new().unwrap();
    let server = format!("http://{}", silent.local_addr().unwrap());
    let kubeconfig = token_kubeconfig(folder.path(), &server);
    let port = ports(1);
    let admin = format!("127.0.0.1:{port}");
    let mut process = run_as(&kubeconfig, &["--startup-timeout", "0", "--metrics-addr", &admin]).start();
    // It is alive and says so, and is not ready.
    answers(port, "/healthz", 200, SOON).await;
    answers(port, "/readyz", 503, Duration::from_secs(1)).await;
    let outcome = process.stop(Duration::from_secs(2)).await;
    assert_eq!(outcome.code, 0, "{outcome:?}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_killed_process_is_followed_at_once_by_the_next_one_on_the_same_node() {
    let cluster = ControlPlane::shared().await;
    let port = ports(1);
    let admin = format!("127.0.0.1:{port}");
    let kubelet = ports(1).to_string();
    let flags =
        ["--nodename", "again", "--metrics-addr", admin.as_str(), "--no-port", "--port", kubelet.as_str()];
    let mut first = run(cluster, &flags).start();
    let before = becomes_ready(cluster, "again").await;
    first.kill();

    let second = run(cluster, &flags).start();
    // Its own status is written: the condition of the first would look the same.
    answers(port, "/readyz", 200, Duration::from_secs(5)).await;
    let after = becomes(cluster, "again", "True", "KubeletReady", Duration::from_secs(5)).await;
    assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
    let lease = leases(cluster).get("again").await.unwrap();
    let holder = &lease.metadata.annotations.unwrap()["virtual-kubelet.io/instance"];
    assert!(holder.contains(&format!("/{}/", second.pid())), "{holder}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_process_that_ended_in_order_is_followed_at_once() {
    let cluster = ControlPlane::shared().await;
    let mut first = run(cluster, &["--nodename", "relay"]).start();
    let before = becomes_ready(cluster, "relay").await;
    first.stop(Duration::from_secs(10)).await;
    let _second = run(cluster, &["--nodename", "relay"]).start();
    let after = becomes(cluster, "relay", "True", "KubeletReady", Duration::from_secs(5)).await;
    assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_second_signal_ends_the_process_at_once() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let mut process = run(&cluster, &["--nodename", "hurry", "--shutdown-timeout", "1m"]).start();
    becomes_ready(&cluster, "hurry").await;
    cluster.pause_api_server().await.unwrap();
    process.signal(Signal::TERM);
    eventually("the first signal is heard", SOON, || {
        let heard = process.stderr().contains("\"stopping\"");
        async move { heard.then_some(()).ok_or("no") }
    })
    .await;
    let outcome = process.stop(Duration::from_secs(2)).await;
    assert_eq!(outcome.code, 130, "{outcome:?}");
}
