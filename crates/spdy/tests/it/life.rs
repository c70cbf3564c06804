//! How connections and streams end: in order, by time, and by being dropped.

use std::{io, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use vk_spdy::{
    Config, Connection, Error, Headers, KeepAlive, ResetStatus,
    codec::{Decoder, Encoder, Frame, GoAwayStatus, Limits},
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

/// Two ends of a real connection.
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
async fn a_peer_that_answers_pings_is_kept_and_one_that_does_not_is_given_up() {
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
async fn a_peer_is_not_blamed_while_this_side_does_not_read() {
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
        // The pipe is full of data, and pongs wait behind it.
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
async fn close_gives_up_on_a_peer_that_takes_nothing_and_says_so() {
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
async fn close_waits_only_so_long_for_the_peer_to_close_too() {
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
    // A pipe that is shorter than what is sent, and a reader who begins after the close.
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
async fn a_dropped_connection_ends_everything_at_once() {
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
async fn a_dropped_driver_ends_everything_at_once() {
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
async fn a_reader_that_is_dropped_lets_the_others_go_on() {
    let mut config = Config::default();
    config.receive_buffer = 1000;
    let pair = pair_with(1000, config, Config::default());
    let (mut noisy, deaf) = pair.stream("noisy").await;
    let (mut quiet, mut heard) = pair.stream("quiet").await;
    let flood = async {
        noisy.write_all(&pattern(100_000)).await.unwrap();
        quiet.write_all(b"hello").await.unwrap();
    };
    let listen = async {
        // The connection stands still: the flood has filled all there is.
        let mut word = [0; 5];
        let waited = tokio::time::timeout(Duration::from_millis(100), heard.read_exact(&mut word)).await;
        assert!(waited.is_err(), "nothing holds the flood back");
        let (reader, _writer) = deaf.split();
        drop(reader);
        heard.read_exact(&mut word).await.unwrap();
        assert_eq!(&word, b"hello");
    };
    soon(async { tokio::join!(flood, listen) }).await;
}

#[tokio::test]
async fn an_open_that_is_given_up_resets_its_stream() {
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
async fn half_streams_may_be_dropped_without_the_peer_noticing() {
    let pair = pair();
    let (mut client, server) = pair.stream("stdin").await;
    let (mut reader, writer) = server.split();
    drop(writer);
    client.write_all(b"to the end").await.unwrap();
    client.finish().unwrap();
    let mut heard = String::new();
    soon(reader.read_to_string(&mut heard)).await.unwrap();
    assert_eq!(heard, "to the end");
    drop(reader);
    // Only now is it reset, for the server has never finished it.
    assert_eq!(soon(client.read_u8()).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn after_go_away_streams_go_on_and_the_last_one_takes_the_connection_with_it() {
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
    let mut decoder = Decoder::new(Limits::default());
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
async fn flush_waits_until_the_carrier_has_the_bytes() {
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
async fn a_server_can_open_streams_where_the_client_takes_them() {
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
async fn later_headers_arrive() {
    let pair = pair();
    let (client, server) = pair.stream("x").await;
    let ((mut reader, _), (_, mut writer)) = (client.split(), server.split());
    writer.send_headers(&Headers::new().with("more", "1")).await.unwrap();
    writer.finish().unwrap();
    assert!(soon(reader.chunk()).await.unwrap().is_none());
    assert_eq!(reader.later_headers(), [Headers::new().with("more", "1")]);
    assert!(reader.later_headers().is_empty());
}

#[tokio::test]
async fn what_a_peer_sent_before_it_closed_is_read_to_the_end() {
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
    // The answer arrives and is not read: the peer's kernel says "reset" when the socket is closed.
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
async fn a_peer_that_is_still_sending_loses_nothing_when_this_side_closes() {
    let (near, mut far) = sockets().await;
    let (connection, driver) = Connection::server(near, Config::default());
    let mut drivers = JoinSet::new();
    drivers.spawn(driver);
    far.write_all(&opening()).await.unwrap();
    let mut stream = soon(connection.accept()).await.unwrap().unwrap().accept();
    let peer = async {
        // It has a lot to say that nobody wants, and only then listens.
        let (mut encoder, mut wire) = (Encoder::new(), BytesMut::new());
        for _ in 0..500 {
            let data = Frame::Data { id: 1, payload: Bytes::from(vec![7; 10_000]), fin: false };
            encoder.encode(&data, &mut wire).unwrap();
        }
        far.write_all(&wire).await.unwrap();
        let mut heard = BytesMut::new();
        while far.read_buf(&mut heard).await.unwrap() > 0 {}
        heard
    };
    let server = async {
        stream.write_all(&pattern(100_000)).await.unwrap();
        stream.finish().unwrap();
        connection.close().await.unwrap();
    };
    let (mut heard, ()) = soon(async { tokio::join!(peer, server) }).await;
    let mut decoder = Decoder::new(Limits::default());
    let (mut received, mut last) = (Vec::new(), None);
    while let Some(frame) = decoder.decode(&mut heard).unwrap() {
        if let Frame::Data { payload, .. } = &frame {
            received.extend_from_slice(payload);
        }
        last = Some(frame);
    }
    assert!(received == pattern(100_000), "{} bytes", received.len());
    assert!(matches!(last, Some(Frame::GoAway { status: GoAwayStatus::Ok, .. })), "{last:?}");
}

#[tokio::test]
async fn bytes_that_nobody_will_read_take_no_room_from_others() {
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
