//! Who is let in, and to what.

use std::time::Duration;

use serde_json::Value;
use vk_testing::{ControlPlane, Output, eventually, kubectl};

use super::{
    Served,
    calls::{Answer, Caller},
};
use crate::live::SOON;

async fn good(cluster: &ControlPlane, args: &[&str]) -> String {
    let output: Output = kubectl(cluster, args).await.unwrap();
    assert!(output.success(), "kubectl {args:?}: {output:?}");
    output.stdout
}

/// A ServiceAccount with these rights on nodes, and its token.
async fn account(cluster: &ControlPlane, name: &str, rights: &[(&str, &str)]) -> String {
    good(cluster, &["-n", "default", "create", "serviceaccount", name]).await;
    for (index, (verb, resource)) in rights.iter().enumerate() {
        let role = format!("{name}-{index}");
        good(
            cluster,
            &["create", "clusterrole", &role, &format!("--verb={verb}"), &format!("--resource={resource}")],
        )
        .await;
        let (bound, account) = (format!("--clusterrole={role}"), format!("--serviceaccount=default:{name}"));
        good(cluster, &["create", "clusterrolebinding", &role, &bound, &account]).await;
    }
    good(cluster, &["-n", "default", "create", "token", name]).await.trim().to_owned()
}

impl Served<'_> {
    fn call(&self, caller: &Caller, path: &str) -> Answer {
        caller.call(self.cluster.ca_pem(), self.port, path).unwrap()
    }

    /// Waits for rights that were just given to be known everywhere.
    async fn answers(&self, caller: &Caller, path: &str, code: u16) -> Answer {
        eventually(&format!("{path} is answered with {code}"), SOON, || async {
            let answer = self.call(caller, path);
            if answer.code == code { Ok(answer) } else { Err(format!("{answer:?}")) }
        })
        .await
    }

    fn admin(&self) -> Caller {
        Caller::with_certificate(self.cluster.client_certificate("admin", &["system:masters"]).unwrap())
    }
}

