pub(crate) mod fake_server;

use http::Method;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
};

use self::fake_server::{FakeServer, Reply};
use super::*;

fn client() -> Client {
    client_with(Limits::default())
}

fn client_with(limits: Limits) -> Client {
    Client::new(limits, Some(Arc::new(RootCertStore::empty())))
}

fn list() -> Request {
    Request::new(Method::GET, "List", Effect::Repeatable)
}

fn create() -> Request {
    Request::new(Method::POST, "Create", Effect::Create)
}

/// The error of a list, and that of a create, which must be ambiguous.
async fn errors(client: &Client, endpoint: &Endpoint) -> (String, String) {
    let list = client.send(endpoint, &list()).await.unwrap_err();
    assert_eq!(*list.class(), Class::Transient, "{list}");
    let create = client.send(endpoint, &create()).await.unwrap_err();
    assert_eq!(*create.class(), Class::Ambiguous, "{create}");
    (list.to_string(), create.to_string())
}

#[tokio::test]
async fn a_request_arrives_as_it_was_encoded_for_its_signature() {
    let server = FakeServer::start(|_| Reply::json(r#"{"a": 1}"#)).await;
    let request = Request::new(Method::POST, "Update", Effect::Repeatable)
        .path("/a b/c")
        .parameter("z", "1+1=2 & \u{e9}")
        .parameter("a", "")
        .header("x-acs-one", "1")
        .body("text/plain", "b\u{f6}dy");
    let response = client().send(&server.endpoint, &request).await.unwrap();
    assert_eq!(response.json::<Value>().unwrap()["a"], 1);
    let received = &server.received()[0];
    assert_eq!(received.line, "POST /a%20b/c?a=&z=1%2B1%3D2%20%26%20%C3%A9");
    assert_eq!(received.header("host"), server.endpoint.host_header());
    assert_eq!((received.header("x-acs-one"), received.header("content-type")), ("1", "text/plain"));
    assert_eq!(received.body, "b\u{f6}dy");
    assert!(received.header("user-agent").starts_with("virtual-kubelet/"));
}

#[tokio::test]
async fn refusals_are_answers_with_status_and_headers() {
    let server =
        FakeServer::start(|_| Reply::Answer(503, "text/plain", "later".into(), "Retry-After: 7\r\n")).await;
    let response = client().send(&server.endpoint, &list()).await.unwrap();
    assert_eq!((response.status().as_u16(), &response.body()[..]), (503, &b"later"[..]));
    assert_eq!(response.retry_after(), Some(Duration::from_secs(7)));
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let target = FakeServer::start(|_| Reply::json("{}")).await;
    let location: &'static str = format!("Location: {}/\r\n", target.endpoint).leak();
    let server = FakeServer::start(move |_| Reply::Answer(302, "text/html", String::new(), location)).await;
    let response = client().send(&server.endpoint, &list()).await.unwrap();
    assert_eq!(response.status().as_u16(), 302);
    assert!(response.json::<Value>().unwrap_err().to_string().contains("status 302"));
    assert!(target.received().is_empty());
}

#[tokio::test]
async fn a_page_of_a_proxy_is_reported_with_status_and_content_type() {
    let page = "<html><title>s3cr3t login</title></html>";
    let server = FakeServer::start(|_| Reply::Answer(200, "text/html; charset=utf-8", page.into(), "")).await;
    for (request, class) in [(list(), Class::Transient), (create(), Class::Ambiguous)] {
        let response = client().send(&server.endpoint, &request).await.unwrap();
        let error = response.json::<Value>().unwrap_err();
        assert_eq!(*error.class(), class);
        let text = error.to_string();
        assert!(text.contains("status 200 and text/html, not with JSON"), "{text}");
        assert!(text.contains(&server.endpoint.to_string()) && !text.contains("s3cr3t"), "{text}");
    }
}

#[tokio::test]
async fn a_truncated_response_is_an_error() {
    for bytes in [
        &b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"a\": "[..],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n{\"a\": \r\n",
    ] {
        let server = FakeServer::start(|_| Reply::Bytes(bytes.to_vec())).await;
        let (list, create) = errors(&client(), &server.endpoint).await;
        assert!(list.contains("was cut short") && create.contains("was cut short"), "{list}");
    }
}

#[tokio::test]
async fn json_that_ends_in_the_middle_is_an_error_even_if_http_does_not_notice() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"a\": [1, ";
    let server = FakeServer::start(|_| Reply::Bytes(head.to_vec())).await;
    let response = client().send(&server.endpoint, &list()).await.unwrap();
    let error = response.json::<Value>().unwrap_err().to_string();
    assert!(error.contains("was cut short") && error.contains("line 1"), "{error}");
}

#[tokio::test]
async fn an_error_about_json_names_the_place_and_shows_no_value() {
    #[derive(Debug, serde::Deserialize)]
    #[expect(dead_code, reason = "only its type matters")]
    struct Group {
        groups: Vec<u32>,
    }

    let server = FakeServer::start(|_| Reply::json(r#"{"groups": [1, "s3cr3t"]}"#)).await;
    let response = client().send(&server.endpoint, &list()).await.unwrap();
    let error = response.json::<Group>().unwrap_err().to_string();
    assert!(error.contains("groups[1]") && !error.contains("s3cr3t"), "{error}");
}

#[tokio::test]
async fn a_response_of_50_mb_is_refused_while_it_is_read() {
    let size = 50 << 20;
    let length: &'static str = format!("Content-Length: {size}").leak();
    for framing in [length, "Connection: close"] {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{framing}\r\n\r\n");
        let server = FakeServer::start(move |_| Reply::Flood(head.clone().into_bytes(), size)).await;
        let error = client().send(&server.endpoint, &list()).await.unwrap_err().to_string();
        assert!(error.contains("larger than 8388608 bytes"), "{error}");
        assert!(server.flooded() < 20 << 20, "{} bytes of {framing}", server.flooded());
    }
}

#[tokio::test]
async fn a_response_of_the_largest_size_is_read() {
    let size = Limits::default().response_bytes;
    let server = FakeServer::start(move |_| Reply::json(format!("\"{}\"", "x".repeat(size - 2)))).await;
    let response = client().send(&server.endpoint, &list()).await.unwrap();
    assert_eq!(response.body().len(), size);
}

#[tokio::test]
async fn a_server_that_says_nothing_costs_the_time_to_the_first_byte() {
    let limits =
        Limits { connect: Duration::ZERO, first_byte: Duration::from_millis(300), ..Limits::default() };
    let server = FakeServer::start(|_| Reply::Stall(Vec::new())).await;
    // The deadline of the connector would end this: it has its own.
    let client = client().with_limits(limits);
    let (list, create) = errors(&client, &server.endpoint).await;
    assert!(list.contains("did not answer within 300ms"), "{list}");
    assert!(create.contains("did not answer within 300ms"), "{create}");
}

#[tokio::test]
async fn a_server_that_does_not_finish_costs_the_time_for_the_whole_answer() {
    let limits = Limits { total: Duration::from_millis(300), ..Limits::default() };
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{";
    let server = FakeServer::start(|_| Reply::Stall(head.to_vec())).await;
    let (list, create) = errors(&client_with(limits), &server.endpoint).await;
    assert!(list.contains("was not complete within 300ms"), "{list}");
    assert!(create.contains("was not complete within 300ms"), "{create}");
}

#[tokio::test]
async fn a_server_that_closes_the_connection_without_an_answer_may_have_created_something() {
    let server = FakeServer::start(|_| Reply::Bytes(Vec::new())).await;
    let (list, create) = errors(&client(), &server.endpoint).await;
    assert!(list.contains("closed the connection without an answer"), "{list}");
    assert!(create.contains("closed the connection without an answer"), "{create}");
    assert_eq!(server.received().len(), 2, "nothing is repeated");
}

#[tokio::test]
async fn what_is_no_http_is_an_error() {
    let server = FakeServer::start(|_| Reply::Bytes(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec())).await;
    errors(&client(), &server.endpoint).await;
}

/// A create that failed before it was sent has created nothing.
async fn not_connected(client: &Client, endpoint: &Endpoint) -> String {
    let error = client.send(endpoint, &create()).await.unwrap_err();
    assert_eq!(*error.class(), Class::Transient, "{error}");
    error.to_string()
}

#[tokio::test]
async fn nobody_at_the_address_is_reported_with_the_endpoint() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = not_connected(&client(), &Endpoint::parse(&url, PlainHttp::Loopback).unwrap()).await;
    assert!(error.contains(&format!("cannot connect to {url}: ")) && error.contains("refused"), "{error}");
}

#[tokio::test]
async fn a_name_without_an_address_is_reported_as_dns() {
    let limits =
        Limits { connect: Duration::from_mins(2), total: Duration::from_mins(2), ..Limits::default() };
    let endpoint = Endpoint::parse("https://eci.nowhere.invalid", PlainHttp::Loopback).unwrap();
    let error = not_connected(&client_with(limits), &endpoint).await;
    assert!(error.contains("cannot resolve eci.nowhere.invalid: "), "{error}");
    assert!(error.ends_with("check region, endpoint and DNS"), "{error}");
}

#[tokio::test]
async fn a_handshake_that_does_not_end_costs_the_time_to_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let limits = Limits { connect: Duration::from_millis(300), ..Limits::default() };
    let error =
        not_connected(&client_with(limits), &Endpoint::parse(&url, PlainHttp::Loopback).unwrap()).await;
    assert!(error.contains("cannot connect") && error.contains("within 300ms"), "{error}");
}

#[tokio::test]
async fn tls_works_with_a_trusted_certificate_for_the_name() {
    let (server, roots) = FakeServer::start_tls("127.0.0.1", |_| Reply::json("{}")).await;
    let response = Client::new(Limits::default(), Some(roots)).send(&server.endpoint, &list()).await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
}

#[tokio::test]
async fn tls_failures_are_reported_as_such_and_nothing_is_sent() {
    let (trusted, roots) = FakeServer::start_tls("eci.example.com", |_| Reply::json("{}")).await;
    let without_tls = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", without_tls.local_addr().unwrap());
    let mut server = JoinSet::new();
    server.spawn(async move {
        let (mut stream, _) = without_tls.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        // Open until the client has read it.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    let without_tls = Endpoint::parse(&url, PlainHttp::Loopback).unwrap();
    let knowing = Client::new(Limits::default(), Some(roots));
    for (client, endpoint, why) in [
        (&client(), &trusted.endpoint, "UnknownIssuer"),
        (&knowing, &trusted.endpoint, "not valid for name"),
        (&knowing, &without_tls, "corrupt message"),
    ] {
        let error = not_connected(client, endpoint).await;
        assert!(error.contains(&format!("TLS with {endpoint} failed: ")), "{error}");
        assert!(error.contains(why), "{error}");
    }
    assert!(trusted.received().is_empty());
}

#[tokio::test]
async fn values_that_http_cannot_carry_are_errors_which_do_not_show_them() {
    let server = FakeServer::start(|_| Reply::json("{}")).await;
    let invalid = Class::Invalid { field: None };
    for (request, class, what) in [
        (list().header("x-acs-token", "s3cr3t\r\nx: y"), &Class::Auth, "the value of the header x-acs-token"),
        (list().header("s3cr3t name", "1"), &invalid, "the name of a header"),
        (list().parameter("a", "s3cr3t".repeat(20_000)), &invalid, "the URL of the request"),
    ] {
        let error = client().send(&server.endpoint, &request).await.unwrap_err();
        assert_eq!(error.class(), class);
        assert!(error.to_string().contains(what) && !error.to_string().contains("s3cr3t"), "{error}");
    }
    assert!(server.received().is_empty());
}
