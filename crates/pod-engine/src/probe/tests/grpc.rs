use std::time::Duration;

use futures::future::join_all;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;

use super::server::{Body, Server, never, text, trailed};
use crate::probe::{ProbeOutcome, grpc};

const LONG: Duration = Duration::from_secs(20);

fn trailers(status: &str) -> HeaderMap {
    HeaderMap::from_iter([("grpc-status".parse().unwrap(), status.parse().unwrap())])
}

fn health(status: &'static [u8]) -> Response<Body> {
    Response::builder()
        .header("content-type", "application/grpc")
        .body(trailed(status, trailers("0")))
        .unwrap()
}

fn refused(code: &str, message: &str) -> Response<Body> {
    Response::builder().header("grpc-status", code).header("grpc-message", message).body(text("")).unwrap()
}

async fn probe(server: &Server, service: &str, limit: Duration) -> ProbeOutcome {
    grpc::probe("127.0.0.1", server.address.port(), service, limit).await
}

fn failure(text: impl Into<String>) -> ProbeOutcome {
    ProbeOutcome::Failure(text.into())
}

#[tokio::test]
async fn only_a_server_that_serves_is_well() {
    for (status, wanted) in [
        (&b"\0\0\0\0\x02\x08\x01"[..], ProbeOutcome::Success),
        (b"\0\0\0\0\x02\x08\x02", failure("service unhealthy (responded with \"NOT_SERVING\")")),
        (b"\0\0\0\0\x02\x08\x03", failure("service unhealthy (responded with \"SERVICE_UNKNOWN\")")),
        (b"\0\0\0\0\0", failure("service unhealthy (responded with \"UNKNOWN\")")),
    ] {
        let server = Server::http2(move |request: &Request<Incoming>| {
            assert_eq!(request.headers()["user-agent"], "kube-probe/1.36");
            health(status)
        })
        .await;
        assert_eq!(probe(&server, "", LONG).await, wanted);
        let request = server.requests.lock()[0].clone();
        assert!(request.ends_with("/grpc.health.v1.Health/Check"), "{request}");
    }
}

#[tokio::test]
async fn errors_of_the_call_are_told_as_a_kubelet_tells_them() {
    let unimplemented = "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service";
    let server = Server::http2(|_: &Request<Incoming>| refused("12", "unknown%20service")).await;
    assert_eq!(probe(&server, "a", LONG).await, failure(unimplemented));
    let server = Server::http2(|_: &Request<Incoming>| refused("5", "unknown service")).await;
    let wanted = "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service";
    assert_eq!(probe(&server, "a", LONG).await, failure(wanted));
    let server = Server::http2(|_: &Request<Incoming>| {
        Response::builder().body(trailed(b"", trailers("14"))).unwrap()
    })
    .await;
    let wanted = "error: health rpc probe failed: rpc error: code = Unavailable desc = ";
    assert_eq!(probe(&server, "a", LONG).await, failure(wanted));
    let server =
        Server::http2(|_: &Request<Incoming>| Response::builder().status(404).body(text("")).unwrap()).await;
    let ProbeOutcome::Failure(text) = probe(&server, "", LONG).await else { panic!("404 is no health") };
    assert!(text.ends_with("unexpected HTTP status code received from server: 404 (Not Found)"), "{text}");
}

#[tokio::test]
async fn a_call_that_is_not_answered_in_time_is_told_otherwise_than_a_connection_that_is_not_made() {
    let short = Duration::from_secs(3);
    let not_connected = |place: std::net::SocketAddr| {
        failure(format!(
            "timeout: failed to connect service \"{place}\" within 3s: context deadline exceeded"
        ))
    };
    let slow = Server::http2(|_: &Request<Incoming>| never()).await;
    let mute = Server::raw(b"", false).await;
    let gone = Server::raw(b"", true).await;
    let other = Server::raw(b"HTTP/1.1 400 Bad Request\r\n\r\n", true).await;
    let nobody = Server::nobody().await;
    let asked = [slow.address, mute.address, gone.address, other.address, nobody];
    let outcomes = join_all(asked.map(|place| grpc::probe("127.0.0.1", place.port(), "", short))).await;
    assert_eq!(outcomes[0], failure("timeout: health rpc did not complete within 3s"));
    for (place, outcome) in asked.into_iter().zip(outcomes).skip(1) {
        assert_eq!(outcome, not_connected(place));
    }
}
