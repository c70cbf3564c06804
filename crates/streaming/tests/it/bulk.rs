//! Much data, slow sides, and not a byte lost.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, duplex};
use vk_provider::ability::Exit;
use vk_streaming::{End, Limits, exec::Protocol};

use crate::{
    exec::{PROTOCOLS, half_closes},
    host::{self, ALL, Joined, join},
    process,
};

const MUCH: usize = 10 << 20;

/// Bytes that tell where they stand.
pub(crate) fn pattern(position: usize) -> u8 {
    let position = position as u64;
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Writes so many bytes of the pattern, in pieces of changing length.
pub(crate) async fn write_pattern(mut to: impl AsyncWrite + Unpin, total: usize) {
    let mut position = 0;
    let mut length = 1;
    while position < total {
        length = (length * 7 + 3) % 40_000 + 1;
        let end = (position + length).min(total);
        let piece: Vec<u8> = (position..end).map(pattern).collect();
        to.write_all(&piece).await.unwrap();
        position = end;
    }
    to.shutdown().await.unwrap();
}

/// Reads so many bytes and checks each; now and then it sleeps for a while, on the clock of the test.
pub(crate) async fn read_pattern(mut from: impl AsyncRead + Unpin, total: usize) {
    let mut buffer = vec![0; 30_000];
    let mut position = 0;
    let mut reads = 0;
    while position < total {
        let read = from.read(&mut buffer).await.unwrap();
        assert!(read > 0, "ended at {position} of {total}");
        for (offset, byte) in buffer[..read].iter().enumerate() {
            assert_eq!(*byte, pattern(position + offset), "at {}", position + offset);
        }
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
    let (provided, mut process) = process::session_with(ALL, 13_000);
    let mut host = host::exec_host(theirs, Ok(provided), Limits::default());
    let mut session = host::call(ours, protocol, ALL).await.unwrap();
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
    assert_eq!(outcome.end, End::Exited(0), "{protocol:?}");
    assert_eq!((outcome.received, outcome.sent), (MUCH as u64, MUCH as u64), "{protocol:?}");
}

#[tokio::test(start_paused = true)]
async fn ten_megabytes_each_way_through_slow_readers_arrive_byte_for_byte() {
    for protocol in PROTOCOLS {
        both_ways(protocol).await;
    }
}

#[tokio::test]
async fn all_output_arrives_also_when_the_process_has_long_ended() {
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
