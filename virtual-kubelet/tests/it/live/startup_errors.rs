//! Errors that prevent a start are reported in one line.

use std::{
    net::{Ipv6Addr, TcpListener},
    time::Duration,
};

use serde_json::json;
use tempfile::TempDir;
use vk_testing::{ControlPlane, eventually};

use super::{SOON, answers, changed_kubeconfig, exists, ports, run, run_as, token_kubeconfig};
use crate::vk;

const QUIET: [&str; 2] = ["--log-level", "error"];

#[test]
fn a_kubeconfig_that_is_none() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("nowhere");
    run_as(&missing, &QUIET).run().refused(2, &[&["kubeconfig", "nowhere", "No such file"]]);

    for (text, word) in [
        ("clusters: [", "line 1"),
        ("just a text", "kubeconfig"),
        ("", "kubeconfig"),
        ("apiVersion: v1\nkind: Config\n", "context"),
        ("apiVersion: v1\nkind: Config\ncurrent-context: gone\n", "gone"),
    ] {
        let path = folder.path().join("broken");
        std::fs::write(&path, text).unwrap();
        run_as(&path, &QUIET).run().refused(2, &[&["kubeconfig", "broken", word]]);
    }
}

#[test]
fn no_credentials_at_all() {
    let outcome =
        vk(&["run", "--provider", "mock", "--metrics-addr", "off", "--port", &ports(1).to_string()]).run();
    outcome.refused(2, &[&["no credentials", "--kubeconfig", "KUBECONFIG", "~/.kube/config", "Pod"]]);
}

#[test]
fn an_api_server_that_is_not_there() {
    let folder = TempDir::new().unwrap();
    let path = token_kubeconfig(folder.path(), "https://127.0.0.1:1");
    let outcome = run_as(&path, &["--startup-timeout", "3s", "--log-level", "error"]).run();
    outcome.refused(1, &[&["https://127.0.0.1:1", "refused", "--startup-timeout"]]);
}

#[tokio::test]
async fn an_api_server_that_hangs_up_and_then_is_silent_is_reported_with_what_it_did() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let folder = TempDir::new().unwrap();
    let path = token_kubeconfig(folder.path(), &server);
    let mut process = run_as(&path, &["--startup-timeout", "4s", "--log-level", "error"]).start();
    // The kernel takes further connections, and nobody answers.
    drop(listener.accept().unwrap());
    let outcome = process.end(Duration::from_secs(10)).await;
    outcome.refused(1, &[&[&server, "--startup-timeout"]]);
    assert!(!outcome.stderr.contains("did not answer"), "{outcome:#?}");
}

#[tokio::test]
async fn an_api_server_that_is_silent() {
    // The kernel takes connections, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", silent.local_addr().unwrap());
    let folder = TempDir::new().unwrap();
    let path = token_kubeconfig(folder.path(), &server);
    let mut process = run_as(&path, &["--startup-timeout", "1s", "--log-level", "error"]).start();
    let outcome = process.end(Duration::from_secs(5)).await;
    outcome.refused(1, &[&[&server, "did not answer within 1s", "--startup-timeout"]]);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn credentials_that_the_api_server_does_not_know() {
    let cluster = ControlPlane::shared().await;
    let folder = TempDir::new().unwrap();
    let pki = cluster.data_dir().join("pki");
    for user in [
        json!({ "token": "bogus" }),
        // Of the authority for the API server's own requests to extensions.
        json!({ "client-certificate": pki.join("proxy-client.crt"), "client-key": pki.join("proxy-client.key") }),
        json!({}),
    ] {
        let path = changed_kubeconfig(cluster, folder.path(), |config| config["users"][0]["user"] = user);
        let outcome = run_as(&path, &QUIET).start().end(Duration::from_secs(5)).await;
        outcome.failed(1, &[cluster.url(), "rejected the credentials"]);
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_api_server_of_another_authority() {
    let cluster = ControlPlane::shared().await;
    let folder = TempDir::new().unwrap();
    let path = changed_kubeconfig(cluster, folder.path(), |config| {
        let server = &mut config["clusters"][0]["cluster"];
        server.as_object_mut().unwrap().remove("certificate-authority-data");
    });
    let outcome = run_as(&path, &["--startup-timeout", "1s", "--log-level", "error"]).start().end(SOON).await;
    outcome.failed(1, &[cluster.url(), "certificate"]);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_provider_configuration_with_a_mistake() {
    let cluster = ControlPlane::shared().await;
    for (text, words) in [
        ("cpu: lots", &["node mistaken", "cpu", "lots"][..]),
        ("memory: -1Gi", &["node mistaken", "memory", "-1Gi"]),
        ("cpu: 1\nmemmory: 1Gi", &["node mistaken", "memmory", "did you mean `memory`?"]),
        ("faults: {pnig: {hang: true}}", &["node mistaken", "pnig", "did you mean `ping`?"]),
        ("mistaken: {cpu: lots}", &["node mistaken", "cpu", "lots"]),
    ] {
        let run = run(cluster, &["--nodename", "mistaken", "--provider-config", "mock.yaml"]);
        run.write("mock.yaml", text);
        let error = run.start().end(SOON).await.failed(2, words);
        assert!(error.contains("mock.yaml"), "{error}");
    }
    assert!(!exists(cluster, "mistaken").await);
}

#[tokio::test]
async fn a_port_that_stays_taken() {
    let folder = TempDir::new().unwrap();
    let kubeconfig = token_kubeconfig(folder.path(), "https://127.0.0.1:1");
    let port = ports(1);
    let _taken = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
    let number = port.to_string();

    let admin = format!("127.0.0.1:{port}");
    let mut first = run_as(&kubeconfig, &["--metrics-addr", &admin]).start();
    let mut second = run_as(&kubeconfig, &["--nodename", "late", "--no-port", "--port", &number]).start();
    first.end(SOON).await.failed(1, &["cannot listen on", &admin, "in use"]);
    second.end(SOON).await.failed(1, &["node late", "kubelet API", &format!(":{port}"), "in use"]);
}

#[tokio::test]
async fn a_port_that_becomes_free_a_moment_later() {
    let folder = TempDir::new().unwrap();
    let kubeconfig = token_kubeconfig(folder.path(), "https://127.0.0.1:1");
    let port = ports(1);
    let taken = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
    let admin = format!("127.0.0.1:{port}");
    let mut process = run_as(&kubeconfig, &["--metrics-addr", &admin, "--startup-timeout", "0"]).start();
    eventually("the process waits for the port", SOON, || {
        let (stderr, running) = (process.stderr(), process.is_running());
        async move { if running && stderr.contains("in use") { Ok(()) } else { Err(stderr) } }
    })
    .await;
    drop(taken);
    answers(port, "/healthz", 200, SOON).await;
}
