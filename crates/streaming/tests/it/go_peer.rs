//! Tests against Kubernetes' own code: kubectl's client (client-go), and the streaming server of container runtimes (cri-streaming).
//! The Go program is `dev/streaming-peer`.

use std::{
    process::{Output, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines, duplex},
    net::{TcpListener, TcpStream},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::OnceCell,
    task::JoinSet,
    time::timeout,
};
use vk_provider::{
    Error,
    ability::{ExecOptions, Exit, Forward, TermSize},
};
use vk_streaming::{
    SessionEnd, SessionLimits, client,
    exec::{Protocol, ProtocolVersion},
};

use crate::{
    fake_process::{self, Process},
    test_server::{self, ALL, Host, TTY},
    throughput::pattern,
};

const CARRIERS: [&str; 2] = ["spdy", "websocket"];

/// The Go program, built once if necessary.
async fn peer() -> Command {
    static PROGRAM: OnceCell<String> = OnceCell::const_new();
    let build = async || {
        let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dev/streaming-peer/build");
        let output = Command::new(build).stderr(Stdio::inherit()).output().await.unwrap();
        assert!(output.status.success(), "dev/streaming-peer/build failed: see its output above");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let mut peer = Command::new(PROGRAM.get_or_init(build).await);
    peer.kill_on_drop(true).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    peer
}

async fn soon<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_mins(2), future).await.expect("in two minutes")
}

/// A kubelet with one session, and the Go client that connects to it.
async fn called_by_go(carrier: &str, options: ExecOptions) -> (Child, Process, Host) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{}", listener.local_addr().unwrap(), test_server::query(options));
    let mut command = peer().await;
    command.args(["exec", &url, carrier]).args(options.tty.then_some("tty"));
    let client = command.spawn().unwrap();
    let (provided, process) = fake_process::session_with(options, 30_000);
    let (io, _) = soon(listener.accept()).await.unwrap();
    (client, process, test_server::exec_host(io, Ok(provided), SessionLimits::default()))
}

