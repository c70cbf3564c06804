//! Exec and attach.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, SinkExt as _, StreamExt as _};
use http::{Method, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
    sync::{mpsc, oneshot},
};
use tokio_tungstenite::tungstenite::Message;
use vk_provider::{
    ability::{Attach as _, Exec as _, ExecOptions, Exit, Session, Started, TermSize},
    error::Kind,
};
use vk_streaming::SessionLimits;

use crate::fake_api_server::{FakeApiServer, RecordedRequest, ScriptedAnswer, Socket, pod, soon};

const V5: &str = "v5.channel.k8s.io";
const V4: &str = "v4.channel.k8s.io";

fn outputs() -> ExecOptions {
    ExecOptions { stdin: false, stdout: true, stderr: true, tty: false }
}

fn all() -> ExecOptions {
    ExecOptions { stdin: true, ..outputs() }
}

async fn exec(api: &FakeApiServer, command: &[&str], options: ExecOptions) -> Session {
    let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    let started = soon(api.streams().start(&pod().container("main"), &command, &options)).await;
    match started.unwrap() {
        Started::Session(session) => session,
        Started::Url(_) => panic!("there is no address to give"),
    }
}

fn frame(channel: u8, bytes: &[u8]) -> Message {
    Message::Binary([&[channel], bytes].concat().into())
}

fn success() -> Message {
    frame(3, json!({"metadata": {}, "status": "Success"}).to_string().as_bytes())
}

