//! Many concurrent streams in random order with random buffers: every byte arrives, and nothing is left.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use proptest::{collection::vec, prelude::*};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf},
    task::JoinSet,
};
use vk_spdy::{Config, Connection, Headers, Reader, Writer};

use crate::support::{pattern, soon};

/// The data of one stream, and how it is sent and read.
#[derive(Clone, Debug)]
struct Plan {
    to_server: Vec<usize>,
    to_client: Vec<usize>,
    read: usize,
    pause: usize,
    by_chunks: bool,
}

fn plan() -> impl Strategy<Value = Plan> {
    let sizes = || vec(prop_oneof![Just(0usize), 1..100usize, 1..20_000usize], 0..5);
    (sizes(), sizes(), prop_oneof![1..50usize, 1..100_000usize], 0..3usize, any::<bool>()).prop_map(
        |(to_server, to_client, read, pause, by_chunks)| Plan {
            to_server,
            to_client,
            read,
            pause,
            by_chunks,
        },
    )
}

fn config() -> impl Strategy<Value = Config> {
    let receive = || prop_oneof![1..1000usize, Just(256 << 10)];
    (receive(), receive(), prop_oneof![1..10_000usize, Just(1 << 20)]).prop_map(|(receive, total, send)| {
        let mut config = Config::default();
        config.receive_buffer = receive;
        config.receive_total = total;
        config.send_buffer = send;
        config
    })
}

/// A pipe with vectored writes, like a socket.
struct Vectored(DuplexStream);

impl AsyncRead for Vectored {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Vectored {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Joins the slices; the pipe may take any part of them.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let whole: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        Pin::new(&mut self.0).poll_write(context, &whole)
    }
}

async fn send(mut writer: Writer, sizes: Vec<usize>, by_chunks: bool) {
    for size in sizes {
        if by_chunks {
            writer.send(Bytes::from(pattern(size))).await.expect("a peer that reads");
        } else {
            writer.write_all(&pattern(size)).await.expect("a peer that reads");
            writer.flush().await.expect("a peer that reads");
        }
    }
    writer.finish().expect("a peer that reads");
    writer.closed().await;
}

async fn receive(mut reader: Reader, sizes: Vec<usize>, size: usize, pause: usize, by_chunks: bool) {
    let mut received = Vec::new();
    let mut buffer = vec![0; size];
    loop {
        if by_chunks {
            match reader.chunk().await.expect("an end") {
                Some(chunk) => received.extend_from_slice(&chunk),
                None => break,
            }
        } else {
            match reader.read(&mut buffer).await.expect("an end") {
                0 => break,
                length => received.extend_from_slice(&buffer[..length]),
            }
        }
        for _ in 0..pause {
            tokio::task::yield_now().await;
        }
    }
    let sent: Vec<u8> = sizes.into_iter().flat_map(pattern).collect();
    assert!(received == sent, "{} bytes of {}", received.len(), sent.len());
}

async fn run<IO>(server: IO, client: IO, configs: (Config, Config), plans: Vec<Plan>)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (server, server_driver) = Connection::server(server, configs.0);
    let (client, client_driver) = Connection::client(client, configs.1);
    let mut drivers = JoinSet::new();
    drivers.spawn(server_driver);
    drivers.spawn(client_driver);
    let mut tasks = JoinSet::new();
    let accept = async {
        for _ in 0..plans.len() {
            let incoming = server.accept().await.expect("a connection").expect("a stream");
            let index: usize = incoming.headers().get("index").expect("a number").parse().expect("a number");
            let Plan { to_server, to_client, read, pause, by_chunks } = plans[index].clone();
            let (reader, writer) = incoming.accept().split();
            tasks.spawn(receive(reader, to_server, read, pause, by_chunks));
            tasks.spawn(send(writer, to_client, by_chunks));
        }
    };
    let mut opened = JoinSet::new();
    let open = async {
        for (index, plan) in plans.iter().enumerate() {
            let headers = Headers::new().with("index", &index.to_string());
            let (reader, writer) = client.open(&headers).await.expect("a stream").split();
            let Plan { to_server, to_client, read, pause, by_chunks } = plan.clone();
            opened.spawn(receive(reader, to_client, read, pause, by_chunks));
            opened.spawn(send(writer, to_server, by_chunks));
        }
    };
    tokio::join!(accept, open);
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    while let Some(done) = opened.join_next().await {
        done.expect("no panic");
    }
    assert_eq!((server.streams(), client.streams()), (0, 0));
    client.close().await.expect("a good end");
    server.ended().await.expect("a good end");
    while let Some(driver) = drivers.join_next().await {
        driver.expect("no panic").expect("a good end");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_of_every_stream_arrives(
        plans in vec(plan(), 1..8),
        configs in (config(), config()),
        pipe in prop_oneof![20..500usize, 1..100_000usize],
        vectored in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(soon(async move {
            let (near, far) = tokio::io::duplex(pipe);
            if vectored {
                run(Vectored(near), Vectored(far), configs, plans).await;
            } else {
                run(near, far, configs, plans).await;
            }
        }));
    }
}
