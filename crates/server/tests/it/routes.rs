//! Container logs, and endpoints that are off by default.

use std::fs;

use vk_provider::ability::{LogBody, LogOptions};
use vk_server::{ConnectionLimits, DebugHandlers};

use crate::harness::{TestNode, pieces};

const STAMPED: &str = "2026-05-31T23:59:57Z one\n2026-05-31T23:59:58Z two\n2026-05-31T23:59:59Z three\n";

async fn log(node: &TestNode, body: LogBody, query: &str) -> (u16, String) {
    *node.provider.log.lock() = Some(body);
    node.get(&format!("/containerLogs/ns/web/main?{query}")).await
}

#[tokio::test]
async fn log_options_that_the_provider_did_not_apply_are_applied_by_the_server() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    for (query, expected) in [
        ("", "one\ntwo\nthree\n"),
        ("tailLines=1", "three\n"),
        ("tailLines=0", ""),
        ("limitBytes=5", "one\nt"),
        ("sinceSeconds=2", "two\nthree\n"),
        ("sinceTime=2026-05-31T23:59:59Z", "three\n"),
        ("timestamps=true&tailLines=1", "2026-05-31T23:59:59.000000000Z three\n"),
    ] {
        let shown = log(&node, LogBody::Stamped(pieces(STAMPED)), query).await;
        assert_eq!(shown, (200, expected.to_owned()), "{query}");
        let passed = log(&node, LogBody::Final(pieces("as it is\n")), query).await;
        assert_eq!(passed, (200, "as it is\n".to_owned()), "{query}");
    }
    assert_eq!(log(&node, LogBody::Plain(pieces("a\nb\n")), "tailLines=1").await, (200, "b\n".to_owned()));
    for query in ["sinceSeconds=1", "timestamps=true"] {
        let (code, why) = log(&node, LogBody::Plain(pieces("a\n")), query).await;
        assert!(code == 400 && why.contains("no times"), "{code} {why}");
    }
}

#[tokio::test]
async fn options_reach_the_provider() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    log(&node, LogBody::Final(pieces("")), "follow=true&previous=true&tailLines=3").await;
    let asked = node.provider.asked.lock().clone().unwrap();
    assert_eq!(asked, LogOptions { follow: true, previous: true, tail: Some(3), ..LogOptions::default() });
    let (code, why) = node.get("/containerLogs/ns/web/main?stream=Stderr").await;
    assert!(code == 501 && why.contains("streams"), "{code} {why}");
}

#[tokio::test]
async fn log_errors_are_the_kubelets() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    for (path, code, words) in [
        ("/containerLogs/ns/missing/main", 404, "pod \"missing\" does not exist"),
        ("/containerLogs/other/web/main", 404, "pod \"web\" does not exist"),
        ("/containerLogs/ns/web/nobody", 404, "container \"nobody\" not found in pod \"web\""),
        (
            "/containerLogs/ns/web/main",
            400,
            "container \"main\" in pod \"web\" is waiting to start: ErrImagePull",
        ),
        ("/containerLogs/ns/web/first", 400, "is waiting to start: ContainerCreating"),
    ] {
        let (found, why) = node.get(path).await;
        assert!(found == code && why.contains(words), "{path}: {found} {why}");
    }
}

#[tokio::test]
async fn unsupported_features_are_not_implemented() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    for path in ["/stats/summary", "/metrics/resource", "/metrics/cadvisor"] {
        let (code, why) = node.get(path).await;
        assert!(code == 501 && why.contains("does not offer"), "{path}: {code} {why}");
    }
}

#[tokio::test]
async fn log_files_and_profiles_are_off_by_default_and_nothing_leads_out_of_the_directory() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    assert_eq!(node.get("/logs/").await, (405, "logs endpoint is disabled.\n".to_owned()));
    assert_eq!(node.get("/debug/pprof/cmdline").await.0, 405);

    let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(folder.path().join("pods")).unwrap();
    fs::write(folder.path().join("pods/web.log"), "hello\n").unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(outside.path().join("secret"), folder.path().join("link")).unwrap();
    let debug_handlers = DebugHandlers { logs: Some(folder.path().to_owned()), profiling: true };
    let node = TestNode::start_with(ConnectionLimits::default(), debug_handlers).await;
    assert_eq!(node.get("/logs/pods/web.log").await, (200, "hello\n".to_owned()));
    assert!(node.get("/logs/").await.1.contains("<a href=\"pods/\">pods/</a>"));
    let secret = outside.path().join("secret");
    for path in
        ["/logs/link", "/logs/../secret", "/logs/%2e%2e/secret", &format!("/logs/{}", secret.display())]
    {
        let (code, body) = node.get(path).await;
        assert!(code == 404 && !body.contains("secret\n") && body != "secret", "{path}: {code} {body}");
    }
    assert_eq!(node.get("/debug/pprof/tasks").await.0, 200);
    assert_eq!(node.get("/debug/pprof/heap").await.0, 404);
}
