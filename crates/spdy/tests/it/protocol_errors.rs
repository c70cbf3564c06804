//! Peers that violate the protocol or our limits. The test itself is the peer, frame by frame.

use std::{io, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    task::JoinSet,
};
use vk_spdy::{
    Config, Connection, Error, FrameLimits, Headers, ResetStatus,
    codec::{self, Decoder, Encoder, Frame, GoAwayStatus},
};

use crate::support::{server, soon};

/// A client that sends arbitrary frames.
struct RawPeer {
    io: DuplexStream,
    encoder: Encoder,
    decoder: Decoder,
    input: BytesMut,
    connection: Connection,
    drivers: JoinSet<Result<(), Error>>,
}

impl RawPeer {
    fn of(config: Config) -> Self {
        let (connection, io, drivers) = server(config);
        let decoder = Decoder::new(FrameLimits::default());
        Self { io, encoder: Encoder::new(), decoder, input: BytesMut::new(), connection, drivers }
    }

    fn new() -> Self {
        Self::of(Config::default())
    }

    async fn raw(&mut self, bytes: &[u8]) {
        self.io.write_all(bytes).await.expect("the server takes bytes");
    }

    async fn send(&mut self, frame: Frame) {
        let mut bytes = BytesMut::new();
        self.encoder.encode(&frame, &mut bytes).expect("a frame");
        self.raw(&bytes).await;
    }

    async fn syn(&mut self, id: u32) {
        self.send(syn(id, &[("streamtype", "data")])).await;
    }

    async fn data(&mut self, id: u32, payload: &'static [u8], fin: bool) {
        self.send(Frame::Data { id, payload: Bytes::from_static(payload), fin }).await;
    }

    /// The next frame of the server; `None` if it has closed.
    async fn next(&mut self) -> Option<Frame> {
        soon(async {
            loop {
                if let Some(frame) = self.decoder.decode(&mut self.input).expect("the server's frames") {
                    return Some(frame);
                }
                if self.io.read_buf(&mut self.input).await.expect("the server's bytes") == 0 {
                    return None;
                }
            }
        })
        .await
    }

    async fn expect_reset(&mut self, id: u32, status: ResetStatus) {
        assert_eq!(self.next().await, Some(Frame::RstStream { id, status }));
    }

    /// Asserts that the server still answers; everything sent before has been processed then.
    async fn expect_life(&mut self) {
        self.send(Frame::Ping(77)).await;
        assert_eq!(self.next().await, Some(Frame::Ping(77)));
    }

    /// Asserts that the server closes and fails with this error.
    async fn expect_failure(mut self) -> codec::Error {
        let last = self.next().await;
        assert!(matches!(last, Some(Frame::GoAway { status: GoAwayStatus::ProtocolError, .. })), "{last:?}");
        assert_eq!(self.next().await, None);
        let ended = soon(self.drivers.join_next()).await.expect("a driver").expect("no panic");
        assert!(self.connection.is_ended());
        match ended {
            Err(Error::Protocol(error)) => error,
            other => panic!("ended with {other:?}"),
        }
    }
}

fn syn(id: u32, headers: &[(&str, &str)]) -> Frame {
    let headers: Headers = headers.iter().copied().collect();
    Frame::SynStream { id, associated: 0, priority: 0, headers, fin: false, unidirectional: false }
}

/// A SYN_STREAM frame with an arbitrary header block.
fn syn_block(id: u32, block: &[u8]) -> Vec<u8> {
    let mut stored = vec![0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2, 0];
    let length = u16::try_from(block.len()).expect("a short block");
    stored.extend(length.to_le_bytes());
    stored.extend((!length).to_le_bytes());
    stored.extend(block);
    let length = u32::try_from(stored.len() + 10).expect("a short frame");
    let mut frame = vec![0x80, 3, 0, 1];
    frame.extend(length.to_be_bytes());
    frame.extend(id.to_be_bytes());
    frame.extend([0; 6]);
    frame.extend(stored);
    frame
}

#[tokio::test]
async fn a_reused_id_is_a_protocol_error_of_that_stream_only() {
    let mut peer = RawPeer::new();
    peer.syn(5).await;
    let stream = soon(peer.connection.accept()).await.unwrap().unwrap().accept();
    assert!(matches!(peer.next().await, Some(Frame::SynReply { id: 5, .. })));
    peer.syn(3).await;
    peer.expect_reset(3, ResetStatus::ProtocolError).await;
    peer.syn(5).await;
    peer.expect_reset(5, ResetStatus::ProtocolError).await;
    soon(stream.closed()).await;
    peer.syn(7).await;
    assert_eq!(soon(peer.connection.accept()).await.unwrap().unwrap().id(), 7);
}