async fn finished(client: Child) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = soon(client.wait_with_output()).await.unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_go_client_gets_output_errors_and_the_exit_code() {
    for carrier in CARRIERS {
        for code in [0, 1, 137] {
            let (client, mut process, mut host) = called_by_go(carrier, ALL).await;
            process.print(b"to stdout").await;
            process.complain(b"to stderr").await;
            process.exit(code);
            let expected = (Some(code), "to stdout".to_owned(), "to stderr".to_owned());
            assert_eq!(finished(client).await, expected, "{carrier}");
            assert_eq!(soon(host.outcome()).await.unwrap().end, SessionEnd::Exited(code), "{carrier}");
            assert_eq!(process.sessions.now(), 0, "{carrier}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn five_megabytes_through_the_go_client_and_back_are_unchanged() {
    for carrier in CARRIERS {
        let (mut client, mut process, mut host) = called_by_go(carrier, ALL).await;
        let data = pattern(5 << 20);
        let (mut stdin, mut stdout) = (client.stdin.take().unwrap(), client.stdout.take().unwrap());
        let writing = async {
            stdin.write_all(data).await.unwrap();
            drop(stdin);
        };
        let running = async {
            // Like cat: until the input ends.
            let mut output = process.stdout.take().unwrap();
            tokio::io::copy(&mut process.stdin, &mut output).await.unwrap();
            drop(output);
            process.exit(0);
        };
        let mut answer = Vec::new();
        let all = futures::future::join3(writing, running, stdout.read_to_end(&mut answer));
        soon(all).await.2.unwrap();
        assert!(answer == data, "{carrier}: {} bytes", answer.len());
        assert!(soon(client.wait()).await.unwrap().success(), "{carrier}");
        let outcome = soon(host.outcome()).await.unwrap();
        assert_eq!(
            (outcome.end, outcome.received, outcome.sent),
            (SessionEnd::Exited(0), 5 << 20, 5 << 20),
            "{carrier}"
        );
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_go_client_sends_terminal_sizes() {
    for carrier in CARRIERS {
        let (client, mut process, _host) = called_by_go(carrier, TTY).await;
        for (width, height) in [(80, 24), (132, 50)] {
            assert_eq!(soon(process.sizes.recv()).await, Some(TermSize { width, height }), "{carrier}");
        }
        process.exit(0);
        assert_eq!(finished(client).await.0, Some(0), "{carrier}");
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_go_client_gets_the_error_of_a_command_that_cannot_run() {
    for carrier in CARRIERS {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}{}", listener.local_addr().unwrap(), test_server::query(ALL));
        let client = peer().await.args(["exec", &url, carrier]).spawn().unwrap();
        let (io, _) = soon(listener.accept()).await.unwrap();
        let _host = test_server::exec_host(
            io,
            Err(Error::invalid("exec: \"nope\": not found")),
            SessionLimits::default(),
        );
        let (code, _, error_text) = finished(client).await;
        let text = "Internal error occurred: error executing command in container: exec: \"nope\": not found";
        assert_eq!((code, error_text.trim()), (Some(250), text), "{carrier}");
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_killed_go_client_leaves_nothing_behind() {
    for carrier in CARRIERS {
        let (mut client, mut process, mut host) = called_by_go(carrier, ALL).await;
        process.print(b"ready").await;
        let mut ready = [0; 5];
        soon(client.stdout.as_mut().unwrap().read_exact(&mut ready)).await.unwrap();
        soon(client.kill()).await.unwrap();
        assert_eq!(soon(host.outcome()).await.unwrap().end, SessionEnd::ClientGone, "{carrier}");
        assert_eq!(process.sessions.now(), 0, "{carrier}");
    }
}

/// A kubelet whose pod echoes, and where nothing listens on port 1.
async fn forwarding() -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/portForward/default/web", listener.local_addr().unwrap());
    let mut hosts = JoinSet::new();
    hosts.spawn(async move {
        let (io, _) = listener.accept().await.unwrap();
        let dial = |port| async move {
            if port == 1 {
                return Err(Error::unavailable("connection refused"));
            }
            let (ours, theirs) = duplex(10_000);
            let mut echo = JoinSet::new();
            echo.spawn(async move {
                let (mut from, mut to) = tokio::io::split(theirs);
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            });
            echo.detach_all();
            Ok(Forward::Stream(Box::new(ours)))
        };
        test_server::forward_host(io, dial, SessionLimits::default()).outcome().await;
    });
    (url, hosts)
}

async fn line(child: &mut Child) -> String {
    let mut line = String::new();
    soon(BufReader::new(child.stdout.take().unwrap()).read_line(&mut line)).await.unwrap();
    line.trim().to_owned()
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_go_client_forwards_a_hundred_connections_at_once() {
    for carrier in CARRIERS {
        let (url, _hosts) = forwarding().await;
        let mut client = peer().await.args(["forward", &url, carrier, "8080"]).spawn().unwrap();
        let address = line(&mut client).await;
        let mut connections = JoinSet::new();
        for number in 0..100 {
            let address = address.clone();
            connections.spawn(async move {
                let data = pattern(20_000 + number * 7);
                let (mut from, mut to) = TcpStream::connect(address).await.unwrap().into_split();
                let writing = async {
                    to.write_all(data).await.unwrap();
                    to.shutdown().await.unwrap();
                };
                let mut answer = Vec::new();
                let ((), read) = futures::future::join(writing, from.read_to_end(&mut answer)).await;
                read.unwrap();
                assert!(answer == data, "{} of {} bytes", answer.len(), data.len());
            });
        }
        soon(connections.join_all()).await;
        drop(client.stdin.take());
        assert!(soon(client.wait()).await.unwrap().success(), "{carrier}");
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_go_client_gets_the_error_of_a_closed_port() {
    for carrier in CARRIERS {
        let (url, _hosts) = forwarding().await;
        let mut client = peer().await.args(["forward", &url, carrier, "1"]).spawn().unwrap();
        let address = line(&mut client).await;
        let mut connection = TcpStream::connect(address).await.unwrap();
        let mut nothing = Vec::new();
        let _ = soon(connection.read_to_end(&mut nothing)).await;
        assert_eq!(nothing, b"", "{carrier}");
        let (_, _, error_text) = finished(client).await;
        assert!(
            error_text.contains("error forwarding port 1: connection refused"),
            "{carrier}: {error_text}"
        );
    }
}

/// A container runtime's streaming server.
struct Runtime {
    _child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Runtime {
    async fn start() -> Self {
        let mut child = peer().await.arg("serve").spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { stdin: child.stdin.take().unwrap(), stdout, _child: child }
    }

    /// A URL, valid for one request.
    async fn url(&mut self, wanted: &Value) -> String {
        self.stdin.write_all(format!("{wanted}\n").as_bytes()).await.unwrap();
        soon(self.stdout.next_line()).await.unwrap().unwrap()
    }

    async fn exec(&mut self, command: &[&str], options: ExecOptions) -> String {
        let ExecOptions { stdin, stdout, stderr, tty } = options;
        let wanted =
            json!({"Command": command, "Stdin": stdin, "Stdout": stdout, "Stderr": stderr, "Tty": tty});
        self.url(&wanted).await
    }
}

/// The output of a session, and its exit.
async fn bytes_read(mut session: vk_provider::ability::Session) -> (String, String, Result<Exit, String>) {
    let (mut out, mut err) = (String::new(), String::new());
    if let Some(mut stdout) = session.stdout.take() {
        soon(stdout.read_to_string(&mut out)).await.unwrap();
    }
    if let Some(mut stderr) = session.stderr.take() {
        soon(stderr.read_to_string(&mut err)).await.unwrap();
    }
    (out, err, soon(session.exit).await.map_err(|error| error.report()))
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_runtimes_server_runs_commands_for_our_client() {
    let mut runtime = Runtime::start().await;
    let limits = SessionLimits::default();
    for code in [0, 1, 137] {
        let url = runtime.exec(&["exit", &code.to_string()], ALL).await;
        let session = client::exec(&url, &ALL, &limits).await.unwrap();
        assert_eq!(bytes_read(session).await, ("out".into(), "err".into(), Ok(Exit { code })));
        // A URL is valid for one request.
        let again = client::exec(&url, &ALL, &limits).await.unwrap_err();
        assert_eq!(*again.kind(), vk_provider::error::Kind::NotFound, "{}", again.report());
    }
    let url = runtime.exec(&["nope"], ALL).await;
    let error_text = bytes_read(client::exec(&url, &ALL, &limits).await.unwrap()).await.2.unwrap_err();
    assert!(
        error_text.contains("error executing command in container: no such command: nope"),
        "{error_text}"
    );

    let url = runtime.exec(&["cat"], ALL).await;
    let mut session = client::exec(&url, &ALL, &limits).await.unwrap();
    let data = pattern(3 << 20);
    let mut stdin = session.stdin.take().unwrap();
    let writing = async {
        stdin.write_all(data).await.unwrap();
        stdin.shutdown().await.unwrap();
    };
    let mut answer = Vec::new();
    let mut stdout = session.stdout.take().unwrap();
    soon(futures::future::join(writing, stdout.read_to_end(&mut answer))).await.1.unwrap();
    assert!(answer == data, "{} bytes", answer.len());
    assert_eq!(soon(session.exit).await.unwrap(), Exit { code: 0 });

    let url = runtime.exec(&["sizes"], TTY).await;
    let session = client::exec(&url, &TTY, &limits).await.unwrap();
    for (width, height) in [(80, 24), (132, 50)] {
        session.resize.as_ref().unwrap().send(TermSize { width, height }).await.unwrap();
    }
    assert_eq!(bytes_read(session).await, ("80x24\n132x50\n".into(), String::new(), Ok(Exit { code: 0 })));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_runtimes_server_supports_our_older_versions_and_websockets_too() {
    let mut runtime = Runtime::start().await;
    let limits = SessionLimits::default();
    for protocol in
        crate::exec::PROTOCOLS.into_iter().filter(|protocol| protocol.version() < ProtocolVersion::V5)
    {
        let url: http::Uri = runtime.exec(&["exit", "0"], ALL).await.parse().unwrap();
        let io = TcpStream::connect(url.authority().unwrap().as_str()).await.unwrap();
        let request = test_server::request(test_server::is_spdy(protocol), url.path());
        let session = client::exec_over(io, request, &[protocol], &ALL, &limits).await.unwrap();
        let (out, err, exit) = bytes_read(session).await;
        assert_eq!((&*out, &*err), ("out", "err"), "{protocol:?}");
        // This server resets the error stream at once in version 1.
        if protocol != Protocol::Spdy(ProtocolVersion::V1) {
            assert_eq!(exit, Ok(Exit { code: 0 }), "{protocol:?}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_runtimes_server_forwards_for_our_client() {
    let mut runtime = Runtime::start().await;
    let url = runtime.url(&json!({"Forward": true})).await;
    let forwarder = soon(client::forward(&url, &SessionLimits::default())).await.unwrap();
    let data = pattern(1 << 20);
    for _ in 0..5 {
        let (mut from, mut to) = tokio::io::split(forwarder.open(8080).await.unwrap());
        let writing = async {
            to.write_all(data).await.unwrap();
            to.shutdown().await.unwrap();
        };
        let mut answer = Vec::new();
        soon(futures::future::join(writing, from.read_to_end(&mut answer))).await.1.unwrap();
        assert!(answer == data, "{} bytes", answer.len());
    }
    for _ in 0..20 {
        // The error may arrive before or after the stream is open.
        let error_text = match soon(forwarder.open(1)).await {
            Ok(mut refused) => soon(refused.read_to_end(&mut Vec::new())).await.unwrap_err().to_string(),
            Err(error) => error.report(),
        };
        assert!(error_text.ends_with("connection refused"), "{error_text}");
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_go_client_reaches_a_runtimes_server_through_our_proxy() {
    let mut runtime = Runtime::start().await;
    let upstream = runtime.exec(&["exit", "42"], ALL).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{}", listener.local_addr().unwrap(), test_server::query(ALL));
    let client = peer().await.args(["exec", &url, "spdy"]).spawn().unwrap();
    let (io, _) = soon(listener.accept()).await.unwrap();
    let mut host = Host::proxy(io, upstream, SessionLimits::default());
    assert_eq!(finished(client).await, (Some(42), "out".to_owned(), "err".to_owned()));
    assert!(matches!(soon(host.outcome()).await.unwrap().end, SessionEnd::Done | SessionEnd::ClientGone));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_go_client_of_version_5_reaches_a_runtimes_server_through_ours() {
    let mut runtime = Runtime::start().await;
    let upstream = runtime.exec(&["cat"], ALL).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{}", listener.local_addr().unwrap(), test_server::query(ALL));
    let mut client = peer().await.args(["exec", &url, "websocket"]).spawn().unwrap();
    let (io, _) = soon(listener.accept()).await.unwrap();
    let dialled = client::exec(&upstream, &ALL, &SessionLimits::default()).await;
    let mut host = test_server::exec_host(io, dialled, SessionLimits::default());
    client.stdin.take().unwrap().write_all(b"there and back").await.unwrap();
    assert_eq!(finished(client).await, (Some(0), "there and back".to_owned(), String::new()));
    assert_eq!(soon(host.outcome()).await.unwrap().end, SessionEnd::Exited(0));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_go_client_forwards_through_ours_to_a_runtimes_server() {
    for carrier in CARRIERS {
        let mut runtime = Runtime::start().await;
        let upstream = runtime.url(&json!({"Forward": true})).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/portForward/default/web", listener.local_addr().unwrap());
        let mut client = peer().await.args(["forward", &url, carrier, "8080"]).spawn().unwrap();
        let (io, _) = soon(listener.accept()).await.unwrap();
        let dial = move |_| {
            let upstream = upstream.clone();
            async move { Ok(Forward::Url(upstream)) }
        };
        let _host = test_server::forward_host(io, dial, SessionLimits::default());
        let mut connection = TcpStream::connect(line(&mut client).await).await.unwrap();
        connection.write_all(b"there and back").await.unwrap();
        connection.shutdown().await.unwrap();
        let mut answer = String::new();
        soon(connection.read_to_string(&mut answer)).await.unwrap();
        assert_eq!(answer, "there and back", "{carrier}");
    }
}
