//! Responses before an upgrade.

use http::{Request, StatusCode, request::Parts};
use proptest::prelude::*;
use vk_provider::{Error, ability::ExecOptions, error::Kind};
use vk_streaming::{
    RejectedUpgrade,
    exec::{self, ProtocolVersion},
    forward,
};

const QUERY: &str = "/exec/default/web/app?command=ls&command=-l&output=1&error=1";

fn parts(method: &str, uri: &str, headers: &[(&str, &str)]) -> Parts {
    let request = Request::builder().method(method).uri(uri);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(()).unwrap().into_parts().0
}

fn spdy(uri: &str, protocols: &[&str]) -> Parts {
    let upgrade = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];
    let offers = protocols.iter().map(|protocol| ("x-stream-protocol-version", *protocol));
    parts("POST", uri, &upgrade.into_iter().chain(offers).collect::<Vec<_>>())
}

fn websocket(uri: &str, protocols: &[&str]) -> Parts {
    let upgrade = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let offers = protocols.iter().map(|protocol| ("sec-websocket-protocol", *protocol));
    parts("GET", uri, &upgrade.into_iter().chain(offers).collect::<Vec<_>>())
}

fn refused(parts: &Parts) -> RejectedUpgrade {
    exec::Request::parse(parts).unwrap_err()
}

#[test]
fn the_clients_first_supported_spdy_protocol_is_selected_and_never_version_5() {
    for (offers, taken) in [
        (&["v5.channel.k8s.io", "v4.channel.k8s.io", "v3.channel.k8s.io"][..], "v4.channel.k8s.io"),
        (&["v5.channel.k8s.io, v4.channel.k8s.io ,channel.k8s.io"], "v4.channel.k8s.io"),
        (&["v2.channel.k8s.io", "v4.channel.k8s.io"], "v2.channel.k8s.io"),
        (&["channel.k8s.io"], "channel.k8s.io"),
    ] {
        let request = exec::Request::parse(&spdy(QUERY, offers)).unwrap();
        assert_eq!(request.protocol.name(), Some(taken));
        assert!(request.passes_through());
        let response = request.switching();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        let headers = response.headers();
        assert_eq!(headers["upgrade"], "SPDY/3.1");
        assert_eq!(headers["connection"], "Upgrade");
        assert_eq!(headers["x-stream-protocol-version"], taken);
    }
}