#[tokio::test]
async fn an_even_id_from_a_client_is_a_protocol_error() {
    let mut peer = RawPeer::new();
    peer.syn(2).await;
    peer.expect_reset(2, ResetStatus::ProtocolError).await;
    peer.expect_life().await;
    assert_eq!(peer.connection.streams(), 0);
}

#[tokio::test]
async fn headers_of_rejected_streams_are_inflated_too() {
    let mut config = Config::default();
    config.max_streams = Some(1);
    let mut peer = RawPeer::of(config);
    peer.syn(1).await;
    // Rejected for different reasons; the next one can be decoded only if these were inflated.
    peer.syn(3).await;
    peer.expect_reset(3, ResetStatus::RefusedStream).await;
    peer.syn(4).await;
    peer.expect_reset(4, ResetStatus::ProtocolError).await;
    drop(soon(peer.connection.accept()).await.unwrap().unwrap());
    peer.expect_reset(1, ResetStatus::RefusedStream).await;
    peer.send(syn(5, &[("streamtype", "error"), ("port", "80")])).await;
    let stream = soon(peer.connection.accept()).await.unwrap().unwrap();
    assert_eq!((stream.id(), stream.headers().get("port")), (5, Some("80")));
}

#[tokio::test]
async fn bad_header_names_reset_the_stream_and_not_the_connection() {
    for (block, reason) in [
        (&b"\0\0\0\x01\0\0\0\x04Port\0\0\0\x0280"[..], "capitals"),
        (b"\0\0\0\x02\0\0\0\x01a\0\0\0\x01x\0\0\0\x01a\0\0\0\x01y", "twice"),
        (b"\0\0\0\x01\0\0\0\0\0\0\0\x0280", "empty"),
        (b"\0\0\0\x01\0\0\0\x01\xff\0\0\0\x0280", "no UTF-8"),
    ] {
        let mut peer = RawPeer::new();
        peer.raw(&syn_block(1, block)).await;
        assert_eq!(
            peer.next().await,
            Some(Frame::RstStream { id: 1, status: ResetStatus::ProtocolError }),
            "{reason}"
        );
        peer.expect_life().await;
        peer.raw(&syn_block(1, b"")[..0]).await;
        assert_eq!(peer.connection.streams(), 0);
    }
}

#[tokio::test]
async fn header_blocks_over_a_limit_end_the_connection() {
    let mut config = Config::default();
    config.limits.headers = 2;
    config.limits.field = 100;
    config.limits.block = 1000;
    let long = "x".repeat(101);
    for (headers, what) in [
        (vec![("a", "1"), ("b", "2"), ("c", "3")], "the headers of a stream"),
        (vec![("a", long.as_str())], "a header"),
        (vec![("a", "1"), (&"y".repeat(2000), "2")], "an inflated header block"),
    ] {
        let mut peer = RawPeer::of(config.clone());
        peer.send(syn(1, &headers)).await;
        let error = peer.expect_failure().await;
        assert!(matches!(error, codec::Error::Limit { what: name, .. } if name == what), "{error}");
    }
}

