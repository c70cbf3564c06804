//! How connections and streams end: by close, by timers, and by drop.

use std::{io, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use vk_spdy::{
    Config, Connection, Error, Headers, KeepAlive, ResetStatus,
    codec::{Decoder, Encoder, Frame, FrameLimits, GoAwayStatus},
};

use crate::support::{pair, pair_with, pattern, server, soon};

/// The bytes with which a client opens its first stream.
fn opening() -> BytesMut {
    let (id, associated, priority, headers) = (1, 0, 0, Headers::new());
    let syn = Frame::SynStream { id, associated, priority, headers, fin: false, unidirectional: false };
    let mut wire = BytesMut::new();
    Encoder::new().encode(&syn, &mut wire).expect("a small frame");
    wire
}

/// Two ends of a TCP connection.
async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (far, near) = tokio::join!(TcpStream::connect(address), listener.accept());
    (near.expect("a socket").0, far.expect("a socket"))
}

fn keep_alive(interval: u64, timeout: u64) -> Config {
    let mut config = Config::default();
    config.keep_alive =
        Some(KeepAlive { interval: Duration::from_secs(interval), timeout: Duration::from_secs(timeout) });
    config
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_answer_pings_is_disconnected() {
    let mut pair = pair_with(1000, Config::default(), keep_alive(5, 20));
    let (mut stream, _server_stream) = pair.stream("x").await;
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert!(!pair.client.is_ended());
    // The server's driver stops, and the pipe stays open.
    let (near, _far) = tokio::io::duplex(1000);
    let (silent, driver) = Connection::client(near, keep_alive(5, 20));
    pair.drivers.spawn(driver);
    let ended = soon(silent.ended()).await;
    assert!(matches!(ended, Err(Error::KeepAlive(after)) if after == Duration::from_secs(20)), "{ended:?}");
    stream.write_all(b"still here").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn keep_alive_does_not_count_while_this_side_does_not_read() {
    let mut config = keep_alive(5, 20);
    config.receive_buffer = 10;
    let pair = pair_with(1000, Config::default(), config);
    let (mut client, mut server) = pair.stream("x").await;
    let sent = pattern(100_000);
    let write = async {
        server.write_all(&sent).await.unwrap();
        server.finish().unwrap();
    };
    let read = async {
        // The pipe is full, and pongs are queued behind the data.
        tokio::time::sleep(Duration::from_mins(10)).await;
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        received
    };
    let ((), received) = tokio::join!(write, read);
    assert!(received == sent, "{} bytes of {}", received.len(), sent.len());
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_ends_and_its_streams_are_reset() {
    let mut config = Config::default();
    config.idle_timeout = Some(Duration::from_secs(100));
    let pair = pair_with(1000, config, Config::default());
    let (mut client, mut server) = pair.stream("x").await;
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(90)).await;
        client.write_all(b"x").await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'x');
    }
    let error = client.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(server.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(matches!(pair.server.ended().await, Err(Error::Idle(_))));
    drop(client);
    pair.client.ended().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn zero_means_never() {
    let mut config = keep_alive(0, 0);
    config.idle_timeout = Some(Duration::ZERO);
    let pair = pair_with(1000, Config::default(), config);
    let (mut client, mut server) = pair.stream("x").await;
    tokio::time::sleep(Duration::from_hours(10)).await;
    client.write_all(b"x").await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'x');
}

#[tokio::test(start_paused = true)]
async fn close_reports_a_peer_that_reads_nothing() {
    let (near, _far) = tokio::io::duplex(100);
    let (connection, driver) = Connection::client(near, Config::default());
    let mut drivers = JoinSet::new();
    drivers.spawn(driver);
    let headers = Headers::from([("x", "y".repeat(1000))]);
    let close = async {
        tokio::task::yield_now().await;
        connection.close().await
    };
    let (opened, closed) = soon(async { tokio::join!(connection.open(&headers), close) }).await;
    assert!(matches!(opened, Err(Error::Closed)), "{opened:?}");
    assert!(matches!(closed, Err(Error::Unsent)), "{closed:?}");
}

#[tokio::test(start_paused = true)]
async fn close_waits_only_for_the_linger_time() {
    let (connection, mut io, _drivers) = server(Config::default());
    let began = tokio::time::Instant::now();
    soon(connection.close()).await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 5);
    let mut good_bye = Vec::new();
    io.read_to_end(&mut good_bye).await.unwrap();
    assert_eq!(good_bye, b"\x80\x03\0\x07\0\0\0\x08\0\0\0\0\0\0\0\0");
}

