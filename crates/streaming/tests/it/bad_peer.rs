//! Clients that violate the protocol: a clean end, nothing left behind, and no panic.

use std::time::Duration;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use vk_streaming::{
    SessionEnd, SessionLimits,
    exec::{Protocol, ProtocolVersion},
};

use crate::{
    exec::PROTOCOLS,
    fake_process::{self, Process},
    forward, raw_client,
    test_server::{self, ALL, Host, TTY},
};

const V4: Protocol = Protocol::WebSocket(ProtocolVersion::V4);
const V5: Protocol = Protocol::WebSocket(ProtocolVersion::V5);
const BASE64: Protocol = Protocol::WebSocketBase64(ProtocolVersion::V4);

/// A raw client after the upgrade and the server's first message.
async fn connect(protocol: Protocol) -> (DuplexStream, Process, Host) {
    let (mut ours, theirs) = duplex(64 << 10);
    let (provided, process) = fake_process::session(TTY);
    let host = test_server::exec_host(theirs, Ok(provided), SessionLimits::default());
    let request = raw_client::websocket_request(&test_server::query(TTY), protocol.name().unwrap());
    raw_client::upgrade(&mut ours, &request).await;
    raw_client::read_frame(&mut ours).await;
    (ours, process, host)
}

/// Sends a message for which the server must close the connection with this code.
async fn refused(protocol: Protocol, message: &[u8], code: u16) -> String {
    let (mut ours, process, mut host) = connect(protocol).await;
    ours.write_all(message).await.unwrap();
    let frame = raw_client::read_frame(&mut ours).await;
    assert_eq!((frame.opcode, &frame.payload[..2]), (raw_client::CLOSE, &code.to_be_bytes()[..]));
    drop(ours);
    let SessionEnd::Protocol(wrong) = host.outcome().await.unwrap().end else {
        panic!("not a protocol error")
    };
    assert_eq!(process.sessions.now(), 0);
    wrong
}

#[tokio::test]
async fn an_invalid_close_message_ends_the_session() {
    for (message, wrong) in [
        (&[255][..], "a close message must have 2 bytes, not 1"),
        (&[255, 0, 0], "a close message must have 2 bytes, not 3"),
        (&[255, 9], "a close message for channel 9, which does not exist"),
    ] {
        assert_eq!(refused(V5, &raw_client::frame(raw_client::BINARY, message), 1002).await, wrong);
    }
}

#[tokio::test]
async fn invalid_base64_ends_the_session() {
    let wrong = refused(BASE64, &raw_client::frame(raw_client::TEXT, b"0not base64!"), 1002).await;
    assert!(wrong.starts_with("not base64"), "{wrong}");
}

#[tokio::test]
async fn invalid_frames_end_the_session() {
    for message in [
        // A reserved opcode, a frame without a mask, a control frame that is too long.
        &[0x83, 0x80, 0, 0, 0, 0][..],
        &[0x82, 0x01, 0],
        &raw_client::frame(raw_client::PING, &[0; 126]),
    ] {
        let (mut ours, process, mut host) = connect(V4).await;
        ours.write_all(message).await.unwrap();
        assert!(matches!(host.outcome().await.unwrap().end, SessionEnd::Protocol(_)), "{message:?}");
        assert_eq!(process.sessions.now(), 0);
    }
}

#[tokio::test]
async fn a_message_that_is_too_large_is_rejected_by_its_header() {
    let (mut ours, process, mut host) = connect(V4).await;
    let mut header = vec![0x82, 0xff];
    header.extend_from_slice(&(33_u64 << 20).to_be_bytes());
    header.extend_from_slice(&[0; 4]);
    ours.write_all(&header).await.unwrap();
    let SessionEnd::Protocol(wrong) = host.outcome().await.unwrap().end else {
        panic!("not a protocol error")
    };
    assert!(wrong.contains("too long"), "{wrong}");
    assert_eq!(process.sessions.now(), 0);
}

