//! Streams that end in every possible way at once: the connection survives, and nothing is left of them.

use futures::future::join_all;
use proptest::{collection::vec, prelude::*};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use vk_spdy::{Config, Connection, Headers, ResetStatus, Stream};

use crate::support::{pair_with, pattern, soon};

/// The operations on a stream, in order; then it is dropped.
#[derive(Clone, Debug)]
enum Act {
    Write(usize),
    Read(usize),
    Finish,
    DropReader,
    Flush,
    Wait,
    Reset,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (0..5000usize).prop_map(Act::Write),
        4 => (0..5000usize).prop_map(Act::Read),
        1 => Just(Act::Finish),
        1 => Just(Act::DropReader),
        1 => Just(Act::Flush),
        2 => Just(Act::Wait),
        1 => Just(Act::Reset),
    ];
    vec(act, 0..8)
}

/// Errors are caused by the peer and end the sequence. Nothing here waits for a peer that waits itself.
async fn perform(stream: Stream, acts: Vec<Act>) {
    let (reader, mut writer) = stream.split();
    let mut reader = Some(reader);
    for act in acts {
        let done = async {
            match act {
                Act::Write(length) => writer.write_all(&pattern(length)).await,
                Act::Read(length) => match &mut reader {
                    Some(reader) => reader.read_exact(&mut vec![0; length]).await.map(drop),
                    None => Ok(()),
                },
                Act::Finish => writer.finish(),
                Act::DropReader => {
                    reader = None;
                    Ok(())
                }
                Act::Flush => writer.flush().await,
                Act::Wait => {
                    tokio::task::yield_now().await;
                    Ok(())
                }
                Act::Reset => Err(std::io::ErrorKind::Other.into()),
            }
        };
        match tokio::time::timeout(std::time::Duration::from_millis(20), done).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return writer.reset(ResetStatus::Cancel),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn streams_that_end_in_every_way_leave_no_trace(
        plans in vec((acts(), acts(), 0..4u8), 1..12),
        buffers in (1..5000usize, 1..5000usize, 20..5000usize),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(soon(async move {
            let mut config = Config::default();
            config.receive_buffer = buffers.0;
            config.send_buffer = buffers.1;
            let pair = pair_with(buffers.2, config.clone(), config);
            let (mut served, mut opened) = (JoinSet::new(), JoinSet::new());
            let serve = async {
                loop {
                    let Some(incoming) = pair.server.accept().await.expect("a connection") else { return };
                    let index: usize = incoming.headers().get("index").expect("a number").parse().expect("a number");
                    match plans.get(index) {
                        None => return drop(incoming.accept()),
                        Some((_, _, 0)) => incoming.reject(ResetStatus::RefusedStream),
                        Some((acts, ..)) => drop(served.spawn(perform(incoming.accept(), acts.clone()))),
                    }
                }
            };
            let open = async {
                for (index, (_, acts, _)) in plans.iter().enumerate() {
                    if let Ok(stream) = pair.client.open(&Headers::new().with("index", &index.to_string())).await {
                        opened.spawn(perform(stream, acts.clone()));
                    }
                }
                let last = Headers::new().with("index", &plans.len().to_string());
                pair.client.open(&last).await.map(drop).expect("the connection lives");
            };
            tokio::join!(serve, open);
            while served.join_next().await.is_some() {}
            while opened.join_next().await.is_some() {}
            pair.client.ping().await.expect("the connection lives");
            pair.server.ping().await.expect("the connection lives");
            assert_eq!((pair.server.streams(), pair.client.streams()), (0, 0));
        }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_streams_on_many_threads_lose_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (far, near) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let (server, server_driver) = Connection::server(near.unwrap().0, Config::default());
    let (client, client_driver) = Connection::client(far.unwrap(), Config::default());
    let mut drivers = JoinSet::new();
    drivers.spawn(server_driver);
    drivers.spawn(client_driver);
    let mut echoes = JoinSet::new();
    let serve = async {
        for _ in 0..200 {
            let (mut reader, mut writer) = server.accept().await.unwrap().unwrap().accept().split();
            echoes.spawn(async move {
                tokio::io::copy_buf(&mut reader, &mut writer).await.unwrap();
                writer.finish().unwrap();
            });
        }
    };
    let client = &client;
    let call = join_all((0..200).map(|index| async move {
        let (mut reader, mut writer) = client.open(&Headers::new()).await.unwrap().split();
        let sent = pattern(1 + index * 997);
        let mut received = Vec::new();
        let write = async {
            writer.write_all(&sent).await.unwrap();
            writer.finish().unwrap();
        };
        let (read, ()) = tokio::join!(reader.read_to_end(&mut received), write);
        read.unwrap();
        assert!(received == sent, "{} bytes of {}", received.len(), sent.len());
    }));
    soon(async { tokio::join!(serve, call) }).await;
    while let Some(echoed) = echoes.join_next().await {
        echoed.unwrap();
    }
    soon(client.close()).await.unwrap();
    soon(server.ended()).await.unwrap();
    assert_eq!((server.streams(), client.streams()), (0, 0));
}