#[test]
fn a_client_without_a_common_spdy_protocol_gets_the_supported_ones() {
    let rejected = refused(&spdy(QUERY, &["v5.channel.k8s.io", "v9.channel.k8s.io"]));
    assert_eq!(rejected.status, StatusCode::FORBIDDEN);
    let accepted: Vec<_> = rejected.headers.get_all("x-accepted-stream-protocol-versions").iter().collect();
    assert_eq!(accepted, ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"]);
    assert!(rejected.body.starts_with("unable to upgrade: unable to negotiate protocol: client supports"));
}

#[test]
fn a_spdy_client_that_offers_nothing_is_a_bad_request() {
    let missing = refused(&spdy(QUERY, &[]));
    assert_eq!(missing.status, StatusCode::BAD_REQUEST);
    assert!(missing.body.contains("header X-Stream-Protocol-Version does not exist"), "{}", missing.body);
    let empty = refused(&spdy(QUERY, &[" , "]));
    assert_eq!(empty.status, StatusCode::BAD_REQUEST);
    assert!(empty.body.contains("names no protocol"), "{}", empty.body);
}

#[test]
fn a_request_without_an_upgrade_is_rejected() {
    for headers in [&[][..], &[("connection", "keep-alive"), ("upgrade", "SPDY/3.1")]] {
        let rejected = refused(&parts("POST", QUERY, headers));
        assert_eq!((rejected.status, &*rejected.body), (StatusCode::BAD_REQUEST, "Upgrade request required"));
    }
    let other = refused(&parts("GET", QUERY, &[("connection", "upgrade"), ("upgrade", "h2c")]));
    assert_eq!(other.status, StatusCode::BAD_REQUEST);
    assert!(other.body.contains("neither SPDY/3.1 nor websocket"), "{}", other.body);
}

#[test]
fn websocket_clients_get_version_5_if_offered_and_otherwise_their_first_choice() {
    for (offers, taken, passes) in [
        (&["v4.channel.k8s.io, v5.channel.k8s.io"][..], Some("v5.channel.k8s.io"), false),
        (&["v4.channel.k8s.io", "channel.k8s.io"], Some("v4.channel.k8s.io"), true),
        (&["nonsense", "base64.channel.k8s.io"], Some("base64.channel.k8s.io"), true),
        (&["v4.base64.channel.k8s.io"], Some("v4.base64.channel.k8s.io"), true),
        (&[], None, true),
    ] {
        let request = exec::Request::parse(&websocket(QUERY, offers)).unwrap();
        assert_eq!(request.passes_through(), passes);
        if taken.is_none() {
            assert_eq!(request.protocol, exec::Protocol::WebSocket(ProtocolVersion::V1));
        }
        let response = request.switching();
        let headers = response.headers();
        assert_eq!(headers["upgrade"], "websocket");
        // The example of RFC 6455.
        assert_eq!(headers["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let answered = headers.get("sec-websocket-protocol").map(|name| name.to_str().unwrap());
        assert_eq!(answered, taken);
    }
}

#[test]
fn an_invalid_websocket_handshake_is_rejected_with_the_reason() {
    let unknown = refused(&websocket(QUERY, &["v9.channel.k8s.io"]));
    assert_eq!(unknown.status, StatusCode::FORBIDDEN);
    let mut post = websocket(QUERY, &[]);
    post.method = http::Method::POST;
    assert_eq!(refused(&post).status, StatusCode::METHOD_NOT_ALLOWED);
    let mut old = websocket(QUERY, &[]);
    old.headers.insert("sec-websocket-version", "8".parse().unwrap());
    let old = refused(&old);
    assert_eq!(
        (old.status, &old.headers["sec-websocket-version"]),
        (StatusCode::BAD_REQUEST, &"13".parse().unwrap())
    );
    let mut keyless = websocket(QUERY, &[]);
    keyless.headers.remove("sec-websocket-key");
    assert!(refused(&keyless).body.contains("Sec-WebSocket-Key is missing"));
}

#[test]
fn the_query_is_parsed_as_in_the_kubelet() {
    let read = |query: &str| {
        let uri = format!("/exec/default/web/app?{query}");
        exec::Request::parse(&spdy(&uri, &["v4.channel.k8s.io"]))
            .map(|request| (request.options, request.command))
    };
    let (options, command) =
        read("command=sh&command=-c&command=echo+%22a%20b%22&input=1&output=1&error=1").unwrap();
    assert_eq!(options, ExecOptions { stdin: true, stdout: true, stderr: true, tty: false });
    assert_eq!(command, ["sh", "-c", "echo \"a b\""]);
    // A terminal has no stderr.
    let (options, _) = read("input=1&output=1&error=1&tty=1").unwrap();
    assert_eq!(options, ExecOptions { stdin: true, stdout: true, stderr: false, tty: true });
    // Only 1 is true, and only the kubelet's parameter names count.
    for nothing in ["", "output=true", "stdout=1&stdin=true", "tty=1&error=1", "output=0&output=1"] {
        let rejected = read(nothing).unwrap_err();
        assert_eq!(rejected.status, StatusCode::BAD_REQUEST, "{nothing}");
        assert!(
            rejected.body.starts_with("you must specify at least 1 of stdin, stdout, stderr"),
            "{nothing}"
        );
    }
}

#[test]
fn attach_has_no_command() {
    let request = exec::Request::parse_attach(&spdy(QUERY, &["v4.channel.k8s.io"])).unwrap();
    assert_eq!(request.command, Vec::<String>::new());
    assert!(request.options.stdout);
}

#[test]
fn port_forward_supports_spdy_the_tunnel_and_channels() {
    let read = |parts: &Parts| forward::Request::parse(parts);
    let direct = read(&spdy("/portForward/default/web", &["portforward.k8s.io"])).unwrap();
    assert_eq!(direct.protocol, forward::Protocol::Spdy);
    assert_eq!(direct.switching().headers()["x-stream-protocol-version"], "portforward.k8s.io");

    let tunnel = websocket("/portForward/default/web", &["v4.channel.k8s.io, SPDY/3.1+portforward.k8s.io"]);
    let tunnel = read(&tunnel).unwrap();
    assert_eq!(tunnel.protocol, forward::Protocol::Tunnel);
    assert_eq!(tunnel.switching().headers()["sec-websocket-protocol"], "SPDY/3.1+portforward.k8s.io");

    // kube-rs offers version 5 first, which port-forward does not support.
    let offers = ["v5.channel.k8s.io, v4.channel.k8s.io"];
    let channels = read(&websocket("/portForward/default/web?port=80,443&port=8080", &offers)).unwrap();
    assert_eq!(
        (channels.protocol, channels.ports.clone()),
        (forward::Protocol::Channels, vec![80, 443, 8080])
    );
    assert_eq!(channels.switching().headers()["sec-websocket-protocol"], "v4.channel.k8s.io");

    let unknown = read(&spdy("/portForward/default/web", &["v4.channel.k8s.io"])).unwrap_err();
    assert_eq!(unknown.status, StatusCode::FORBIDDEN);
    assert_eq!(unknown.headers["x-accepted-stream-protocol-versions"], "portforward.k8s.io");
}

#[test]
fn invalid_ports_are_rejected_with_the_reason() {
    let many = vec!["1"; 128].join(",");
    for (query, wrong) in [
        ("", "query parameter \"port\" is required"),
        ("?port=", "query parameter \"port\" cannot be empty"),
        ("?port=0", "port \"0\" must be > 0"),
        ("?port=80,x", "unable to parse \"x\" as a port"),
        ("?port=65536", "unable to parse \"65536\" as a port"),
        (&*format!("?port={many}"), "128 ports in one request: v4.channel.k8s.io has room for 127"),
    ] {
        let uri = format!("/portForward/default/web{query}");
        let rejected = forward::Request::parse(&websocket(&uri, &["v4.channel.k8s.io"])).unwrap_err();
        assert_eq!(rejected.status, StatusCode::BAD_REQUEST, "{query}");
        assert!(rejected.body.starts_with(wrong), "{query}: {}", rejected.body);
    }
}

#[test]
fn errors_that_a_caller_can_fix_are_reported_before_the_upgrade() {
    let early = |kind| exec::reject_early(&Error::new(kind, "exec")).map(|rejected| rejected.status.as_u16());
    assert_eq!(early(Kind::NotFound), Some(404));
    assert_eq!(early(Kind::Unsupported), Some(501));
    assert_eq!(early(Kind::Throttled { after: None }), Some(429));
    assert_eq!(early(Kind::Invalid), None);
    assert_eq!(early(Kind::Unavailable), None);
    assert_eq!(early(Kind::Internal), None);
}

proptest! {
    #[test]
    fn no_request_panics(
        query in "[ -~]{0,60}",
        headers in prop::collection::vec((
            prop::sample::select(vec!["connection", "upgrade", "x-stream-protocol-version", "sec-websocket-protocol",
                "sec-websocket-key", "sec-websocket-version"]),
            prop_oneof!["[ -~]{0,40}", r"(Upgrade|SPDY/3\.1|websocket|13|v4\.channel\.k8s\.io|portforward\.k8s\.io)"],
        ), 0..8),
    ) {
        let Ok(uri) = format!("/x?{query}").parse::<http::Uri>() else { return Ok(()) };
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
        for method in ["GET", "POST"] {
            let parts = parts(method, &uri.to_string(), &headers);
            if let Ok(request) = exec::Request::parse(&parts) {
                prop_assert_eq!(request.switching().status(), StatusCode::SWITCHING_PROTOCOLS);
            }
            if let Ok(request) = forward::Request::parse(&parts) {
                prop_assert_eq!(request.switching().status(), StatusCode::SWITCHING_PROTOCOLS);
            }
        }
    }
}
