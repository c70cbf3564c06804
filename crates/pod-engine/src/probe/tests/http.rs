use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use serde_json::json;

use super::{
    pod_probes::merge,
    server::{Body, Server, endless, never, text},
};
use crate::probe::{HttpClient, HttpGet, ProbeOutcome, connection};

const LONG: Duration = Duration::from_secs(20);
/// A short timeout that is still long enough on a busy host.
const SHORT: Duration = Duration::from_secs(2);

fn get(port: u16, more: serde_json::Value) -> HttpGet {
    let mut action = json!({"port": port});
    merge(&mut action, more);
    let action: HTTPGetAction = serde_json::from_value(action).unwrap();
    HttpGet::new(&action, &Container::default(), "127.0.0.1", "probe").unwrap()
}

async fn probe(server: &Server, more: serde_json::Value, limit: Duration) -> ProbeOutcome {
    HttpClient::new().unwrap().probe(get(server.address.port(), more), limit).await
}

fn status(code: u16) -> Response<Body> {
    Response::builder().status(code).body(text("secret")).unwrap()
}

fn sent_to(place: &str) -> Response<Body> {
    Response::builder().status(302).header("location", place).body(text("moved")).unwrap()
}

fn failure(text: impl Into<String>) -> ProbeOutcome {
    ProbeOutcome::Failure(text.into())
}

#[tokio::test]
async fn statuses_up_to_399_are_good_and_others_are_told_without_the_body() {
    let server = Server::http(|request: &Request<Incoming>| {
        status(request.uri().path().trim_start_matches('/').parse().unwrap())
    })
    .await;
    let warning = ProbeOutcome::Warning("Probe terminated redirects, Response body: secret".to_owned());
    for (code, wanted) in [
        (200, ProbeOutcome::Success),
        (299, ProbeOutcome::Success),
        (302, warning.clone()),
        (399, warning),
        (400, failure("HTTP probe failed with statuscode: 400")),
        (500, failure("HTTP probe failed with statuscode: 500")),
    ] {
        assert_eq!(probe(&server, json!({"path": format!("/{code}")}), LONG).await, wanted, "{code}");
    }
}