#[tokio::test]
async fn unexpected_channels_are_ignored() {
    for protocol in [V4, V5] {
        let (mut ours, mut process, mut host) = connect(protocol).await;
        for channel in [1, 2, 3, 5, 77, 254] {
            ours.write_all(&raw_client::frame(raw_client::BINARY, &[channel, b'x', b'y'])).await.unwrap();
        }
        ours.write_all(&raw_client::frame(raw_client::BINARY, &[])).await.unwrap();
        ours.write_all(&raw_client::frame(raw_client::BINARY, &[4, b'?', b'?'])).await.unwrap();
        ours.write_all(&raw_client::frame(raw_client::BINARY, b"\0input")).await.unwrap();
        assert_eq!(process.read(5).await, b"input");
        // Some clients send text messages instead of binary ones.
        ours.write_all(&raw_client::frame(raw_client::TEXT, b"\0text")).await.unwrap();
        assert_eq!(process.read(4).await, b"text");
        process.exit(0);
        assert_eq!(raw_client::read_frame(&mut ours).await.payload[0], 3);
        assert_eq!(raw_client::read_frame(&mut ours).await.opcode, raw_client::CLOSE);
        drop(ours);
        assert_eq!(host.outcome().await.unwrap().end, SessionEnd::Exited(0));
    }
}

#[tokio::test]
async fn pings_are_answered() {
    let (mut ours, _process, _host) = connect(V5).await;
    ours.write_all(&raw_client::frame(raw_client::PING, b"are you there")).await.unwrap();
    let frame = raw_client::read_frame(&mut ours).await;
    assert_eq!((frame.opcode, &*frame.payload), (10, &b"are you there"[..]));
}

#[tokio::test]
async fn a_status_is_one_message_and_then_the_connection_ends_normally() {
    let (mut ours, mut process, mut host) = connect(V4).await;
    process.print(b"out").await;
    assert_eq!(raw_client::read_frame(&mut ours).await.payload, b"\x01out");
    process.exit(137);
    let frame = raw_client::read_frame(&mut ours).await;
    assert_eq!((frame.opcode, frame.payload[0]), (raw_client::BINARY, 3));
    let status: serde_json::Value = serde_json::from_slice(&frame.payload[1..]).unwrap();
    assert_eq!(status["details"]["causes"][0]["message"], "137");
    let frame = raw_client::read_frame(&mut ours).await;
    assert_eq!((frame.opcode, frame.payload), (raw_client::CLOSE, 1000_u16.to_be_bytes().to_vec()));
    ours.write_all(&raw_client::frame(raw_client::CLOSE, &1000_u16.to_be_bytes())).await.unwrap();
    assert_eq!(ours.read(&mut [0]).await.unwrap(), 0, "the server closes");
    assert_eq!(host.outcome().await.unwrap().end, SessionEnd::Exited(137));
}

#[tokio::test(start_paused = true)]
async fn garbage_after_an_upgrade_to_spdy_ends_the_session() {
    // The first looks like the start of a frame that never arrives.
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x80, 2, 0, 1, 0, 0, 0, 0], &[0xff; 64]] {
        let (mut ours, theirs) = duplex(8 << 10);
        let (provided, process) = fake_process::session(ALL);
        let mut host = test_server::exec_host(theirs, Ok(provided), SessionLimits::default());
        raw_client::upgrade(
            &mut ours,
            &raw_client::spdy_request(&test_server::query(ALL), "v4.channel.k8s.io"),
        )
        .await;
        ours.write_all(garbage).await.unwrap();
        ours.shutdown().await.unwrap();
        let end = host.outcome().await.unwrap().end;
        let looks_right = garbage.starts_with(b"GET");
        assert!(matches!(end, SessionEnd::Protocol(_)) != looks_right, "{garbage:?}: {end:?}");
        assert_eq!(process.sessions.now(), 0);
    }
}

