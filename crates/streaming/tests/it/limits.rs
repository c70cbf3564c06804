//! Time limits, on a clock that the test moves.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, duplex},
    time::Instant,
};
use vk_provider::ability::Exit;
use vk_streaming::{End, Limits, exec::Protocol, exec::Version, forward};

use crate::{
    exec::PROTOCOLS,
    host::{self, ALL, Host, Joined, TTY, join, join_with},
    process, raw,
};

#[tokio::test(start_paused = true)]
async fn a_session_in_which_nothing_moves_is_ended_after_four_hours_and_the_client_is_told() {
    for protocol in PROTOCOLS {
        let Joined { session, process, mut host } = join(protocol, ALL).await;
        let began = Instant::now();
        let report = session.exit.await.unwrap_err().report();
        assert!(report.contains("nothing moved for 14400s"), "{protocol:?}: {report}");
        assert_eq!(began.elapsed().as_secs(), 4 * 60 * 60, "{protocol:?}");
        assert_eq!(process.sessions.now(), 0, "{protocol:?}");
        assert_eq!(host.outcome().await.unwrap().end, End::Idle, "{protocol:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_in_which_something_moves_now_and_then_goes_on() {
    for protocol in PROTOCOLS {
        let Joined { session, mut process, mut host } = join(protocol, ALL).await;
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_hours(3)).await;
            process.print(b".").await;
        }
        assert_eq!(process.sessions.now(), 1, "{protocol:?}");
        process.exit(0);
        assert_eq!(session.exit.await.unwrap(), Exit { code: 0 }, "{protocol:?}");
        assert_eq!(host.outcome().await.unwrap().end, End::Exited(0), "{protocol:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_idle_time_can_be_configured() {
    let mut limits = Limits::default();
    limits.idle = Duration::from_secs(7);
    for protocol in PROTOCOLS {
        let Joined { session: _session, process: _process, mut host } =
            join_with(protocol, ALL, &limits).await;
        let began = Instant::now();
        assert_eq!(host.outcome().await.unwrap().end, End::Idle, "{protocol:?}");
        assert!(began.elapsed() < Duration::from_secs(13), "{protocol:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_time_of_zero_is_none() {
    let mut limits = Limits::default();
    limits.idle = Duration::ZERO;
    for protocol in PROTOCOLS {
        let Joined { session, mut process, mut host } = join_with(protocol, ALL, &limits).await;
        tokio::time::sleep(Duration::from_hours(24)).await;
        assert_eq!(process.sessions.now(), 1, "{protocol:?}");
        process.exit(0);
        assert_eq!(session.exit.await.unwrap(), Exit { code: 0 }, "{protocol:?}");
        assert_eq!(host.outcome().await.unwrap().end, End::Exited(0), "{protocol:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_open_its_streams_has_thirty_seconds() {
    for options in [ALL, TTY] {
        let (mut ours, theirs) = duplex(8 << 10);
        let (provided, process) = process::session(options);
        let mut host = host::exec_host(theirs, Ok(provided), Limits::default());
        let protocol = Protocol::Spdy(Version::V4);
        raw::upgrade(&mut ours, &raw::spdy_request(&host::query(options), protocol.name().unwrap())).await;
        let began = Instant::now();
        assert_eq!(host.outcome().await.unwrap().end, End::NoStreams);
        assert!((30..36).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
        assert_eq!(process.sessions.now(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_forgot_a_stream_is_told_on_its_error_stream() {
    let (mut ours, theirs) = duplex(8 << 10);
    let (provided, process) = process::session(ALL);
    let mut host = host::exec_host(theirs, Ok(provided), Limits::default());
    raw::upgrade(&mut ours, &raw::spdy_request(&host::query(ALL), "v4.channel.k8s.io")).await;
    let (connection, driver) = vk_spdy::Connection::client(ours, vk_spdy::Config::default());
    let mut driving = tokio::task::JoinSet::new();
    driving.spawn(driver);
    let open =
        async |kind: &str| connection.open(&vk_spdy::Headers::new().with("streamType", kind)).await.unwrap();
    let (mut error, _stdout) = (open("error").await, open("stdout").await);
    let mut told = String::new();
    error.read_to_string(&mut told).await.unwrap();
    assert!(told.contains("the client did not open all its streams within 30s"), "{told}");
    assert_eq!(process.sessions.now(), 0);
    drop(connection);
    assert_eq!(host.outcome().await.unwrap().end, End::NoStreams);
}

#[tokio::test(start_paused = true)]
async fn a_forwarder_through_which_nothing_moves_is_ended_after_four_hours() {
    for protocol in [forward::Protocol::Spdy, forward::Protocol::Tunnel, forward::Protocol::Channels] {
        let (ours, theirs) = duplex(8 << 10);
        let dial = |_| async { Ok(crate::forward::silent()) };
        let mut host: Host = host::forward_host(theirs, dial, Limits::default());
        let _forwarder = crate::forward::call(ours, protocol, &[80]).await.unwrap();
        let began = Instant::now();
        assert_eq!(host.outcome().await.unwrap().end, End::Idle, "{protocol:?}");
        assert!(began.elapsed() >= Duration::from_hours(4), "{protocol:?}");
    }
}
