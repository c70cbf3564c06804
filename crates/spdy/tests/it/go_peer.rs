//! Tests against moby/spdystream in both roles: API servers, kubectl and container runtimes use it. The Go program is
//! `dev/spdy-peer`; it requests and offers the same operations as this file.

use std::{io, process::Stdio};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    task::JoinSet,
};
use vk_spdy::{Config, Connection, Error, Headers, ResetStatus, Stream};

use crate::support::{pattern, soon};

/// The Go program, built if necessary.
async fn peer() -> Command {
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dev/spdy-peer/build");
    let output = Command::new(build).stderr(Stdio::inherit()).output().await.expect("the build runs");
    assert!(output.status.success(), "dev/spdy-peer/build failed: see its output above");
    let mut peer = Command::new(String::from_utf8(output.stdout).expect("a path").trim());
    peer.kill_on_drop(true);
    peer
}

/// FNV-1a, as in Go's hash/fnv.
fn digest(data: &[u8]) -> String {
    let sum = data
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{sum:016x}")
}

/// Performs the operation in the headers of a stream.
async fn handle(mut stream: Stream) -> io::Result<()> {
    match stream.headers().get("mode").unwrap_or_default() {
        "echo" => {
            let (mut reader, mut writer) = stream.split();
            while let Some(chunk) = reader.chunk().await? {
                writer.send(chunk).await?;
            }
            writer.finish()
        }
        "digest" => {
            let mut data = Vec::new();
            stream.read_to_end(&mut data).await?;
            stream.write_all(digest(&data).as_bytes()).await?;
            stream.finish()
        }
        "source" => {
            let length = stream.headers().get("length").and_then(|length| length.parse().ok());
            stream.write_all(&pattern(length.unwrap_or(0))).await?;
            stream.finish()?;
            stream.closed().await;
            Ok(())
        }
        "reset" => {
            stream.write_all(b"last words").await?;
            stream.reset(ResetStatus::Cancel);
            Ok(())
        }
        other => panic!("unknown mode {other:?}"),
    }
}

/// Serves one connection to its end.
async fn serve(socket: TcpStream) -> Result<(), Error> {
    let (connection, driver) = Connection::server(socket, Config::default());
    let mut tasks = JoinSet::new();
    let mut drivers = JoinSet::new();
    drivers.spawn(driver);
    while let Some(incoming) = connection.accept().await? {
        if incoming.headers().get("mode") == Some("refuse") {
            incoming.reject(ResetStatus::RefusedStream);
        } else {
            tasks.spawn(handle(incoming.accept()));
        }
    }
    while let Some(handled) = tasks.join_next().await {
        handled.expect("no panic").expect("a stream that ends well");
    }
    let ended = connection.ended().await;
    assert_eq!(connection.streams(), 0, "a stream was left behind");
    ended
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn the_go_client_is_served() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut client = peer().await.args(["call", &address]).spawn().unwrap();
    let (socket, _) = soon(listener.accept()).await.unwrap();
    soon(serve(socket)).await.unwrap();
    assert!(soon(client.wait()).await.unwrap().success());
}

/// A Go server, and a connection to it.
async fn go_server() -> (Child, Connection, JoinSet<Result<(), Error>>) {
    let mut server =
        peer().await.arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the peer");
    let mut line = String::new();
    let output = server.stdout.take().expect("its output");
    soon(BufReader::new(output).read_line(&mut line)).await.expect("its address");
    let socket = TcpStream::connect(line.trim()).await.expect("a connection");
    let (connection, driver) = Connection::client(socket, Config::default());
    let mut drivers = JoinSet::new();
    drivers.spawn(driver);
    (server, connection, drivers)
}

fn ask(mode: &str, length: usize) -> Headers {
    Headers::new().with("mode", mode).with("length", &length.to_string())
}

async fn exchange(connection: &Connection, mode: &str, data: &[u8]) -> Vec<u8> {
    let stream = connection.open(&ask(mode, data.len())).await.expect("a stream");
    let (mut reader, mut writer) = stream.split();
    let write = async {
        if mode != "source" {
            writer.write_all(data).await.expect("the peer reads");
        }
        writer.finish().expect("an end");
    };
    let mut answer = Vec::new();
    let (read, ()) = tokio::join!(reader.read_to_end(&mut answer), write);
    read.expect("an answer with an end");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn the_go_server_answers() {
    let (_server, connection, mut drivers) = go_server().await;
    soon(connection.ping()).await.unwrap();
    let refused = soon(connection.open(&ask("refuse", 0))).await;
    assert!(matches!(refused, Err(Error::Reset(ResetStatus::RefusedStream))), "{refused:?}");

    let mut reset = soon(connection.open(&ask("reset", 0))).await.unwrap();
    assert_eq!(reset.reply_headers().get("mode"), Some("reset"));
    assert_eq!(reset.reply_headers().get_all("several").collect::<Vec<_>>(), ["a", "b"]);
    let mut bytes_read = Vec::new();
    let error = soon(reset.read_to_end(&mut bytes_read)).await.unwrap_err();
    assert_eq!((bytes_read.as_slice(), error.kind()), (&b"last words"[..], io::ErrorKind::ConnectionReset));
    drop(reset);

    let data = pattern(3_000_000);
    soon(async {
        tokio::join!(
            async { assert!(exchange(&connection, "echo", &data).await == data) },
            async { assert!(exchange(&connection, "source", &data).await == data) },
            async { assert_eq!(exchange(&connection, "digest", &data).await, digest(&data).as_bytes()) },
            async { assert!(exchange(&connection, "echo", &data[..1]).await == data[..1]) },
        )
    })
    .await;
    for _ in 0..300 {
        assert_eq!(soon(exchange(&connection, "echo", b"again")).await, b"again");
    }
    assert_eq!(connection.streams(), 0);
    soon(connection.close()).await.unwrap();
    soon(drivers.join_next()).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn long_headers_reach_the_go_server_completely() {
    let (_server, connection, _drivers) = go_server().await;
    // Many blocks, more than the window of the inflater.
    for round in 0..40 {
        let mut headers = ask("echo", 0);
        for index in 0..20 {
            headers.insert(&format!("x-{index}"), &"header".repeat(round * 4 + index));
        }
        let mut stream = soon(connection.open(&headers)).await.unwrap();
        stream.finish().unwrap();
        assert!(soon(stream.chunk()).await.unwrap().is_none());
    }
}