#[tokio::test]
async fn unexpected_spdy_streams_are_rejected_or_ignored() {
    let (mut ours, theirs) = duplex(8 << 10);
    let (provided, mut process) = fake_process::session(ALL);
    let mut host = test_server::exec_host(theirs, Ok(provided), SessionLimits::default());
    raw_client::upgrade(&mut ours, &raw_client::spdy_request(&test_server::query(ALL), "v4.channel.k8s.io"))
        .await;
    let (connection, driver) = vk_spdy::Connection::client(ours, vk_spdy::Config::default());
    let mut driving = tokio::task::JoinSet::new();
    driving.spawn(driver);
    let open = async |kind: &str| connection.open(&vk_spdy::Headers::new().with("streamType", kind)).await;
    let mut error = open("error").await.unwrap();
    // A duplicate and an unknown one, before the session has started.
    open("error").await.unwrap_err();
    open("nonsense").await.unwrap_err();
    let resize = open("resize").await.unwrap();
    let (stdin, mut stdout, stderr) =
        (open("stdin").await, open("stdout").await.unwrap(), open("stderr").await);
    // And another one afterwards.
    open("stdout").await.unwrap_err();
    // Data on an output stream does not block the session.
    for _ in 0..1000 {
        stdout.send(vec![0; 1000].into()).await.unwrap();
    }
    let mut stdin = stdin.unwrap();
    stdin.send("input".into()).await.unwrap();
    assert_eq!(process.read(5).await, b"input");
    process.exit(0);
    let mut status = String::new();
    error.read_to_string(&mut status).await.unwrap();
    assert!(status.contains("Success"), "{status}");
    drop((stdin, stdout, stderr, resize, error));
    connection.close().await.unwrap();
    assert_eq!(host.outcome().await.unwrap().end, SessionEnd::Exited(0));
}

/// Sends bytes after an upgrade, closes, and waits for the end.
async fn survives(mut ours: DuplexStream, mut host: Host, request: &str, bytes: &[u8]) {
    raw_client::upgrade(&mut ours, request).await;
    let sending = async {
        let (mut from, mut to) = tokio::io::split(&mut ours);
        let mut sink = tokio::io::sink();
        let reading = tokio::io::copy(&mut from, &mut sink);
        let writing = async {
            let _ = to.write_all(bytes).await;
            let _ = to.shutdown().await;
            Ok::<_, std::io::Error>(0)
        };
        let _ = tokio::time::timeout(Duration::from_mins(1), futures::future::join(reading, writing)).await;
    };
    sending.await;
    drop(ours);
    host.outcome().await.expect("the upgrade was made");
}

/// Arbitrary bytes, some of which look like the start of frames.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let message =
        (prop::sample::select(vec![0_u8, 1, 2, 8, 9, 10]), prop::collection::vec(any::<u8>(), 0..300))
            .prop_map(|(opcode, payload)| raw_client::frame(opcode, &payload));
    let control = (1_u16..12, any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)).prop_map(
        |(kind, flags, body)| {
            let mut frame = vec![0x80, 3];
            frame.extend_from_slice(&kind.to_be_bytes());
            frame.push(flags);
            frame.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes()[1..]);
            frame.extend_from_slice(&body);
            frame
        },
    );
    let piece = prop_oneof![message, control, prop::collection::vec(any::<u8>(), 0..100)];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn run(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(future);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_break_a_session(bytes in noise()) {
        run(async {
            for protocol in PROTOCOLS {
                let (ours, theirs) = duplex(8 << 10);
                let (provided, mut process) = fake_process::session(TTY);
                let mut limits = SessionLimits::default();
                limits.max_message = 1 << 10;
                let host = test_server::exec_host(theirs, Ok(provided), limits);
                let (path, name) = (test_server::query(TTY), protocol.name().unwrap());
                let request = if test_server::is_spdy(protocol) {
                    raw_client::spdy_request(&path, name)
                } else {
                    raw_client::websocket_request(&path, name)
                };
                let mut input = Vec::new();
                let reading = process.stdin.read_to_end(&mut input);
                futures::future::join(survives(ours, host, &request, &bytes), reading).await.1.unwrap();
                assert_eq!(process.sessions.now(), 0);
            }
        });
    }

    #[test]
    fn no_bytes_break_a_forwarder(bytes in noise()) {
        run(async {
            for protocol in forward::PROTOCOLS {
                let (ours, theirs) = duplex(8 << 10);
                let dial = |_| async { Ok(vk_provider::ability::Forward::Stream(Box::new(duplex(1000).0))) };
                let host = test_server::forward_host(theirs, dial, SessionLimits::default());
                let path = "/portForward/default/web?port=80,81";
                let request = match protocol {
                    vk_streaming::forward::Protocol::Spdy => raw_client::spdy_request(path, protocol.name()),
                    _ => raw_client::websocket_request(path, protocol.name()),
                };
                survives(ours, host, &request, &bytes).await;
            }
        });
    }
}
