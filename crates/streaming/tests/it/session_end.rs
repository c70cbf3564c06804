//! Clients that disconnect: whatever they were doing, nothing is left of their session.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use vk_streaming::{
    SessionEnd, SessionLimits,
    exec::{Protocol, ProtocolVersion},
};

use crate::{
    exec::PROTOCOLS,
    fake_process::{self, Process},
    raw_client,
    test_server::{self, ALL, Joined, join},
};

fn spdy(protocol: Protocol) -> String {
    raw_client::spdy_request(&test_server::query(ALL), protocol.name().unwrap())
}

fn websocket(protocol: Protocol) -> String {
    raw_client::websocket_request(&test_server::query(ALL), protocol.name().unwrap())
}

fn handshake(protocol: Protocol) -> String {
    if test_server::is_spdy(protocol) { spdy(protocol) } else { websocket(protocol) }
}

/// Asserts that the process sees the end, and that no session is left.
async fn alone(mut process: Process, what: &str, protocol: Protocol) {
    assert_eq!(process.sessions.now(), 0, "{what}: {protocol:?}");
    let mut rest = Vec::new();
    process.stdin.read_to_end(&mut rest).await.unwrap();
    let written = process.stdout.as_mut().unwrap().write_all(&[0; 5000]).await;
    assert!(written.is_err(), "{what}: {protocol:?}");
}

/// Writes until nothing moves any more: the client's buffers are full.
async fn print_until_full(process: &mut Process) {
    let writing = async {
        loop {
            process.print(&[1; 1000]).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(1), writing).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn disconnecting_right_after_the_upgrade_leaves_nothing() {
    for protocol in PROTOCOLS {
        let (mut ours, theirs) = duplex(8 << 10);
        let (provided, process) = fake_process::session(ALL);
        let mut host = test_server::exec_host(theirs, Ok(provided), SessionLimits::default());
        raw_client::upgrade(&mut ours, &handshake(protocol)).await;
        drop(ours);
        assert_eq!(host.outcome().await.unwrap().end, SessionEnd::ClientGone, "{protocol:?}");
        alone(process, "right after the upgrade", protocol).await;
    }
}

#[tokio::test(start_paused = true)]
async fn disconnecting_inside_a_frame_leaves_nothing() {
    for protocol in PROTOCOLS {
        let (mut ours, theirs) = duplex(8 << 10);
        let (provided, process) = fake_process::session(ALL);
        let mut host = test_server::exec_host(theirs, Ok(provided), SessionLimits::default());
        raw_client::upgrade(&mut ours, &handshake(protocol)).await;
        let cut: &[u8] = if test_server::is_spdy(protocol) {
            &[0x80, 3, 0, 1, 0, 0, 0, 90, 0]
        } else {
            &[0x82, 0x85, 0, 0]
        };
        ours.write_all(cut).await.unwrap();
        drop(ours);
        let end = host.outcome().await.unwrap().end;
        assert!(matches!(end, SessionEnd::ClientGone | SessionEnd::Protocol(_)), "{protocol:?}: {end:?}");
        alone(process, "in the middle of a frame", protocol).await;
    }
}

#[tokio::test(start_paused = true)]
async fn disconnecting_while_idle_leaves_nothing() {
    for protocol in PROTOCOLS {
        let Joined { session, process, mut host } = join(protocol, ALL).await;
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(process.sessions.now(), 1, "{protocol:?}");
        drop(session);
        assert_eq!(host.outcome().await.unwrap().end, SessionEnd::ClientGone, "{protocol:?}");
        alone(process, "while nothing happens", protocol).await;
    }
}

#[tokio::test(start_paused = true)]
async fn disconnecting_without_reading_leaves_nothing() {
    for protocol in PROTOCOLS {
        let Joined { session, mut process, mut host } = join(protocol, ALL).await;
        print_until_full(&mut process).await;
        drop(session);
        assert_eq!(host.outcome().await.unwrap().end, SessionEnd::ClientGone, "{protocol:?}");
        alone(process, "while it does not read", protocol).await;
    }
}

#[tokio::test(start_paused = true)]
async fn disconnecting_while_the_process_does_not_read_is_detected_by_a_ping() {
    for protocol in PROTOCOLS {
        let Joined { mut session, process, mut host } = join(protocol, ALL).await;
        let mut stdin = session.stdin.take().unwrap();
        let writing = async {
            loop {
                stdin.write_all(&[1; 1000]).await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(1), writing).await.unwrap_err();
        drop((session, stdin));
        let began = tokio::time::Instant::now();
        assert_eq!(host.outcome().await.unwrap().end, SessionEnd::ClientGone, "{protocol:?}");
        assert!(began.elapsed() <= Duration::from_secs(70), "{protocol:?}: {:?}", began.elapsed());
        alone(process, "while the process does not read", protocol).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_the_end_does_not_keep_the_session() {
    for protocol in PROTOCOLS {
        let Joined { session, mut process, mut host } = join(protocol, ALL).await;
        print_until_full(&mut process).await;
        process.exit(0);
        // Output waits for the client, who may take its time.
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(process.sessions.now(), 0, "the process has ended: {protocol:?}");
        let began = tokio::time::Instant::now();
        assert_eq!(host.outcome().await.unwrap().end, SessionEnd::Idle, "{protocol:?}");
        assert!(began.elapsed() <= Duration::from_hours(5), "{protocol:?}");
        drop(session);
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_the_server_drops_the_session() {
    for protocol in PROTOCOLS {
        let Joined { session, process, host } = join(protocol, ALL).await;
        drop(host);
        let report = session.exit.await.unwrap_err().report();
        assert!(report.contains("the connection to the streaming server was lost"), "{report}");
        alone(process, "dropped", protocol).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_websocket_close_is_answered() {
    for protocol in [Protocol::WebSocket(ProtocolVersion::V4), Protocol::WebSocket(ProtocolVersion::V5)] {
        let (mut ours, theirs) = duplex(8 << 10);
        let (provided, process) = fake_process::session(ALL);
        let mut host = test_server::exec_host(theirs, Ok(provided), SessionLimits::default());
        raw_client::upgrade(&mut ours, &websocket(protocol)).await;
        assert_eq!(raw_client::read_frame(&mut ours).await.payload, [1], "an empty message on stdout");
        ours.write_all(&raw_client::frame(raw_client::CLOSE, &1000_u16.to_be_bytes())).await.unwrap();
        let frame = raw_client::read_frame(&mut ours).await;
        assert_eq!((frame.opcode, frame.payload), (raw_client::CLOSE, 1000_u16.to_be_bytes().to_vec()));
        assert_eq!(ours.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(host.outcome().await.unwrap().end, SessionEnd::ClientGone);
        alone(process, "good-bye", protocol).await;
    }
}
