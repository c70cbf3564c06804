//! The fuzz targets. A test replays their corpora.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    task::JoinSet,
};
use vk_spdy::{
    Config, Connection, ResetStatus, Stream,
    codec::{Decoder, Encoder, Error, Frame, FrameLimits},
};

/// Decodes arbitrary bytes: the frames do not depend on how the bytes are split, and survive a round trip.
pub(crate) fn frames(data: &[u8]) {
    let Some((&cut, data)) = data.split_first() else { return };
    let whole = decode(data, data.len().max(1));
    let cut = decode(data, usize::from(cut).max(1));
    assert_eq!(whole, cut, "the split of the bytes matters");

    let (mut encoder, mut written) = (Encoder::new(), BytesMut::new());
    for frame in &whole.0 {
        encoder.encode(frame, &mut written).expect("what was read can be written");
    }
    let (again, end) = decode(&written, written.len().max(1));
    assert_eq!(end, None);
    assert_eq!(again, whole.0, "a frame changed in a round trip");
}

/// All frames of these bytes, with the data of each stream joined, and the final error. Streams with errors of their own are left
/// out.
fn decode(data: &[u8], size: usize) -> (Vec<Frame>, Option<Error>) {
    let mut limits = FrameLimits::default();
    limits.block = 100_000;
    let mut decoder = Decoder::new(limits);
    let mut input = BytesMut::new();
    let mut frames: Vec<Frame> = Vec::new();
    // A frame that is returned in pieces ends with the last of them; an empty frame counts too.
    let mut open: Option<(u32, BytesMut)> = None;
    for piece in data.chunks(size) {
        input.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut input) {
                Ok(Some(Frame::Data { id, payload, fin })) => {
                    let (_, mut data) = open.take().unwrap_or_default();
                    data.extend_from_slice(&payload);
                    if decoder.at_boundary() {
                        frames.push(Frame::Data { id, payload: data.freeze(), fin });
                    } else {
                        assert!(!fin, "FIN before the last piece");
                        open = Some((id, data));
                    }
                }
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) if error.stream().is_some() => {}
                Err(error) => {
                    assert_eq!(decoder.decode(&mut input), Err(error.clone()), "errors are permanent");
                    return (frames, Some(error));
                }
            }
        }
    }
    (frames, None)
}

/// Sends arbitrary bytes to a server: it ends when the bytes do, and nothing is left.
pub(crate) fn connection(data: &[u8]) {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    }
    let Some((&settings, data)) = data.split_first() else { return };
    let mut config = Config::default();
    config.receive_buffer = 1 << (settings & 7);
    config.send_buffer = 1 << (settings >> 3 & 7);
    config.max_streams = Some(10);
    config.limits.block = 100_000;
    config.linger = Duration::from_millis(1);
    let transport =
        ChunkedTransport { input: Bytes::copy_from_slice(data), piece: usize::from(settings >> 6) * 100 + 1 };
    RUNTIME.with(|runtime| {
        let served = async { tokio::time::timeout(Duration::from_secs(20), serve(transport, config)).await };
        runtime.block_on(served).expect("a connection ends when its bytes do");
    });
}

async fn serve(transport: ChunkedTransport, config: Config) {
    let (connection, driver) = Connection::server(transport, config);
    let mut tasks = JoinSet::new();
    let mut drivers = JoinSet::new();
    drivers.spawn(driver);
    while let Ok(Some(incoming)) = connection.accept().await {
        match incoming.id() / 2 % 6 {
            0 => incoming.reject(ResetStatus::Cancel),
            1 => drop(incoming.accept()),
            2 => drop(incoming),
            other => drop(tasks.spawn(handle(other, incoming.accept()))),
        }
    }
    let _ = connection.ended().await;
    while let Some(handled) = tasks.join_next().await {
        handled.expect("no panic");
    }
    drivers.join_next().await.expect("a driver").expect("no panic").ok();
    assert_eq!(connection.streams(), 0, "a stream is left behind");
}

async fn handle(mode: u32, mut stream: Stream) {
    match mode {
        3 => {
            let mut bytes_read = Vec::new();
            let _ = stream.read_to_end(&mut bytes_read).await;
        }
        4 => {
            let (mut reader, mut writer) = stream.split();
            while let Ok(Some(chunk)) = reader.chunk().await {
                if writer.send(chunk).await.is_err() {
                    return;
                }
            }
            let _ = writer.finish();
        }
        _ => {
            // Not reading would block the connection.
            let (reader, mut writer) = stream.split();
            drop(reader);
            let _ = writer.write_all(b"unasked").await;
            let _ = writer.finish();
            writer.closed().await;
        }
    }
}

/// A transport that returns its bytes in pieces, then ends, and accepts all writes.
struct ChunkedTransport {
    input: Bytes,
    piece: usize,
}

impl AsyncRead for ChunkedTransport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = self.piece.min(self.input.len()).min(buffer.remaining());
        buffer.put_slice(&self.input.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ChunkedTransport {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