#[tokio::test]
async fn a_zip_bomb_of_headers_ends_the_connection_before_it_is_inflated() {
    let mut peer = RawPeer::new();
    let mut bomb = flate2_bomb(8 << 20);
    assert!(bomb.len() < 100_000, "{}", bomb.len());
    let length = u32::try_from(bomb.len() + 10).unwrap().to_be_bytes();
    let mut frame = vec![0x80, 3, 0, 1, 0, length[1], length[2], length[3], 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    frame.append(&mut bomb);
    peer.raw(&frame).await;
    let error = peer.expect_failure().await;
    assert!(matches!(error, codec::Error::Limit { limit: 2_097_152, .. }), "{error}");
}

/// A zlib stream of zeros without a dictionary, which is allowed.
fn flate2_bomb(length: usize) -> Vec<u8> {
    let mut stream = flate2::Compress::new(flate2::Compression::fast(), true);
    let mut output = Vec::with_capacity(1 << 20);
    stream.compress_vec(&vec![0; length], &mut output, flate2::FlushCompress::Sync).expect("zeros");
    output
}

#[tokio::test]
async fn garbage_ends_the_connection_with_a_reason() {
    for (garbage, reason) in [
        (&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], None),
        (b"\x80\x02\0\x01\0\0\0\x0a0123456789", Some("version 2")),
        (b"\x80\x03\0\x06\0\0\0\x05\0\0\0\x01\0", Some("PING frame: its length is wrong")),
        (b"\x80\x03\0\x03\0\0\0\x08\0\0\0\0\0\0\0\x01", Some("RST_STREAM frame: there is no stream 0")),
        (b"\0\0\0\0\0\0\0\x01x", Some("DATA frame: there is no stream 0")),
        (b"\x80\x03\0\x01\0\0\0\x0e\0\0\0\x01\0\0\0\0\0\0garb", Some("cannot be inflated")),
        (b"\x80\x03\0\x04\0\0\0\x04\0\0\0\x01", Some("SETTINGS frame: its length is wrong")),
    ] {
        let mut peer = RawPeer::new();
        peer.raw(garbage).await;
        let Some(reason) = reason else {
            // A DATA frame of a stream that was never opened, without its end.
            drop(peer.io);
            let ended = soon(peer.drivers.join_next()).await.unwrap().unwrap();
            assert!(matches!(ended, Err(Error::Truncated)), "{ended:?}");
            continue;
        };
        let error = peer.expect_failure().await.to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[tokio::test]
async fn a_peer_that_disconnects_inside_a_frame_is_an_error_for_all_streams() {
    let mut peer = RawPeer::new();
    peer.syn(1).await;
    peer.syn(3).await;
    let mut one = soon(peer.connection.accept()).await.unwrap().unwrap().accept();
    let mut two = soon(peer.connection.accept()).await.unwrap().unwrap().accept();
    peer.raw(b"\0\0\0\x01\0\0\0\x0ahal").await;
    drop(peer.io);
    let mut bytes_read = Vec::new();
    let error = soon(one.read_to_end(&mut bytes_read)).await.unwrap_err();
    assert_eq!((bytes_read.as_slice(), error.kind()), (&b"hal"[..], io::ErrorKind::UnexpectedEof));
    let error = soon(two.read_to_end(&mut bytes_read)).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert!(matches!(soon(peer.connection.ended()).await, Err(Error::Truncated)));
    assert!(matches!(soon(peer.connection.accept()).await, Err(Error::Truncated)));
}

#[tokio::test]
async fn a_peer_that_closes_between_frames_is_an_error_for_its_open_streams() {
    let mut peer = RawPeer::new();
    peer.syn(1).await;
    peer.data(1, b"all?", false).await;
    let mut stream = soon(peer.connection.accept()).await.unwrap().unwrap().accept();
    drop(peer.io);
    let mut bytes_read = Vec::new();
    let error = soon(stream.read_to_end(&mut bytes_read)).await.unwrap_err();
    assert_eq!((bytes_read.as_slice(), error.kind()), (&b"all?"[..], io::ErrorKind::UnexpectedEof));
    soon(peer.connection.ended()).await.unwrap();
}

#[tokio::test]
async fn frames_for_unknown_streams_are_rejected_and_for_closed_ones_ignored() {
    let mut peer = RawPeer::new();
    peer.syn(1).await;
    drop(soon(peer.connection.accept()).await.unwrap().unwrap().accept());
    assert!(matches!(peer.next().await, Some(Frame::SynReply { id: 1, .. })));
    peer.expect_reset(1, ResetStatus::Cancel).await;
    peer.data(1, b"too late", false).await;
    peer.send(Frame::RstStream { id: 1, status: ResetStatus::Cancel }).await;
    peer.expect_life().await;
    peer.data(9, b"who?", false).await;
    peer.expect_reset(9, ResetStatus::InvalidStream).await;
    peer.send(Frame::SynReply { id: 2, headers: Headers::new(), fin: false }).await;
    peer.expect_reset(2, ResetStatus::InvalidStream).await;
}

#[tokio::test]
async fn data_after_fin_resets_the_stream() {
    let mut peer = RawPeer::new();
    peer.syn(1).await;
    let mut stream = soon(peer.connection.accept()).await.unwrap().unwrap().accept();
    assert!(matches!(peer.next().await, Some(Frame::SynReply { id: 1, .. })));
    peer.data(1, b"all", true).await;
    peer.data(1, b"more", false).await;
    peer.expect_reset(1, ResetStatus::StreamAlreadyClosed).await;
    let mut bytes_read = Vec::new();
    soon(stream.read_to_end(&mut bytes_read)).await.unwrap();
    assert_eq!(bytes_read, b"all");
}

#[tokio::test]
async fn unknown_frames_settings_and_window_updates_are_ignored() {
    let mut peer = RawPeer::new();
    peer.raw(b"\x80\x03\0\x0b\0\0\0\x03abc").await;
    peer.send(Frame::Settings {
        clear: true,
        settings: vec![codec::Setting { flags: 1, id: 4, value: 100 }],
    })
    .await;
    peer.send(Frame::WindowUpdate { id: 0, delta: 65_536 }).await;
    peer.send(Frame::Ping(2)).await; // A reply to a PING that was never sent.
    peer.expect_life().await;
}

#[tokio::test]
async fn opened_and_reset_streams_leave_nothing_behind() {
    let mut peer = RawPeer::new();
    for id in (1..20_000).step_by(2) {
        peer.syn(id).await;
        peer.send(Frame::RstStream { id, status: ResetStatus::Cancel }).await;
    }
    peer.expect_life().await;
    assert_eq!(peer.connection.streams(), 0);
}

#[tokio::test]
async fn headers_of_pending_streams_are_bounded_in_total() {
    let mut config = Config::default();
    config.max_header_bytes = 10_000;
    let mut peer = RawPeer::of(config);
    let long = "x".repeat(4_000);
    for id in [1, 3, 5] {
        peer.send(syn(id, &[("a", long.as_str())])).await;
    }
    peer.expect_reset(5, ResetStatus::RefusedStream).await;
    assert_eq!(peer.connection.streams(), 2);
    // A closed stream frees its share.
    drop(soon(peer.connection.accept()).await.unwrap().unwrap());
    peer.expect_reset(1, ResetStatus::RefusedStream).await;
    peer.send(syn(7, &[("a", long.as_str())])).await;
    peer.expect_life().await;
    assert_eq!(peer.connection.streams(), 2);
}

/// Sends the same bytes until the server takes no more, and returns the total.
async fn flood(peer: &mut RawPeer, bytes: &[u8]) -> usize {
    let mut sent = 0;
    while let Ok(written) =
        tokio::time::timeout(Duration::from_millis(200), peer.io.write(&bytes[sent % bytes.len()..])).await
    {
        sent += written.expect("a server that lives");
        assert!(sent < 20_000_000, "the server is not bounded");
    }
    sent
}

#[tokio::test]
async fn a_peer_that_does_not_read_replies_is_blocked() {
    let mut peer = RawPeer::new();
    let mut bytes = BytesMut::new();
    peer.encoder.encode(&Frame::Ping(7), &mut bytes).unwrap();
    let sent = flood(&mut peer, &bytes.repeat(10_000)).await;
    // The pipe holds a mebibyte each way; not much more is buffered.
    assert!(sent < 3_000_000, "{sent}");
    // When the peer reads, every PING is answered.
    for _ in 0..sent / 12 {
        assert_eq!(peer.next().await, Some(Frame::Ping(7)));
    }
}

#[tokio::test]
async fn a_peer_that_sends_only_errors_and_does_not_read_is_blocked() {
    let mut peer = RawPeer::new();
    peer.raw(&syn_block(1, b"\0\0\0\x01\0\0\0\x01A\0\0\0\x01x")).await;
    peer.expect_reset(1, ResetStatus::ProtocolError).await;
    // The zlib stream has started: its header must not be repeated.
    let mut again = syn_block(1, b"\0\0\0\x01\0\0\0\x01A\0\0\0\x01x");
    again.drain(18..24);
    again[7] -= 6;
    let sent = flood(&mut peer, &again.repeat(1000)).await;
    for _ in 0..sent / again.len() {
        peer.expect_reset(1, ResetStatus::ProtocolError).await;
    }
}

#[tokio::test]
async fn received_data_is_bounded_in_total() {
    let mut config = Config::default();
    config.receive_total = 100_000;
    let mut peer = RawPeer::of(config);
    let mut bytes = BytesMut::new();
    for id in (1..1000).step_by(2) {
        peer.encoder.encode(&syn(id, &[]), &mut bytes).unwrap();
        let data = Frame::Data { id, payload: Bytes::from(vec![b'x'; 5_000]), fin: true };
        peer.encoder.encode(&data, &mut bytes).unwrap();
    }
    let RawPeer { io, connection, .. } = peer;
    let (_reader, mut writer) = tokio::io::split(io);
    let accept = async {
        soon(async {
            while connection.streams() < 20 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        // Nothing has been read. The pipe is large enough for two hundred streams.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(connection.streams() < 30, "{} streams", connection.streams());
        for _ in 0..500 {
            let mut stream = connection.accept().await.unwrap().unwrap().accept();
            let mut bytes_read = Vec::new();
            stream.read_to_end(&mut bytes_read).await.unwrap();
            assert_eq!(bytes_read.len(), 5_000);
        }
    };
    let (sent, ()) = soon(async { tokio::join!(writer.write_all(&bytes), accept) }).await;
    sent.unwrap();
}