/// The head of a WebSocket.
fn websocket(caller: Caller, protocol: &str) -> Caller {
    let headers = [
        "Connection: Upgrade".to_owned(),
        "Upgrade: websocket".to_owned(),
        "Sec-WebSocket-Version: 13".to_owned(),
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==".to_owned(),
        format!("Sec-WebSocket-Protocol: {protocol}"),
    ];
    Caller { headers: headers.into(), ..caller }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn nobody_without_a_certificate_or_token_is_let_in() {
    let served = Served::start(ControlPlane::shared().await, "guarded", &[]).await;
    for path in
        ["/pods", "/healthz", "/metrics", "/exec/default/web/main?command=true&output=1", "/", "/nowhere"]
    {
        let answer = served.call(&Caller::default(), path);
        assert_eq!((answer.code, answer.body.as_str()), (401, "Unauthorized"), "{path}: {answer:?}");
        let answer = served.call(&Caller::with_token("not-a-token"), path);
        assert_eq!(answer.code, 401, "{path}: {answer:?}");
    }
    // Another authority's certificate is nobody's.
    let stranger = ControlPlane::client_certificate(served.cluster, "admin", &["system:masters"]).unwrap();
    let own_key = served.cluster.serving_certificate("admin", &["127.0.0.1"]).unwrap();
    let mixed =
        vk_testing::control_plane::Certificate { cert_pem: own_key.cert_pem, key_pem: own_key.key_pem };
    assert_eq!(
        served.call(&Caller::with_certificate(mixed), "/pods").code,
        401,
        "a serving certificate is no client's"
    );
    served.answers(&Caller::with_certificate(stranger), "/pods", 200).await;
    assert_eq!(served.call(&served.admin(), "/nowhere").code, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_token_without_rights_is_forbidden_in_the_kubelets_words() {
    let served = Served::start(ControlPlane::shared().await, "forbidding", &[]).await;
    let token = account(served.cluster, "powerless", &[]).await;
    let answer = served.call(&Caller::with_token(&token), "/pods");
    assert_eq!(answer.code, 403, "{answer:?}");
    let expected = "Forbidden (user=system:serviceaccount:default:powerless, verb=get, resource=nodes, subresource(s)=[pods proxy])\n";
    assert_eq!(answer.body, expected);
    // A certificate that does not count does not harm a token that does, as with metrics-server.
    let expired = served.cluster.expired_client_certificate("admin").unwrap();
    let both = Caller { certificate: Some(expired), ..Caller::with_token(&token) };
    assert_eq!(served.call(&both, "/pods").code, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn rights_on_logs_give_logs_and_no_exec() {
    let served = Served::start(ControlPlane::shared().await, "log-only", &[]).await;
    let stage = served.stage().await;
    let token = account(served.cluster, "log-reader", &[("get", "nodes/log")]).await;
    let caller = Caller::with_token(&token);
    let logs = format!("/containerLogs/{}/web/main", stage.namespace);
    let answer = served.answers(&caller, &logs, 200).await;
    assert!(answer.body.contains("main is up"), "{answer:?}");
    let exec = format!("/exec/{}/web/main?command=true&output=1", stage.namespace);
    for (path, method) in
        [(exec.as_str(), "GET"), (&exec, "POST"), ("/pods", "GET"), ("/stats/summary", "GET")]
    {
        let answer = served.call(&Caller { method: Some(method), ..caller.clone() }, path);
        assert_eq!(answer.code, 403, "{method} {path}: {answer:?}");
    }
    stage.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_reader_of_nodes_proxy_cannot_exec_by_websocket() {
    let served = Served::start(ControlPlane::shared().await, "read-only", &[]).await;
    let stage = served.stage().await;
    let token = account(served.cluster, "proxy-reader", &[("get", "nodes/proxy")]).await;
    let caller = Caller::with_token(&token);
    served.answers(&caller, "/pods", 200).await;
    for path in ["exec", "attach"] {
        let path = format!("/{path}/{}/web/main?command=true&output=1", stage.namespace);
        let answer = served.call(&websocket(caller.clone(), "v5.channel.k8s.io"), &path);
        assert_eq!(answer.code, 403, "{path}: {answer:?}");
        assert!(answer.body.contains("verb=create"), "{answer:?}");
    }
    let forward = format!("/portForward/{}/web", stage.namespace);
    let answer = served.call(&websocket(caller, "SPDY/3.1+portforward.k8s.io"), &forward);
    assert_eq!(answer.code, 403, "{answer:?}");
    stage.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn an_expired_client_certificate_does_not_count() {
    let served = Served::start(ControlPlane::shared().await, "timely", &[]).await;
    let expired = served.cluster.expired_client_certificate("kubernetes-admin").unwrap();
    let answer = served.call(&Caller::with_certificate(expired), "/pods");
    assert_eq!((answer.code, answer.body.as_str()), (401, "Unauthorized"), "{answer:?}");
    let fresh = served.cluster.client_certificate("kubernetes-admin", &["system:masters"]).unwrap();
    served.answers(&Caller::with_certificate(fresh), "/pods", 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn every_route_that_reads_answers_its_caller() {
    let served = Served::start(ControlPlane::shared().await, "routed", &[]).await;
    let stage = served.stage().await;
    let admin = served.admin();
    served.answers(&admin, "/healthz", 200).await;
    for (path, word) in [
        ("/healthz/syncloop", "ok"),
        ("/healthz?verbose", "[+]ping ok"),
        ("/pods", "\"PodList\""),
        ("/runningpods/", "\"web\""),
        ("/configz", "\"serverTLSBootstrap\":false"),
        ("/metrics", "virtual_kubelet_server_requests_total"),
        ("/metrics/resource", "node_cpu_usage_seconds_total"),
        ("/metrics/cadvisor", "container_memory_rss{container=\"main\""),
        ("/metrics/probes", "process_start_time_seconds"),
        ("/stats/summary", "\"podRef\""),
    ] {
        let answer = served.answers(&admin, path, 200).await;
        assert!(answer.body.contains(word), "{path}: {answer:?}");
    }
    let slim = served.call(&admin, "/stats/summary?only_cpu_and_memory=true");
    assert!(!slim.body.contains("\"network\"") && slim.body.contains("\"cpu\""), "{slim:?}");
    for (path, code, word) in [
        ("/healthz/nothing", 404, "syncloop"),
        ("/logs/", 405, "logs endpoint is disabled."),
        ("/debug/pprof/profile", 405, "profiling endpoint is disabled."),
        (&format!("/containerLogs/{}/missing/main", stage.namespace), 404, "pod \"missing\" does not exist"),
        (
            &format!("/containerLogs/{}/web/nobody", stage.namespace),
            404,
            "container \"nobody\" not found in pod \"web\"",
        ),
        (&format!("/containerLogs/{}/web/main?tailLines=-1", stage.namespace), 422, "tailLines"),
    ] {
        let answer = served.call(&admin, path);
        assert!(answer.code == code && answer.body.contains(word), "{path}: {answer:?}");
    }
    let run = Caller { method: Some("POST"), ..admin.clone() };
    let answer = served.call(&run, &format!("/run/{}/web/main?cmd=echo%20hello", stage.namespace));
    assert!(answer.code == 200 && answer.body.contains("hello\n"), "{answer:?}");
    let answer = served.call(&run, &format!("/run/{}/web/main?cmd=exit%203", stage.namespace));
    assert!(answer.code == 500 && answer.body.contains("exited with 3"), "{answer:?}");
    stage.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_rotated_serving_certificate_is_shown_without_dropping_what_is_open() {
    let served = Served::start(ControlPlane::shared().await, "rotating", &[]).await;
    let stage = served.stage().await;
    let mut following = stage.start(&["logs", "web", "--follow"]);
    following.line("a line", |_| Some(())).await;
    let admin = served.admin();
    let shown = || {
        let stream = admin.connect(served.cluster.ca_pem(), served.port);
        let mut stream = stream.unwrap();
        stream.conn.complete_io(&mut stream.sock).unwrap();
        stream.conn.peer_certificates().unwrap()[0].to_vec()
    };
    let before = shown();
    let certificate = served.cluster.serving_certificate("rotating", &["127.0.0.1", "rotating"]).unwrap();
    super::write_pair(&served.folder, &certificate);
    eventually("the new certificate is shown", Duration::from_secs(30), || async {
        if shown() == before { Err("the old one is") } else { Ok(()) }
    })
    .await;
    // What was open goes on, and what is new works.
    following.line("a newer line", |line| line.contains("tick").then_some(())).await;
    following.kill().await;
    stage.good(&["logs", "web", "--tail=1"]).await;
    assert!(served.process.stderr().contains("the serving certificate was exchanged"));
    stage.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn usage_figures_are_read_through_the_api_server() {
    let served = Served::start(ControlPlane::shared().await, "measured", &[]).await;
    let stage = served.stage().await;
    // Not by `nodes/proxy`, which refuses loopback addresses: directly.
    let answer = served.answers(&served.admin(), "/stats/summary", 200).await;
    let body = answer.body.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    let summary: Value = serde_json::from_str(body).unwrap_or_default();
    assert_eq!(summary["node"]["nodeName"], "measured", "{answer:?}");
    assert_eq!(summary["pods"][0]["podRef"]["namespace"], stage.namespace.as_str());
    stage.close().await;
}