fn exited(code: i32) -> Value {
    json!({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": format!("command terminated with non-zero exit code: {code}"),
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}

/// The next message that is not a control frame.
async fn heard(socket: &mut Socket) -> Option<Bytes> {
    loop {
        match socket.next().await? {
            Ok(Message::Binary(bytes)) => return Some(bytes),
            Ok(Message::Close(_)) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

async fn read(stream: &mut Option<vk_provider::ability::BoxRead>) -> String {
    let mut text = String::new();
    soon(stream.as_mut().unwrap().read_to_string(&mut text)).await.unwrap();
    text
}

#[tokio::test]
async fn exec_passes_command_and_streams_and_separates_outputs() {
    let api = FakeApiServer::start(|asked| {
        asked.websocket(V5, |mut socket| async move {
            // An API server starts with an empty message on each channel.
            for channel in 0..4 {
                socket.send(frame(channel, b"")).await.unwrap();
            }
            for (channel, text) in [(1, "out "), (2, "err"), (1, "more"), (9, "nobody's")] {
                socket.send(frame(channel, text.as_bytes())).await.unwrap();
            }
            socket.send(success()).await.unwrap();
            socket.close(None).await.unwrap();
        })
    })
    .await;
    let mut session = exec(&api, &["sh", "-c", "echo \"a b\" & c=ü"], outputs()).await;
    assert_eq!(
        (read(&mut session.stdout).await, read(&mut session.stderr).await),
        ("out more".into(), "err".into())
    );
    assert_eq!(soon(session.exit).await.unwrap(), Exit { code: 0 });
    assert!(session.stdin.is_none() && session.resize.is_none());

    let asked = api.only();
    assert_eq!(
        (asked.method.clone(), asked.path.as_str()),
        (Method::GET, "/api/v1/namespaces/lower/pods/web-x/exec")
    );
    assert_eq!(
        asked.query,
        "container=main&command=sh&command=-c&command=echo+%22a+b%22+%26+c%3D%C3%BC&stdout=true&stderr=true"
    );
    assert_eq!(asked.offers(), "v5.channel.k8s.io, v4.channel.k8s.io");
    assert_eq!(asked.header(header::UPGRADE), "websocket");
}

#[tokio::test]
async fn the_exit_code_comes_from_the_status() {
    for code in [0, 1, 2, 126, 127, 137, 255] {
        let api = FakeApiServer::start(move |asked| {
            asked.websocket(V5, move |mut socket| async move {
                let end = if code == 0 { success() } else { frame(3, exited(code).to_string().as_bytes()) };
                // Output after the status is still output.
                socket.send(end).await.unwrap();
                socket.send(frame(1, b"late")).await.unwrap();
                socket.close(None).await.unwrap();
            })
        })
        .await;
        let mut session = exec(&api, &["x"], outputs()).await;
        assert_eq!(read(&mut session.stdout).await, "late", "of {code}");
        assert_eq!(soon(session.exit).await.unwrap(), Exit { code });
    }
}

#[tokio::test]
async fn a_failure_without_exit_code_keeps_the_message_of_the_server() {
    let told = json!({
        "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
        "message": "Internal error occurred: unable to upgrade connection: container not found (\"main\")",
        "details": {"causes": [{"message": "container not found"}]},
    });
    for (status, words) in [
        (told.to_string(), "container not found (\"main\")"),
        (r#"{"status":"Failure","reason":"NonZeroExitCode"}"#.to_owned(), "no exit code"),
        ("{".to_owned(), "should be a Status in JSON"),
    ] {
        let api = FakeApiServer::start(move |asked| {
            let end = frame(3, status.as_bytes());
            asked.websocket(V5, |mut socket| async move {
                socket.send(end).await.unwrap();
                socket.close(None).await.unwrap();
            })
        })
        .await;
        let session = exec(&api, &["x"], outputs()).await;
        let error = soon(session.exit).await.unwrap_err();
        assert_eq!(*error.kind(), Kind::Internal);
        assert!(error.report().contains(words), "{words:?} in {}", error.report());
    }
}

#[tokio::test]
async fn the_end_of_stdin_is_signalled_and_output_continues() {
    let api = FakeApiServer::start(|asked| {
        asked.websocket(V5, |mut socket| async move {
            let mut input = Vec::new();
            loop {
                match heard(&mut socket).await.unwrap()[..] {
                    [255, 0] => break,
                    [0, ref bytes @ ..] => input.extend_from_slice(bytes),
                    ref other => panic!("{other:?}"),
                }
            }
            socket.send(frame(1, &input)).await.unwrap();
            socket.send(success()).await.unwrap();
            socket.close(None).await.unwrap();
        })
    })
    .await;
    let mut session = exec(&api, &["cat"], all()).await;
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"all of ").await.unwrap();
    stdin.write_all(b"it").await.unwrap();
    stdin.shutdown().await.unwrap();
    assert_eq!(read(&mut session.stdout).await, "all of it");
    assert_eq!(soon(session.exit).await.unwrap(), Exit { code: 0 });
    let asked = api.only();
    assert_eq!(asked.offers(), V5, "version 4 cannot say it, and is not offered");
    assert!(asked.query.contains("stdin=true"), "{}", asked.query);
}

/// How servers without version 5 answer if nothing else is offered: x/net/websocket, through an API server.
fn refuses_v5(asked: &RecordedRequest) -> Option<ScriptedAnswer> {
    (asked.offers() == V5).then(|| ScriptedAnswer::Text(403, String::new()))
}

#[tokio::test]
async fn stdin_falls_back_to_spdy_without_version_5() {
    let api = FakeApiServer::start(|asked| {
        if let Some(refused) = refuses_v5(asked) {
            return refused;
        }
        // What an API server makes of the query.
        let mut parts = asked.parts.clone();
        parts.uri = "/exec?command=cat&input=1&output=1&error=1".parse().unwrap();
        let request = vk_streaming::exec::Request::parse(&parts).unwrap();
        let (stdin, mut from_stdin) = duplex(1024);
        let (mut to_stdout, stdout) = duplex(1024);
        let exit = async move {
            tokio::io::copy(&mut from_stdin, &mut to_stdout).await.unwrap();
            Ok(Exit { code: 3 })
        };
        let session = Session {
            stdin: Some(Box::new(stdin)),
            stdout: Some(Box::new(stdout)),
            stderr: None,
            resize: None,
            exit: exit.boxed(),
        };
        ScriptedAnswer::Switch(
            request.switching(),
            Box::new(move |io| {
                async move {
                    vk_streaming::exec::serve(io, &request, Ok(session), &SessionLimits::default()).await;
                }
                .boxed()
            }),
        )
    })
    .await;
    let mut session = exec(&api, &["cat"], all()).await;
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"to the end").await.unwrap();
    stdin.shutdown().await.unwrap();
    assert_eq!(read(&mut session.stdout).await, "to the end");
    assert_eq!(soon(session.exit).await.unwrap(), Exit { code: 3 });
    let asked = api.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!((asked[1].method.clone(), asked[1].header(header::UPGRADE)), (Method::POST, "SPDY/3.1"));
    assert_eq!((&asked[1].path, &asked[1].query), (&asked[0].path, &asked[0].query));
    assert_eq!(asked[1].header("x-stream-protocol-version"), V4);
}

#[tokio::test]
async fn version_4_is_used_without_stdin() {
    let api = FakeApiServer::start(|asked| {
        asked.websocket(V4, |mut socket| async move {
            // In version 4, this is data for a channel that does not exist.
            socket.send(Message::Binary(Bytes::from_static(&[255, 1]))).await.unwrap();
            socket.send(frame(1, b"old")).await.unwrap();
            socket.send(frame(3, exited(4).to_string().as_bytes())).await.unwrap();
            socket.close(None).await.unwrap();
        })
    })
    .await;
    let mut session = exec(&api, &["x"], outputs()).await;
    assert_eq!(read(&mut session.stdout).await, "old");
    assert_eq!(soon(session.exit).await.unwrap(), Exit { code: 4 });
}

#[tokio::test]
async fn a_closed_channel_ends_while_the_others_continue() {
    let (go_on, may_go_on) = oneshot::channel::<()>();
    let may_go_on = Arc::new(Mutex::new(Some(may_go_on)));
    let api = FakeApiServer::start(move |asked| {
        let may_go_on = may_go_on.lock().take().unwrap();
        asked.websocket(V5, |mut socket| async move {
            socket.send(frame(2, b"all")).await.unwrap();
            socket.send(Message::Binary(Bytes::from_static(&[255, 2]))).await.unwrap();
            may_go_on.await.unwrap();
            socket.send(frame(1, b"later")).await.unwrap();
            socket.send(success()).await.unwrap();
            socket.close(None).await.unwrap();
        })
    })
    .await;
    let mut session = exec(&api, &["x"], outputs()).await;
    assert_eq!(read(&mut session.stderr).await, "all");
    go_on.send(()).unwrap();
    assert_eq!(read(&mut session.stdout).await, "later");
    assert_eq!(soon(session.exit).await.unwrap(), Exit { code: 0 });
}

#[tokio::test]
async fn a_tty_has_one_output_and_gets_resize_events() {
    let (told, mut sizes) = mpsc::unbounded_channel();
    let api = FakeApiServer::start(move |asked| {
        let told = told.clone();
        asked.websocket(V5, |mut socket| async move {
            while let Some(bytes) = heard(&mut socket).await {
                assert_eq!(bytes[0], 4, "{bytes:?}");
                told.send(serde_json::from_slice::<Value>(&bytes[1..]).unwrap()).unwrap();
            }
        })
    })
    .await;
    let options = ExecOptions { tty: true, ..all() };
    let session = exec(&api, &["sh"], options).await;
    assert!(session.stderr.is_none());
    let resize = session.resize.as_ref().unwrap();
    for (width, height) in [(80, 24), (132, 50)] {
        resize.send(TermSize { width, height }).await.unwrap();
        assert_eq!(soon(sizes.recv()).await.unwrap(), json!({"Width": width, "Height": height}));
    }
    let asked = api.only();
    assert_eq!(asked.query, "container=main&command=sh&stdin=true&stdout=true&tty=true");
    assert_eq!(asked.offers(), "v5.channel.k8s.io, v4.channel.k8s.io", "on a terminal the end is a letter");
}

#[tokio::test]
async fn unread_output_causes_backpressure_and_is_not_lost() {
    const FRAMES: usize = 1024;
    const SIZE: usize = 64 << 10;
    let sent = Arc::new(AtomicUsize::new(0));
    let (blocked, is_blocked) = oneshot::channel::<()>();
    let (count, blocked) = (Arc::clone(&sent), Arc::new(Mutex::new(Some(blocked))));
    let api = FakeApiServer::start(move |asked| {
        let (count, blocked) = (Arc::clone(&count), Arc::clone(&blocked));
        asked.websocket(V5, move |mut socket| async move {
            for number in 0..FRAMES {
                let bytes = vec![u8::try_from(number % 251).unwrap(); SIZE];
                let mut sending = Box::pin(socket.send(frame(1, &bytes)));
                if tokio::time::timeout(Duration::from_millis(500), &mut sending).await.is_err() {
                    if let Some(blocked) = blocked.lock().take() {
                        let _ = blocked.send(());
                    }
                    sending.await.unwrap();
                }
                count.fetch_add(1, Ordering::SeqCst);
            }
            socket.send(success()).await.unwrap();
            socket.close(None).await.unwrap();
        })
    })
    .await;
    let mut session = exec(&api, &["yes"], outputs()).await;
    soon(is_blocked).await.unwrap();
    assert!(sent.load(Ordering::SeqCst) < FRAMES, "the server could send all of it");
    let mut all = Vec::new();
    soon(session.stdout.take().unwrap().read_to_end(&mut all)).await.unwrap();
    assert_eq!(all.len(), FRAMES * SIZE);
    for (number, bytes) in all.chunks(SIZE).enumerate() {
        assert!(bytes.iter().all(|byte| usize::from(*byte) == number % 251), "frame {number}");
    }
    assert_eq!(soon(session.exit).await.unwrap(), Exit { code: 0 });
}

#[tokio::test]
async fn a_lost_connection_ends_the_output_without_an_exit_code() {
    let api = FakeApiServer::start(|asked| {
        asked.websocket(V5, |mut socket| async move {
            socket.send(frame(1, b"then")).await.unwrap();
            // No status and no close frame.
        })
    })
    .await;
    let mut session = exec(&api, &["x"], outputs()).await;
    assert_eq!(read(&mut session.stdout).await, "then");
    let error = soon(session.exit).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unavailable);
    assert!(error.report().contains("was lost"), "{}", error.report());
}

#[tokio::test]
async fn dropping_the_session_closes_the_connection() {
    let (closed, mut is_closed) = mpsc::unbounded_channel();
    let api = FakeApiServer::start(move |asked| {
        let closed = closed.clone();
        asked.websocket(V5, |mut socket| async move {
            while heard(&mut socket).await.is_some() {}
            closed.send(()).unwrap();
        })
    })
    .await;
    drop(exec(&api, &["sleep", "9999"], all()).await);
    soon(is_closed.recv()).await.unwrap();
}

#[tokio::test]
async fn attach_has_no_command_and_its_own_url() {
    let api = FakeApiServer::start(|asked| {
        asked.websocket(V5, |mut socket| async move {
            socket.send(frame(1, b"hello")).await.unwrap();
            socket.send(success()).await.unwrap();
            socket.close(None).await.unwrap();
        })
    })
    .await;
    let started = soon(api.streams().attach(&pod().container("main"), &outputs())).await.unwrap();
    let Started::Session(mut session) = started else { panic!("{started:?}") };
    assert_eq!(read(&mut session.stdout).await, "hello");
    assert_eq!(soon(session.exit).await.unwrap(), Exit { code: 0 });
    let asked = api.only();
    assert_eq!(asked.path, "/api/v1/namespaces/lower/pods/web-x/attach");
    assert_eq!(asked.query, "container=main&stdout=true&stderr=true");
}
