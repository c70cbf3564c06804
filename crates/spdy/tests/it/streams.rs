//! Both sides of a connection.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vk_spdy::{Config, Error, Headers, ResetStatus};

use crate::support::{pair, pair_with, pattern, soon};

#[tokio::test]
async fn a_stream_carries_bytes_both_ways_and_each_direction_ends_separately() {
    let pair = pair();
    let (mut client, mut server) = pair.stream("stdin").await;
    assert_eq!(server.headers().get("name"), Some("stdin"));
    assert_eq!((client.id(), server.id()), (1, 1));
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    let mut question = String::new();
    soon(server.read_to_string(&mut question)).await.unwrap();
    assert_eq!(question, "question");
    server.send(Bytes::from_static(b"answer")).await.unwrap();
    server.finish().unwrap();
    let mut answer = String::new();
    soon(client.read_to_string(&mut answer)).await.unwrap();
    assert_eq!(answer, "answer");
    soon(client.closed()).await;
    soon(server.closed()).await;
    drop((client, server));
    assert_eq!((pair.client.streams(), pair.server.streams()), (0, 0));
}

#[tokio::test]
async fn a_slow_reader_loses_no_byte() {
    let config = || {
        let mut config = Config::default();
        config.receive_buffer = 10_000;
        config.send_buffer = 50_000;
        config
    };
    let pair = pair_with(3_000, config(), config());
    let (client, server) = pair.stream("data").await;
    let sent = pattern(10_000_000);
    let (_, mut writer) = client.split();
    let (mut reader, _) = server.split();
    let write = async {
        writer.write_all(&sent).await.unwrap();
        writer.finish().unwrap();
    };
    let read = async {
        let mut received = Vec::new();
        let mut buffer = vec![0; 1777];
        loop {
            let length = reader.read(&mut buffer).await.unwrap();
            if length == 0 {
                return received;
            }
            received.extend_from_slice(&buffer[..length]);
            tokio::task::yield_now().await;
        }
    };
    let ((), received) = soon(async { tokio::join!(write, read) }).await;
    assert!(received == sent, "{} bytes of {}", received.len(), sent.len());
}

#[tokio::test]
async fn a_rejected_stream_is_an_error_for_its_opener_and_the_next_one_works() {
    let pair = pair();
    let headers = Headers::new().with("name", "x");
    let refuse =
        async { pair.server.accept().await.unwrap().expect("a stream").reject(ResetStatus::InternalError) };
    let (opened, ()) = soon(async { tokio::join!(pair.client.open(&headers), refuse) }).await;
    assert!(matches!(opened, Err(Error::Reset(ResetStatus::InternalError))), "{opened:?}");
    let (client, server) = pair.stream("y").await;
    assert_eq!((client.id(), server.headers().get("name")), (3, Some("y")));
}

#[tokio::test]
async fn a_dropped_stream_is_reset_after_what_was_written_to_it() {
    let pair = pair();
    let (mut client, mut server) = pair.stream("x").await;
    server.write_all(b"last words").await.unwrap();
    drop(server);
    let mut bytes_read = Vec::new();
    let error = soon(client.read_to_end(&mut bytes_read)).await.unwrap_err();
    assert_eq!((bytes_read.as_slice(), error.kind()), (&b"last words"[..], io::ErrorKind::ConnectionReset));
    let error = soon(client.write_all(b"hello?")).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn close_delivers_everything_without_an_error() {
    let mut pair = pair();
    let (mut client, mut server) = pair.stream("x").await;
    let sent = Bytes::from(vec![7; 500_000]);
    let read = async {
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.map(|_| received)
    };
    let write = async {
        server.send(sent.clone()).await.unwrap();
        server.finish().unwrap();
        pair.server.close().await
    };
    let (received, closed) = soon(async { tokio::join!(read, write) }).await;
    closed.unwrap();
    assert!(received.unwrap() == sent);
    drop(client);
    soon(pair.client.ended()).await.unwrap();
    while let Some(driver) = soon(pair.drivers.join_next()).await {
        driver.unwrap().unwrap();
    }
    assert!(pair.server.accept().await.unwrap().is_none());
    assert!(pair.client.accept().await.unwrap().is_none());
    assert!(matches!(pair.client.open(&Headers::new()).await, Err(Error::PeerClosed)));
    assert!(matches!(pair.server.open(&Headers::new()).await, Err(Error::Closed)));
}

#[tokio::test]
async fn pings_are_answered_by_both_sides() {
    let pair = pair();
    soon(pair.client.ping()).await.unwrap();
    soon(pair.server.ping()).await.unwrap();
}