#[tokio::test]
async fn close_waits_for_the_peer_to_read_what_was_sent() {
    // The pipe is smaller than the data, and the reader starts after the close.
    let pair = pair_with(1000, Config::default(), Config::default());
    let (mut client, mut server) = pair.stream("x").await;
    let sent = pattern(200_000);
    server.write_all(&sent).await.unwrap();
    server.finish().unwrap();
    let read = async {
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        received
    };
    let (closed, received) = soon(async { tokio::join!(pair.server.close(), read) }).await;
    closed.unwrap();
    assert!(received == sent, "{} bytes of {}", received.len(), sent.len());
}

#[tokio::test]
async fn a_dropped_connection_fails_everything_at_once() {
    let mut pair = pair();
    let (mut client, mut server) = pair.stream("x").await;
    drop(pair.server);
    assert_eq!(soon(server.read_u8()).await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    assert_eq!(soon(server.write_all(b"x")).await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    soon(server.closed()).await;
    let error = soon(client.read_u8()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    soon(pair.client.ended()).await.unwrap();
    while let Some(driver) = soon(pair.drivers.join_next()).await {
        driver.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_dropped_driver_fails_everything_at_once() {
    let mut pair = pair();
    let (mut client, _server) = pair.stream("x").await;
    pair.drivers.abort_all();
    assert!(soon(client.read_u8()).await.is_err());
    soon(client.closed()).await;
    assert!(matches!(soon(pair.client.ended()).await, Err(Error::NotDriven | Error::Truncated) | Ok(())));
    assert!(pair.client.open(&Headers::new()).await.is_err());
    assert!(pair.client.ping().await.is_err());
}

#[tokio::test]
async fn a_dropped_reader_unblocks_other_streams() {
    let mut config = Config::default();
    config.receive_buffer = 1000;
    let pair = pair_with(1000, config, Config::default());
    let (mut noisy, deaf) = pair.stream("noisy").await;
    let (mut quiet, mut bytes_read) = pair.stream("quiet").await;
    let flood = async {
        noisy.write_all(&pattern(100_000)).await.unwrap();
        quiet.write_all(b"hello").await.unwrap();
    };
    let listen = async {
        // The connection is blocked: the flood has filled all buffers.
        let mut word = [0; 5];
        let waited = tokio::time::timeout(Duration::from_millis(100), bytes_read.read_exact(&mut word)).await;
        assert!(waited.is_err(), "the flood is not blocked");
        let (reader, _writer) = deaf.split();
        drop(reader);
        bytes_read.read_exact(&mut word).await.unwrap();
        assert_eq!(&word, b"hello");
    };
    soon(async { tokio::join!(flood, listen) }).await;
}

#[tokio::test]
async fn a_cancelled_open_resets_its_stream() {
    let pair = pair();
    let given_up = tokio::time::timeout(Duration::from_millis(50), pair.client.open(&Headers::new())).await;
    assert!(given_up.is_err());
    assert_eq!(pair.client.streams(), 0);
    soon(async {
        while pair.server.streams() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (client, server) = pair.stream("next").await;
    assert_eq!((client.id(), server.id(), pair.server.streams()), (3, 3, 1));
}

#[tokio::test]
async fn dropping_one_half_does_not_affect_the_peer() {
    let pair = pair();
    let (mut client, server) = pair.stream("stdin").await;
    let (mut reader, writer) = server.split();
    drop(writer);
    client.write_all(b"to the end").await.unwrap();
    client.finish().unwrap();
    let mut bytes_read = String::new();
    soon(reader.read_to_string(&mut bytes_read)).await.unwrap();
    assert_eq!(bytes_read, "to the end");
    drop(reader);
    // Reset only now, because the server never finished it.
    assert_eq!(soon(client.read_u8()).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn after_go_away_streams_continue_and_the_last_one_closes_the_connection() {
    let (connection, mut io, mut drivers) = server(Config::default());
    let (mut encoder, mut wire) = (Encoder::new(), BytesMut::new());
    let syn = |id| Frame::SynStream {
        id,
        associated: 0,
        priority: 0,
        headers: Headers::new(),
        fin: false,
        unidirectional: false,
    };
    for frame in [syn(1), Frame::GoAway { last_good: 0, status: GoAwayStatus::Ok }, syn(3)] {
        encoder.encode(&frame, &mut wire).unwrap();
    }
    io.write_all(&wire).await.unwrap();
    let mut stream = soon(connection.accept()).await.unwrap().unwrap().accept();
    assert!(soon(connection.accept()).await.unwrap().is_none());
    assert!(matches!(connection.open(&Headers::new()).await, Err(Error::GoneAway)));
    stream.write_all(b"bye").await.unwrap();
    stream.finish().unwrap();
    drop(stream);
    let mut answer = BytesMut::new();
    soon(async { while io.read_buf(&mut answer).await.unwrap() > 0 {} }).await;
    let mut decoder = Decoder::new(FrameLimits::default());
    let frames: Vec<_> = std::iter::from_fn(|| decoder.decode(&mut answer).unwrap()).collect();
    assert_eq!(
        frames,
        [
            Frame::RstStream { id: 3, status: ResetStatus::RefusedStream },
            Frame::SynReply { id: 1, headers: Headers::new(), fin: false },
            Frame::Data { id: 1, payload: Bytes::from_static(b"bye"), fin: false },
            Frame::Data { id: 1, payload: Bytes::new(), fin: true },
            Frame::RstStream { id: 1, status: ResetStatus::Cancel },
            Frame::GoAway { last_good: 3, status: GoAwayStatus::Ok },
        ]
    );
    drop(io);
    soon(drivers.join_next()).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn flush_waits_until_the_transport_has_the_bytes() {
    let (near, mut far) = tokio::io::duplex(100);
    let (connection, driver) = Connection::server(near, Config::default());
    let mut drivers = JoinSet::new();
    drivers.spawn(driver);
    far.write_all(&opening()).await.unwrap();
    let mut stream = soon(connection.accept()).await.unwrap().unwrap().accept();
    stream.write_all(&pattern(1000)).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(50), stream.flush()).await;
    assert!(early.is_err(), "the pipe holds a hundred bytes");
    let mut taken = vec![0; 950];
    let (flushed, read) = soon(async { tokio::join!(stream.flush(), far.read_exact(&mut taken)) }).await;
    flushed.unwrap();
    read.unwrap();
}

#[tokio::test]
async fn a_server_can_open_streams_if_the_client_accepts_them() {
    let refused = pair();
    let opened = soon(refused.server.open(&Headers::new())).await;
    assert!(matches!(opened, Err(Error::Reset(ResetStatus::RefusedStream))), "{opened:?}");

    let mut config = Config::default();
    config.max_streams = Some(1);
    let pair = pair_with(1000, Config::default(), config);
    let headers = Headers::new();
    let accept = async { pair.client.accept().await.unwrap().unwrap().accept() };
    let (opened, accepted) = soon(async { tokio::join!(pair.server.open(&headers), accept) }).await;
    assert_eq!((opened.unwrap().id(), accepted.id()), (2, 2));
}

#[tokio::test]
async fn trailing_headers_arrive() {
    let pair = pair();
    let (client, server) = pair.stream("x").await;
    let ((mut reader, _), (_, mut writer)) = (client.split(), server.split());
    writer.send_headers(&Headers::new().with("more", "1")).await.unwrap();
    writer.finish().unwrap();
    assert!(soon(reader.chunk()).await.unwrap().is_none());
    assert_eq!(reader.trailing_headers(), [Headers::new().with("more", "1")]);
    assert!(reader.trailing_headers().is_empty());
}

#[tokio::test]
async fn data_sent_before_the_peer_closed_is_read_to_the_end() {
    let (near, mut far) = sockets().await;
    let mut config = Config::default();
    config.receive_buffer = 1000;
    let (connection, driver) = Connection::server(near, config);
    let mut drivers = JoinSet::new();
    drivers.spawn(driver);

    let (mut encoder, mut wire) = (Encoder::new(), opening());
    let sent = pattern(100_000);
    for piece in sent.chunks(10_000) {
        let data = Frame::Data { id: 1, payload: Bytes::copy_from_slice(piece), fin: false };
        encoder.encode(&data, &mut wire).unwrap();
    }
    encoder.encode(&Frame::Data { id: 1, payload: Bytes::new(), fin: true }, &mut wire).unwrap();
    far.write_all(&wire).await.unwrap();
    let stream = soon(connection.accept()).await.unwrap().unwrap().accept();
    // The answer arrives and is not read: the peer's kernel sends a reset when the socket is closed.
    far.readable().await.unwrap();
    drop(far);
    let (mut reader, mut writer) = stream.split();
    let broken = async {
        while writer.write_all(b"anybody?").await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    soon(broken).await;
    let mut received = Vec::new();
    soon(reader.read_to_end(&mut received)).await.unwrap();
    assert!(received == sent, "{} bytes of {}", received.len(), sent.len());
}

#[tokio::test]
async fn a_peer_that_is_still_sending_receives_everything_when_this_side_closes() {
    let (near, mut far) = sockets().await;
    let (connection, driver) = Connection::server(near, Config::default());
    let mut drivers = JoinSet::new();
    drivers.spawn(driver);
    far.write_all(&opening()).await.unwrap();
    let mut stream = soon(connection.accept()).await.unwrap().unwrap().accept();
    let peer = async {
        // It sends a lot of unwanted data, and only then reads.
        let (mut encoder, mut wire) = (Encoder::new(), BytesMut::new());
        for _ in 0..500 {
            let data = Frame::Data { id: 1, payload: Bytes::from(vec![7; 10_000]), fin: false };
            encoder.encode(&data, &mut wire).unwrap();
        }
        far.write_all(&wire).await.unwrap();
        let mut bytes_read = BytesMut::new();
        while far.read_buf(&mut bytes_read).await.unwrap() > 0 {}
        bytes_read
    };
    let server = async {
        stream.write_all(&pattern(100_000)).await.unwrap();
        stream.finish().unwrap();
        connection.close().await.unwrap();
    };
    let (mut bytes_read, ()) = soon(async { tokio::join!(peer, server) }).await;
    let mut decoder = Decoder::new(FrameLimits::default());
    let (mut received, mut last) = (Vec::new(), None);
    while let Some(frame) = decoder.decode(&mut bytes_read).unwrap() {
        if let Frame::Data { payload, .. } = &frame {
            received.extend_from_slice(payload);
        }
        last = Some(frame);
    }
    assert!(received == pattern(100_000), "{} bytes", received.len());
    assert!(matches!(last, Some(Frame::GoAway { status: GoAwayStatus::Ok, .. })), "{last:?}");
}

#[tokio::test]
async fn data_of_dropped_readers_takes_no_room() {
    let mut config = Config::default();
    config.receive_total = 10_000;
    let pair = pair_with(1000, config, Config::default());
    for _ in 0..10 {
        let (mut client, server) = pair.stream("unread").await;
        client.write_all(&pattern(5_000)).await.unwrap();
        soon(client.flush()).await.unwrap();
        soon(pair.client.ping()).await.unwrap();
        let (reader, writer) = server.split();
        drop(reader);
        drop(writer);
        let (mut client, server) = pair.stream("half").await;
        client.write_all(&pattern(5_000)).await.unwrap();
        soon(pair.client.ping()).await.unwrap();
        drop(server.split().0);
    }
}
