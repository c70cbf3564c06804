//! A failing backend.

use std::time::Duration;

use vk_testing::ControlPlane;

use super::{SOON, answers, becomes, becomes_ready, exists, ports, ready, run};

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_failing_provider_shows_on_the_node_and_the_process_goes_on() {
    let cluster = ControlPlane::shared().await;
    let file = "providerConfig: {faults: {ping: {error: Unavailable, message: the backend is down}}}\n";
    let mut process = run(cluster, &["--nodename", "failing"]).file(file).start();
    let node = becomes(cluster, "failing", "False", "ProviderNotReady", SOON).await;
    let message = ready(&node)["message"].to_string();
    assert!(message.contains("the backend is down"), "{message}");
    assert!(process.is_running());
    assert_eq!(process.stop(Duration::from_secs(10)).await.code, 0);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_hanging_provider_shows_on_the_node_after_the_time_limit() {
    let cluster = ControlPlane::shared().await;
    let file = "pingTimeout: 1s\nproviderConfig: {faults: {ping: {hang: true}}}\n";
    let mut process = run(cluster, &["--nodename", "hanging"]).file(file).start();
    let node = becomes(cluster, "hanging", "False", "ProviderTimeout", SOON).await;
    let message = ready(&node)["message"].to_string();
    assert!(message.contains("1s"), "{message}");
    assert!(process.is_running());
    assert_eq!(process.stop(Duration::from_secs(10)).await.code, 0);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_provider_that_recovers_makes_the_node_ready_again() {
    let cluster = ControlPlane::shared().await;
    let file = "providerConfig: {faults: {ping: {error: Unavailable, times: 4}}}\n";
    let _process = run(cluster, &["--nodename", "recovering"]).file(file).start();
    becomes(cluster, "recovering", "False", "ProviderNotReady", SOON).await;
    becomes_ready(cluster, "recovering").await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_backend_that_is_not_there_is_waited_for_until_the_time_is_up() {
    let cluster = ControlPlane::shared().await;
    let file = "providerConfig: {backend: nowhere.sock}\n";
    let flags = ["--nodename", "alone", "--startup-timeout", "1s", "--log-level", "error"];
    let outcome = run(cluster, &flags).file(file).start().end(SOON).await;
    outcome.failed(1, &["node alone", "provider mock", "nowhere.sock"]);
    assert!(!exists(cluster, "alone").await);

    let port = ports(1);
    let admin = format!("127.0.0.1:{port}");
    let flags = ["--nodename", "alone", "--startup-timeout", "0", "--metrics-addr", admin.as_str()];
    let mut patient = run(cluster, &flags).file(file).start();
    answers(port, "/healthz", 200, SOON).await;
    answers(port, "/readyz", 503, Duration::from_secs(1)).await;
    let outcome = patient.stop(Duration::from_secs(2)).await;
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(!exists(cluster, "alone").await);
}
