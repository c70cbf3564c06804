//! Commands against a server on loopback that frames as users of the service report.

#![expect(clippy::disallowed_methods, reason = "the tasks of a test end with its runtime")]

use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_tungstenite::{WebSocketStream, accept_async, tungstenite::Message};
use vk_container_group::cloud::Limits;
use vk_provider::ability::TermSize;

use super::*;

const ALL: ExecOptions = ExecOptions { stdin: true, stdout: true, stderr: true, tty: false };

type Server = WebSocketStream<TcpStream>;

/// A session with a server that does this.
async fn session_with<F>(options: ExecOptions, serve: impl FnOnce(Server) -> F + Send + 'static) -> Session
where
    F: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/exec/?s=secret", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        serve(accept_async(stream).await.unwrap()).await;
    });
    let client = Client::new(Limits::default(), None);
    session(&client, &url, &options, &Supervisor::new()).await.unwrap()
}

fn binary(channel: u8, text: &str) -> Message {
    Message::Binary([&[channel], text.as_bytes()].concat().into())
}

async fn read(stream: Option<vk_provider::ability::BoxRead>) -> String {
    let mut text = String::new();
    stream.unwrap().read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn output_errors_texts_and_the_exit_code_arrive() {
    let session = session_with(ALL, async |mut server| {
        for message in [
            binary(1, "one "),
            Message::Text("two ".into()),
            binary(2, "oops"),
            binary(77, "of tomorrow"),
            Message::Binary(bytes::Bytes::new()),
            binary(1, "three"),
            binary(
                3,
                r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#,
            ),
        ] {
            server.send(message).await.unwrap();
        }
        server.close(None).await.unwrap();
        while server.next().await.is_some() {}
    })
    .await;
    let (out, err) = tokio::join!(read(session.stdout), read(session.stderr));
    assert_eq!((out.as_str(), err.as_str()), ("one two three", "oops"));
    assert_eq!(session.exit.await.unwrap().code, 7);
}

#[tokio::test]
async fn a_connection_that_is_closed_in_order_is_success_and_a_lost_one_is_not() {
    let closed = session_with(ALL, async |mut server| {
        server.close(None).await.unwrap();
        while server.next().await.is_some() {}
    })
    .await;
    assert_eq!(closed.exit.await.unwrap().code, 0);
    let lost = session_with(ALL, async |server| drop(server)).await;
    assert!(lost.exit.await.is_err());
}

#[tokio::test]
async fn any_other_text_on_the_channel_of_the_status_is_an_error() {
    let session = session_with(ALL, async |mut server| {
        server.send(binary(3, "no such container")).await.unwrap();
        server.close(None).await.unwrap();
        while server.next().await.is_some() {}
    })
    .await;
    let error = session.exit.await.unwrap_err();
    assert!(error.report().contains("no such container"), "{}", error.report());
}

#[tokio::test]
async fn input_its_end_and_sizes_reach_the_service() {
    let (seen, mut received) = tokio::sync::mpsc::unbounded_channel();
    let options = ExecOptions { tty: true, stderr: false, ..ALL };
    let session = session_with(options, async move |mut server| {
        while let Some(Ok(message)) = server.next().await {
            if let Message::Binary(bytes) = message {
                seen.send(bytes.to_vec()).unwrap();
            }
        }
    })
    .await;
    let mut stdin = session.stdin.unwrap();
    stdin.write_all(b"ls\n").await.unwrap();
    stdin.flush().await.unwrap();
    assert_eq!(received.recv().await.unwrap(), b"\0ls\n");
    session.resize.as_ref().unwrap().send(TermSize { width: 80, height: 24 }).await.unwrap();
    let size = received.recv().await.unwrap();
    assert_eq!((size[0], String::from_utf8_lossy(&size[1..]).contains("80")), (4, true));
    stdin.shutdown().await.unwrap();
    assert_eq!(received.recv().await.unwrap(), [255, 0]);
}

#[tokio::test]
async fn dropping_the_session_closes_the_connection() {
    let (gone, was_closed) = tokio::sync::oneshot::channel();
    let session = session_with(ALL, async move |mut server| {
        while let Some(Ok(_)) = server.next().await {}
        gone.send(()).unwrap();
    })
    .await;
    drop(session);
    tokio::time::timeout(Duration::from_secs(30), was_closed).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_url_is_in_no_error() {
    let client = Client::new(Limits::default(), None);
    for url in [
        "ws://127.0.0.1:1/exec/?s=secret",
        "ws://10.0.0.1/exec/?s=secret",
        "nonsense secret",
        "ftp://127.0.0.1/secret",
    ] {
        let error = session(&client, url, &ALL, &Supervisor::new()).await.unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn what_a_command_has_said_arrives_although_the_service_takes_no_more_input() {
    // Which side is looked at first is random.
    for _ in 0..50 {
        let ((ours, theirs), (client, served)) = (tokio::io::duplex(BUFFER), tokio::io::duplex(BUFFER));
        let mut service = WebSocketStream::from_raw_socket(theirs, Role::Server, None).await;
        service.send(binary(1, "said")).await.unwrap();
        service.send(binary(3, r#"{"status":"Success"}"#)).await.unwrap();
        service.close(None).await.unwrap();
        drop(service);
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        client.send(binary(0, "too late")).await.unwrap();
        let remote = WebSocketStream::from_raw_socket(ours, Role::Client, None).await;
        let local = WebSocketStream::from_raw_socket(served, Role::Server, None).await;
        let all = async {
            let mut all = Vec::new();
            while let Some(Ok(Message::Binary(bytes))) = client.next().await {
                all.push(bytes.to_vec());
            }
            all
        };
        let ((), all) = tokio::join!(frame::translate(remote, local), all);
        assert_eq!(all, [&b"\x01said"[..], b"\x03{\"status\":\"Success\"}"]);
    }
}