#[tokio::test]
async fn a_request_is_what_servers_know_from_a_kubelet() {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let server = Server::raw(answer, true).await;
    let place = server.address;
    assert_eq!(probe(&server, json!({"path": "/healthz?x=1"}), LONG).await, ProbeOutcome::Success);
    let wanted = format!(
        "GET /healthz?x=1 HTTP/1.1\r\nHost: {place}\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(server.requests.lock()[0], wanted);

    let headers = json!([
        {"name": "Host", "value": "example.com"}, {"name": "accept", "value": ""},
        {"name": "user-agent", "value": "me"}, {"name": "X-Two", "value": "1"}, {"name": "x-two", "value": "2"},
    ]);
    assert_eq!(probe(&server, json!({"httpHeaders": headers}), LONG).await, ProbeOutcome::Success);
    let wanted = "GET / HTTP/1.1\r\nHost: example.com\r\nUser-Agent: me\r\nX-Two: 1\r\nX-Two: 2\r\nConnection: close\r\n\r\n";
    assert_eq!(server.requests.lock()[1], wanted);
}

#[tokio::test]
async fn a_request_that_cannot_be_sent_is_a_failure_that_says_what_is_wrong() {
    let server = Server::http(|_: &Request<Incoming>| status(200)).await;
    let header = json!({"httpHeaders": [{"name": "X-One", "value": "a\nb"}]});
    let wanted =
        format!("Get \"http://{}\": net/http: invalid header field value for \"X-One\"", server.address);
    assert_eq!(probe(&server, header, LONG).await, failure(wanted));
    let path = format!("/{}", "x".repeat(70_000));
    let ProbeOutcome::Failure(text) = probe(&server, json!({"path": path}), LONG).await else {
        panic!("too long")
    };
    assert!(text.contains("invalid path"), "{text}");
    assert!(server.requests.lock().is_empty());
}

#[tokio::test]
async fn redirects_are_followed_on_the_same_host_only() {
    let server = Server::http(|request: &Request<Incoming>| match request.uri().path() {
        "/here" => sent_to("there"),
        "/there" => status(if request.headers().contains_key("referer") { 200 } else { 500 }),
        "/bad" => sent_to("/worse"),
        "/away" => sent_to("http://elsewhere.invalid/"),
        "/ftp" => sent_to("ftp://127.0.0.1/"),
        "/mail" => sent_to("mailto:somebody"),
        "/nonsense" => sent_to("http://127.0.0.1:x/"),
        _ => status(503),
    })
    .await;
    let nonsense = format!(
        "Get \"http://{}/nonsense\": failed to parse Location header \"http://127.0.0.1:x/\": \
         parse \"http://127.0.0.1:x/\": invalid port \":x\" after host",
        server.address
    );
    let away = ProbeOutcome::Warning("Probe terminated redirects, Response body: moved".to_owned());
    for (path, wanted) in [
        ("/here", ProbeOutcome::Success),
        ("/bad", failure("HTTP probe failed with statuscode: 503")),
        ("/away", away.clone()),
        ("/mail", away),
        ("/nonsense", failure(nonsense)),
        ("/ftp", failure("Get \"ftp://127.0.0.1/\": unsupported protocol scheme \"ftp\"")),
    ] {
        assert_eq!(probe(&server, json!({"path": path}), LONG).await, wanted, "{path}");
    }
}

#[tokio::test]
async fn redirects_that_go_round_in_circles_end_after_ten_requests() {
    let server = Server::http(|_: &Request<Incoming>| sent_to("/again")).await;
    let wanted = "Get \"/again\": stopped after 10 redirects";
    assert_eq!(probe(&server, json!({"path": "/"}), LONG).await, failure(wanted));
    assert_eq!(server.requests.lock().len(), 10);
}

#[tokio::test]
async fn a_body_without_end_is_read_no_further_than_needed() {
    let server = Server::http(|_: &Request<Incoming>| Response::new(endless("more and more ", true))).await;
    assert_eq!(probe(&server, json!({}), LONG).await, ProbeOutcome::Success);
}

#[tokio::test]
async fn a_server_that_says_nothing_fails_when_the_time_is_over() {
    let server = Server::raw(b"", false).await;
    let wanted = format!(
        "Get \"http://{}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
        server.address
    );
    assert_eq!(probe(&server, json!({}), SHORT).await, failure(wanted));
    let server = Server::http(|_: &Request<Incoming>| never()).await;
    assert!(matches!(probe(&server, json!({}), SHORT).await, ProbeOutcome::Failure(_)));
}

#[tokio::test]
async fn a_body_that_stalls_or_breaks_off_is_an_error_and_no_verdict() {
    let server = Server::http(|_: &Request<Incoming>| Response::new(endless("a little", false))).await;
    let message = "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
    let wanted = ProbeOutcome::Error { state: "failure", message: message.to_owned() };
    assert_eq!(probe(&server, json!({}), SHORT).await, wanted);
    let server = Server::raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", true).await;
    let outcome = probe(&server, json!({}), LONG).await;
    assert_eq!(outcome, ProbeOutcome::Error { state: "failure", message: "unexpected EOF".to_owned() });
}

#[tokio::test]
async fn what_is_no_answer_fails_in_the_words_that_users_know() {
    let nobody = Server::nobody().await;
    let refused = HttpClient::new().unwrap().probe(get(nobody.port(), json!({"path": "/"})), LONG).await;
    let wanted = format!("Get \"http://{nobody}/\": dial tcp {nobody}: connect: connection refused");
    assert_eq!(refused, failure(wanted));

    let server = Server::raw(b"", true).await;
    let wanted = format!("Get \"http://{}/\": EOF", server.address);
    assert_eq!(probe(&server, json!({"path": "/"}), LONG).await, failure(wanted));

    let server = Server::raw(b"SSH-2.0-none\r\n\r\n", true).await;
    let wanted = format!(
        "Get \"http://{}\": net/http: HTTP/1.x transport connection broken: malformed HTTP response \"SSH-2.0-none\"",
        server.address
    );
    assert_eq!(probe(&server, json!({}), LONG).await, failure(wanted));
}

#[tokio::test]
async fn tls_is_spoken_with_anybody_in_the_http_that_the_server_prefers() {
    for (protocols, wanted) in
        [(&["h2", "http/1.1"][..], "HTTP/2.0"), (&["http/1.1"], "HTTP/1.1"), (&[], "HTTP/1.1")]
    {
        let server = Server::https(protocols, |_: &Request<Incoming>| status(200)).await;
        let https = json!({"scheme": "HTTPS", "path": "/x", "httpHeaders": [{"name": "Host", "value": "example.com"}]});
        assert_eq!(probe(&server, https, LONG).await, ProbeOutcome::Success, "{protocols:?}");
        let request = server.requests.lock()[0].clone();
        assert!(request.starts_with(wanted), "{request}");
        assert!(wanted == "HTTP/1.1" || request.ends_with("https://example.com/x"), "{request}");
    }
}

#[tokio::test]
async fn tls_with_a_server_that_speaks_none_fails_and_says_so() {
    let server = Server::raw(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", true).await;
    let wanted =
        format!("Get \"https://{}\": http: server gave HTTP response to HTTPS client", server.address);
    assert_eq!(probe(&server, json!({"scheme": "HTTPS"}), LONG).await, failure(wanted));
    let server = Server::raw(b"nonsense", true).await;
    let wanted =
        format!("Get \"https://{}\": tls: first record does not look like a TLS handshake", server.address);
    assert_eq!(probe(&server, json!({"scheme": "HTTPS"}), LONG).await, failure(wanted));
    let server = Server::raw(b"", true).await;
    let wanted = format!("Get \"https://{}\": EOF", server.address);
    assert_eq!(probe(&server, json!({"scheme": "HTTPS"}), LONG).await, failure(wanted));
}

#[tokio::test]
async fn a_connection_is_all_that_a_tcp_probe_wants() {
    let server = Server::raw(b"", false).await;
    assert_eq!(connection::probe("127.0.0.1", server.address.port(), LONG).await, ProbeOutcome::Success);
    let nobody = Server::nobody().await;
    let wanted = format!("dial tcp {nobody}: connect: connection refused");
    assert_eq!(connection::probe("127.0.0.1", nobody.port(), LONG).await, failure(wanted));
    let outcome = connection::probe("no-such-host.invalid", 80, LONG).await;
    assert_eq!(outcome, failure("dial tcp: lookup no-such-host.invalid: no such host"));
}

#[tokio::test]
async fn a_tcp_probe_gives_up_when_the_time_is_over() {
    let soon = Duration::from_millis(300);
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    // No connection is accepted, so the backlog fills up.
    let mut waiting = Vec::new();
    while let Ok(made) = tokio::time::timeout(soon, tokio::net::TcpStream::connect(address)).await {
        waiting.push(made.unwrap());
    }
    let outcome = connection::probe("127.0.0.1", address.port(), soon).await;
    assert_eq!(outcome, failure(format!("dial tcp {address}: i/o timeout")));
    let outcome = HttpClient::new().unwrap().probe(get(address.port(), json!({"path": "/"})), soon).await;
    let wanted = format!(
        "Get \"http://{address}/\": net/http: request canceled while waiting for connection \
         (Client.Timeout exceeded while awaiting headers)"
    );
    assert_eq!(outcome, failure(wanted));
}
