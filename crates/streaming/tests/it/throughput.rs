//! Large amounts of data with slow readers: not a byte is lost.

use std::{sync::LazyLock, time::Duration};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, duplex};
use vk_provider::ability::Exit;
use vk_streaming::{SessionEnd, SessionLimits, exec::Protocol};

use crate::{
    exec::{PROTOCOLS, half_closes},
    fake_process,
    test_server::{self, ALL, Joined, join},
};

const MUCH: usize = 10 << 20;

/// The test data: each byte depends on its position.
pub(crate) fn pattern(length: usize) -> &'static [u8] {
    static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
        (0..MUCH as u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0]).collect()
    });
    &PATTERN[..length]
}

/// Writes this many bytes of the pattern, in pieces of varying length.
pub(crate) async fn write_pattern(mut to: impl AsyncWrite + Unpin, total: usize) {
    let mut rest = pattern(total);
    let mut length = 1;
    while !rest.is_empty() {
        length = (length * 7 + 3) % 40_000 + 1;
        let (piece, later) = rest.split_at(length.min(rest.len()));
        to.write_all(piece).await.unwrap();
        rest = later;
    }
    to.shutdown().await.unwrap();
}

/// Reads this many bytes and checks each; sleeps now and then, in paused time.
pub(crate) async fn read_pattern(mut from: impl AsyncRead + Unpin, total: usize) {
    let mut buffer = vec![0; 30_000];
    let mut position = 0;
    let mut reads = 0;
    while position < total {
        let read = from.read(&mut buffer).await.unwrap();
        assert!(read > 0, "ended at {position} of {total}");
        assert!(buffer[..read] == pattern(total)[position..position + read], "after {position} bytes");
        position += read;
        reads += 1;
        if reads % 97 == 0 {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
    assert_eq!(position, total);
}

async fn both_ways(protocol: Protocol) {
    let (ours, theirs) = duplex(17_000);
    let (provided, mut process) = fake_process::session_with(ALL, 13_000);
    let mut host = test_server::exec_host(theirs, Ok(provided), SessionLimits::default());
    let mut session = test_server::call(ours, protocol, ALL).await.unwrap();
    let stdin = session.stdin.take().unwrap();
    let stdout = session.stdout.take().unwrap();
    let to_process = write_pattern(stdin, MUCH);
    let from_process = write_pattern(process.stdout.take().unwrap(), MUCH);
    let at_process = async {
        read_pattern(&mut process.stdin, MUCH).await;
        if half_closes(protocol) {
            assert_eq!(process.stdin.read(&mut [0]).await.unwrap(), 0, "{protocol:?}");
        }
    };
    let at_client = read_pattern(stdout, MUCH);
    futures::future::join4(to_process, from_process, at_process, at_client).await;
    process.exit(0);
    assert_eq!(session.exit.await.unwrap(), Exit { code: 0 }, "{protocol:?}");
    let outcome = host.outcome().await.unwrap();
    assert_eq!(outcome.end, SessionEnd::Exited(0), "{protocol:?}");
    assert_eq!((outcome.received, outcome.sent), (MUCH as u64, MUCH as u64), "{protocol:?}");
}

#[tokio::test(start_paused = true)]
async fn ten_megabytes_each_way_through_slow_readers_arrive_unchanged() {
    for protocol in PROTOCOLS {
        both_ways(protocol).await;
    }
}

#[tokio::test]
async fn all_output_arrives_after_the_process_has_ended() {
    for protocol in PROTOCOLS {
        let Joined { mut session, mut process, mut host } = join(protocol, ALL).await;
        let mut stdout = process.stdout.take().unwrap();
        process.exit(0);
        let (wrote, read) =
            (write_pattern(&mut stdout, 1 << 20), read_pattern(session.stdout.take().unwrap(), 1 << 20));
        futures::future::join(wrote, read).await;
        drop(stdout);
        assert_eq!(session.exit.await.unwrap(), Exit { code: 0 }, "{protocol:?}");
        assert_eq!(host.outcome().await.unwrap().sent, 1 << 20, "{protocol:?}");
    }
}

/// Writes until nothing moves for a second of paused time, and returns the number of bytes.
async fn until_full(mut to: impl AsyncWrite + Unpin) -> usize {
    let mut taken = 0;
    while let Ok(written) = tokio::time::timeout(Duration::from_secs(1), to.write(&[7; 1000])).await {
        taken += written.unwrap();
    }
    taken
}

#[tokio::test(start_paused = true)]
async fn buffering_is_bounded_whichever_side_does_not_read() {
    const BOUND: usize = 3 << 20;
    for protocol in PROTOCOLS {
        let Joined { mut session, mut process, host: _host } = join(protocol, ALL).await;
        let out = until_full(process.stdout.as_mut().unwrap()).await;
        let err = until_full(process.stderr.as_mut().unwrap()).await;
        let input = until_full(session.stdin.as_mut().unwrap()).await;
        assert!(out + err < BOUND && input < BOUND, "{protocol:?}: {out} and {err} out, {input} in");
        // All of it arrives.
        let (mut stdout, mut stderr) = (session.stdout.take().unwrap(), session.stderr.take().unwrap());
        let (mut out_read, mut err_read) = (vec![0; out], vec![0; err]);
        let reading =
            futures::future::join(stdout.read_exact(&mut out_read), stderr.read_exact(&mut err_read));
        let (read, stdin_read) = futures::future::join(reading, process.read(input)).await;
        read.0.and(read.1).unwrap();
        assert!(stdin_read.iter().chain(&out_read).chain(&err_read).all(|byte| *byte == 7), "{protocol:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_pauses_reading_loses_nothing_when_the_process_ends() {
    for protocol in PROTOCOLS {
        let Joined { session: _session, mut process, host: _host } = join(protocol, ALL).await;
        let room = until_full(process.stdout.as_mut().unwrap()).await;

        // This much is buffered while nobody reads, and the process ends long before it arrives.
        let Joined { mut session, mut process, mut host } = join(protocol, ALL).await;
        let length = room - 5000;
        process.print(pattern(length)).await;
        process.exit(0);
        tokio::time::sleep(Duration::from_mins(30)).await;
        assert_eq!(process.sessions.now(), 0, "{protocol:?}");
        let mut stdout = session.stdout.take().unwrap();
        read_pattern(&mut stdout, length).await;
        assert_eq!(stdout.read(&mut [0]).await.unwrap(), 0, "{protocol:?}");
        assert_eq!(session.exit.await.unwrap(), Exit { code: 0 }, "{protocol:?}");
        let outcome = host.outcome().await.unwrap();
        assert_eq!((outcome.end, outcome.sent), (SessionEnd::Exited(0), length as u64), "{protocol:?}");
    }
}
