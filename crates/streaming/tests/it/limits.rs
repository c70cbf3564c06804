//! Time limits, with paused time.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, duplex},
    time::Instant,
};
use vk_provider::ability::Exit;
use vk_streaming::{SessionEnd, SessionLimits, exec::Protocol, exec::ProtocolVersion, forward};

use crate::{
    exec::PROTOCOLS,
    fake_process, raw_client,
    test_server::{self, ALL, Host, Joined, TTY, join, join_with},
};

#[tokio::test(start_paused = true)]
async fn an_idle_session_ends_after_four_hours_and_the_client_is_told() {
    for protocol in PROTOCOLS {
        let Joined { session, process, mut host } = join(protocol, ALL).await;
        let began = Instant::now();
        let report = session.exit.await.unwrap_err().report();
        assert!(report.contains("nothing moved for 14400s"), "{protocol:?}: {report}");
        assert_eq!(began.elapsed().as_secs(), 4 * 60 * 60, "{protocol:?}");
        assert_eq!(process.sessions.now(), 0, "{protocol:?}");
        assert_eq!(host.outcome().await.unwrap().end, SessionEnd::Idle, "{protocol:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_with_occasional_traffic_continues() {
    for protocol in PROTOCOLS {
        let Joined { session, mut process, mut host } = join(protocol, ALL).await;
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_hours(3)).await;
            process.print(b".").await;
        }
        assert_eq!(process.sessions.now(), 1, "{protocol:?}");
        process.exit(0);
        assert_eq!(session.exit.await.unwrap(), Exit { code: 0 }, "{protocol:?}");
        assert_eq!(host.outcome().await.unwrap().end, SessionEnd::Exited(0), "{protocol:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_idle_timeout_can_be_configured() {
    let mut limits = SessionLimits::default();
    limits.idle = Duration::from_secs(7);
    for protocol in PROTOCOLS {
        let Joined { session: _session, process: _process, mut host } =
            join_with(protocol, ALL, &limits).await;
        let began = Instant::now();
        assert_eq!(host.outcome().await.unwrap().end, SessionEnd::Idle, "{protocol:?}");
        assert!(began.elapsed() < Duration::from_secs(13), "{protocol:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_timeout_of_zero_means_never() {
    let mut limits = SessionLimits::default();
    limits.idle = Duration::ZERO;
    for protocol in PROTOCOLS {
        let Joined { session, mut process, mut host } = join_with(protocol, ALL, &limits).await;
        tokio::time::sleep(Duration::from_hours(24)).await;
        assert_eq!(process.sessions.now(), 1, "{protocol:?}");
        process.exit(0);
        assert_eq!(session.exit.await.unwrap(), Exit { code: 0 }, "{protocol:?}");
        assert_eq!(host.outcome().await.unwrap().end, SessionEnd::Exited(0), "{protocol:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_open_its_streams_has_thirty_seconds() {
    for options in [ALL, TTY] {
        let (mut ours, theirs) = duplex(8 << 10);
        let (provided, process) = fake_process::session(options);
        let mut host = test_server::exec_host(theirs, Ok(provided), SessionLimits::default());
        let protocol = Protocol::Spdy(ProtocolVersion::V4);
        raw_client::upgrade(
            &mut ours,
            &raw_client::spdy_request(&test_server::query(options), protocol.name().unwrap()),
        )
        .await;
        let began = Instant::now();
        assert_eq!(host.outcome().await.unwrap().end, SessionEnd::NoStreams);
        assert!((30..36).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
        assert_eq!(process.sessions.now(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_stream_is_reported_on_the_error_stream() {
    let (mut ours, theirs) = duplex(8 << 10);
    let (provided, process) = fake_process::session(ALL);
    let mut host = test_server::exec_host(theirs, Ok(provided), SessionLimits::default());
    raw_client::upgrade(&mut ours, &raw_client::spdy_request(&test_server::query(ALL), "v4.channel.k8s.io"))
        .await;
    let (connection, driver) = vk_spdy::Connection::client(ours, vk_spdy::Config::default());
    let mut driving = tokio::task::JoinSet::new();
    driving.spawn(driver);
    let open =
        async |kind: &str| connection.open(&vk_spdy::Headers::new().with("streamType", kind)).await.unwrap();
    let (mut error, _stdout) = (open("error").await, open("stdout").await);
    let mut error_text = String::new();
    error.read_to_string(&mut error_text).await.unwrap();
    assert!(error_text.contains("the client did not open all its streams within 30s"), "{error_text}");
    assert_eq!(process.sessions.now(), 0);
    drop(connection);
    assert_eq!(host.outcome().await.unwrap().end, SessionEnd::NoStreams);
}

#[tokio::test(start_paused = true)]
async fn an_idle_forwarder_ends_after_four_hours() {
    for protocol in [forward::Protocol::Spdy, forward::Protocol::Tunnel, forward::Protocol::Channels] {
        let (ours, theirs) = duplex(8 << 10);
        let dial = |_| async { Ok(crate::forward::silent()) };
        let mut host: Host = test_server::forward_host(theirs, dial, SessionLimits::default());
        let _forwarder = crate::forward::call(ours, protocol, &[80]).await.unwrap();
        let began = Instant::now();
        assert_eq!(host.outcome().await.unwrap().end, SessionEnd::Idle, "{protocol:?}");
        assert!(began.elapsed() >= Duration::from_hours(4), "{protocol:?}");
    }
}
