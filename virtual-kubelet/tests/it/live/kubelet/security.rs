//! Authentication and authorization of the kubelet API.

use std::{
    io::{Read as _, Write as _},
    time::Duration,
};

use tokio::io::AsyncWriteExt as _;
use vk_testing::{ControlPlane, Output, eventually, kubectl};

use super::{
    Served,
    direct_requests::{Answer, Caller},
};
use crate::live::{SOON, becomes_ready, ports, run};

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
    pub(super) fn call(&self, caller: &Caller, path: &str) -> Answer {
        caller.call(self.cluster.ca_pem(), self.port, path).unwrap()
    }

    /// Waits for rights that were just given to be known everywhere.
    pub(super) async fn answers(&self, caller: &Caller, path: &str, code: u16) -> Answer {
        eventually(&format!("{path} is answered with {code}"), SOON, || async {
            let answer = self.call(caller, path);
            if answer.code == code { Ok(answer) } else { Err(format!("{answer:?}")) }
        })
        .await
    }

    pub(super) fn admin(&self) -> Caller {
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
    // A certificate of the cluster that is not for clients, and one of another cluster, are nobody's.
    let server = served.cluster.serving_certificate("admin", &["127.0.0.1"]).unwrap();
    assert_eq!(served.call(&Caller::with_certificate(server), "/pods").code, 401);
    let elsewhere = ControlPlane::shared_with_signing().await;
    let stranger = elsewhere.client_certificate("admin", &["system:masters"]).unwrap();
    assert_eq!(served.call(&Caller::with_certificate(stranger), "/pods").code, 401);
    served.answers(&served.admin(), "/pods", 200).await;
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
async fn a_rotated_serving_certificate_is_shown_without_dropping_an_open_exec() {
    let served = Served::start(ControlPlane::shared().await, "rotating", &[]).await;
    let stage = served.stage().await;
    let mut session = stage.start(&["exec", "-i", "web", "--", "cat"]);
    let mut input = session.stdin.take().unwrap();
    input.write_all(b"before\n").await.unwrap();
    session.line("the first word", |line| (line == "before").then_some(())).await;
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
    input.write_all(b"after\n").await.unwrap();
    session.line("the second word", |line| (line == "after").then_some(())).await;
    drop(input);
    assert_eq!(session.end().await, Some(0));
    stage.run_ok(&["logs", "web", "--tail=1"]).await;
    assert!(served.process.stderr().contains("the serving certificate was reloaded"));
    stage.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_serving_certificate_is_asked_for_and_used_as_soon_as_somebody_approves_it() {
    let cluster = ControlPlane::shared_with_signing().await;
    let port = ports(1);
    let flags =
        ["--no-port", "--port", &port.to_string(), "--nodename", "certified", "--internal-ip", "127.0.0.1"];
    let process = run(cluster, &flags).start();
    becomes_ready(cluster, "certified").await;
    let admin = Caller::with_certificate(cluster.client_certificate("admin", &["system:masters"]).unwrap());
    // Until then it shows one of its own, which nobody vouches for.
    let unknown = admin.call(cluster.ca_pem(), port, "/healthz").unwrap_err().to_string();
    assert!(unknown.contains("UnknownIssuer") || unknown.contains("certificate"), "{unknown}");
    let name = eventually("somebody is told what to approve", Duration::from_mins(1), || async {
        let stderr = process.stderr();
        let told = stderr.split("kubectl certificate approve ").nth(1).map(|rest| {
            rest.chars()
                .take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '-')
                .collect::<String>()
        });
        told.ok_or(stderr)
    })
    .await;
    let signer = good(cluster, &["get", "csr", &name, "-o", "jsonpath={.spec.signerName}"]).await;
    assert_eq!(signer, "kubernetes.io/kubelet-serving");
    good(cluster, &["certificate", "approve", &name]).await;
    eventually("the node shows the cluster's certificate", SOON, || async {
        let answer = admin.call(cluster.ca_pem(), port, "/healthz").map_err(|error| error.to_string())?;
        if answer.code == 200 { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
    let stream = admin.connect(cluster.ca_pem(), port);
    let mut stream = stream.unwrap();
    stream.conn.complete_io(&mut stream.sock).unwrap();
    assert!(process.stderr().contains("serving the kubelet API with a certificate of the cluster"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn exec_and_attach_and_port_forward_refuse_what_is_not_there_in_the_kubelets_words() {
    let served = Served::start(ControlPlane::shared().await, "refusing", &[]).await;
    let stage = served.stage().await;
    let ns = &stage.namespace;
    let caller = websocket(served.admin(), "v5.channel.k8s.io");
    served.answers(&served.admin(), "/healthz", 200).await;
    for (path, code, words) in [
        (format!("/exec/{ns}/web/nobody?command=true&output=1"), 404, "container not found (\"nobody\")"),
        (format!("/exec/{ns}/nobody/main?command=true&output=1"), 404, "pod does not exist"),
        (format!("/exec/{ns}/web/wrong-uid/main?command=true&output=1"), 404, "pod does not exist"),
        (format!("/attach/{ns}/web/nobody?output=1"), 404, "container not found (\"nobody\")"),
        (format!("/exec/{ns}/web/main?command=true"), 400, "at least 1 of stdin, stdout, stderr"),
    ] {
        let answer = served.call(&caller, &path);
        assert!(answer.code == code && answer.body.contains(words), "{path}: {answer:?}");
    }
    let tunnel = websocket(served.admin(), "SPDY/3.1+portforward.k8s.io");
    let answer = served.call(&tunnel, &format!("/portForward/{ns}/nobody"));
    assert!(answer.code == 404 && answer.body.contains("pod does not exist"), "{answer:?}");
    let plain = Caller { method: Some("POST"), ..served.admin() };
    let answer = served.call(&plain, &format!("/exec/{ns}/web/main?command=true&output=1"));
    assert_eq!(answer.code, 400, "{answer:?}");
    stage.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_failed_handshake_and_a_rejected_certificate_are_one_log_line_each_that_says_why() {
    let served = Served::start(ControlPlane::shared().await, "explaining", &[]).await;
    let lines = |words: [&str; 2]| {
        let stderr = served.process.stderr();
        stderr.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    };
    let told = async |words: [&str; 2]| {
        eventually(&format!("{words:?} is logged"), SOON, || async {
            if lines(words) == 1 { Ok(()) } else { Err(served.process.stderr()) }
        })
        .await;
    };
    let mut plain = std::net::TcpStream::connect(("127.0.0.1", served.port)).unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
    told(["TLS handshake failed", "InvalidContentType"]).await;
    // A client that does not know who signed the node's certificate.
    let elsewhere = ControlPlane::shared_with_signing().await;
    Caller::default().call(elsewhere.ca_pem(), served.port, "/healthz").unwrap_err();
    told(["TLS handshake failed", "alert"]).await;
    let expired = served.cluster.expired_client_certificate("admin").unwrap();
    assert_eq!(served.call(&Caller::with_certificate(expired), "/healthz").code, 401);
    told(["client certificate rejected", "expired"]).await;
    assert_eq!(lines(["TLS handshake failed", ""]), 2, "{}", served.process.stderr());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn clients_that_vanish_leave_no_session_behind() {
    let served = Served::start(ControlPlane::shared().await, "abandoned", &[]).await;
    let stage = served.stage().await;
    served.answers(&served.admin(), "/healthz", 200).await;
    let caller = websocket(served.admin(), "v5.channel.k8s.io");
    let path = format!("/exec/{}/web/main?command=cat&input=1&output=1", stage.namespace);
    for ending in [&b""[..], b"\x82", b"\x82\x90\x01\x02\x03\x04half", b"\xff\xff\xff garbage"] {
        let mut stream = caller.connect(served.cluster.ca_pem(), served.port).unwrap();
        stream.write_all(caller.request(&path).as_bytes()).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 101", "{}", String::from_utf8_lossy(&head));
        stream.write_all(ending).unwrap();
        // Without a goodbye.
        drop(stream);
    }
    served.no_sessions().await;
    stage.close().await;
}
