//! The measurements, the same for our node and for the bare kubelet.

use std::time::Duration;

use anyhow::Context as _;
use http::{Method, Request};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::Instant,
};
use vk_provider::ability::{ExecOptions, Session};
use vk_streaming::{
    Limits, client,
    exec::{Protocol, Version},
};
use vk_testing::Usage;

use super::{
    bare_kubelet::CHUNK,
    testbed::{TestNode, Testbed},
};
use crate::report::Figure;

/// Time before memory is measured.
const SETTLE: Duration = Duration::from_secs(5);
/// The timeout of a measurement.
const LIMIT: Duration = Duration::from_mins(5);

/// The protocol of an exec session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// None: raw bytes.
    Raw,
    /// WebSocket, version 5, as used by kubectl; the API server forwards it to the node.
    WebSocket,
    /// SPDY, version 4, as used by clients before 1.29; the API server forwards it too.
    Spdy,
}

/// A running command.
struct ExecSession {
    input: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    output: Box<dyn AsyncRead + Send + Unpin>,
    /// Keeps the session open.
    _session: Option<Session>,
}

/// Starts a command on a new connection.
async fn start(
    testbed: &Testbed,
    node: &TestNode,
    transport: Transport,
    command: &[&str],
    has_input: bool,
) -> anyhow::Result<ExecSession> {
    let io = testbed.connect().await?;
    let mut target = format!("{}?container=main&stdout=true", node.path);
    if has_input {
        target.push_str("&stdin=true");
    }
    for word in command {
        target.push_str("&command=");
        target.push_str(word);
    }
    let protocol = match transport {
        Transport::Raw => return bare(io, &testbed.host, &target).await,
        Transport::WebSocket => Protocol::WebSocket(Version::V5),
        Transport::Spdy => Protocol::Spdy(Version::V4),
    };
    let method = if transport == Transport::Spdy { Method::POST } else { Method::GET };
    let request = Request::builder().method(method).uri(&target).header("host", &testbed.host).body(())?;
    let options = ExecOptions { stdin: has_input, stdout: true, ..ExecOptions::default() };
    let mut session = client::exec_over(io, request, &[protocol], &options, &Limits::default()).await?;
    let input = session.stdin.take();
    let output = session.stdout.take().context("no output")?;
    Ok(ExecSession {
        input: input.map(|input| Box::new(input) as _),
        output: Box::new(output),
        _session: Some(session),
    })
}

async fn bare<IO>(mut io: IO, host: &str, target: &str) -> anyhow::Result<ExecSession>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let head = format!(
        "GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
    );
    io.write_all(head.as_bytes()).await?;
    io.flush().await?;
    let mut answer = Vec::new();
    let end = loop {
        if let Some(end) = answer.windows(4).position(|end| end == b"\r\n\r\n") {
            break end + 4;
        }
        anyhow::ensure!(io.read_buf(&mut answer).await? > 0, "the API server closed the connection");
    };
    let said = String::from_utf8_lossy(&answer[..end]).into_owned();
    anyhow::ensure!(said.starts_with("HTTP/1.1 101"), "no upgrade: {said}");
    let rest = std::io::Cursor::new(answer.split_off(end));
    let (read, write) = tokio::io::split(io);
    Ok(ExecSession { input: Some(Box::new(write)), output: Box::new(rest.chain(read)), _session: None })
}

/// Megabytes per second, if all bytes have arrived.
pub(super) fn rate(megabytes: u32, bytes: usize, took: Duration) -> anyhow::Result<f64> {
    anyhow::ensure!(bytes == megabytes as usize * 1_000_000, "{bytes} bytes of {megabytes} MB arrived");
    Ok(f64::from(megabytes) / took.as_secs_f64())
}

async fn in_time<T>(what: &str, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let done = tokio::time::timeout(LIMIT, Box::pin(work)).await;
    done.with_context(|| format!("{what} took more than {LIMIT:?}"))?.with_context(|| what.to_owned())
}

/// Throughput of the output of a command, from the connect to the last byte.
pub(super) async fn output(
    testbed: &Testbed,
    node: &TestNode,
    transport: Transport,
    megabytes: u32,
) -> anyhow::Result<f64> {
    let count = (megabytes as usize * 1_000_000).to_string();
    in_time("output of a command", async {
        let begun = Instant::now();
        let mut running =
            start(testbed, node, transport, &["head", "-c", &count, "%2Fdev%2Fzero"], false).await?;
        let all = drain(&mut running.output, megabytes).await?;
        rate(megabytes, all, begun.elapsed())
    })
    .await
}

/// Throughput of a command that echoes its input, from the connect to the last byte. Each byte is counted once.
pub(super) async fn echo(
    testbed: &Testbed,
    node: &TestNode,
    transport: Transport,
    megabytes: u32,
) -> anyhow::Result<f64> {
    in_time("to a command and back", async {
        let begun = Instant::now();
        let ExecSession { input, mut output, _session } =
            start(testbed, node, transport, &["cat"], true).await?;
        let mut input = input.context("no input")?;
        let feed = async {
            let chunk = vec![0; CHUNK];
            let mut left = megabytes as usize * 1_000_000;
            while left > 0 {
                let length = left.min(CHUNK);
                input.write_all(&chunk[..length]).await?;
                left -= length;
            }
            input.flush().await?;
            anyhow::Ok(())
        };
        let ((), all) = tokio::try_join!(feed, drain(&mut output, megabytes))?;
        rate(megabytes, all, begun.elapsed())
    })
    .await
}

/// Reads until the end, or until all bytes have arrived.
async fn drain(output: &mut (impl AsyncRead + Unpin), megabytes: u32) -> anyhow::Result<usize> {
    let (mut chunk, mut all) = (vec![0; CHUNK], 0);
    while all < megabytes as usize * 1_000_000 {
        match output.read(&mut chunk).await? {
            0 => break,
            length => all += length,
        }
    }
    Ok(all)
}

/// Milliseconds from the connect to the first byte of a short command: p50 and p99 of sequential commands.
pub(super) async fn first_byte(
    testbed: &Testbed,
    node: &TestNode,
    count: usize,
) -> anyhow::Result<(f64, f64)> {
    let transport = if node.is_bare { Transport::Raw } else { Transport::WebSocket };
    let mut times = Vec::with_capacity(count);
    for _ in 0..count.max(1) {
        let took = in_time("first byte of a command", async {
            let begun = Instant::now();
            let mut running = start(testbed, node, transport, &["echo", "x"], false).await?;
            running.output.read_u8().await?;
            Ok(begun.elapsed())
        });
        times.push(took.await?);
    }
    times.sort();
    let within = |percent: usize| {
        let index = (times.len() * percent / 100).min(times.len() - 1);
        times[index].as_secs_f64() * 1e3
    };
    Ok((within(50), within(99)))
}

/// Many commands at once, each of which has responded once; then all are idle.
pub(super) async fn concurrent_sessions(
    testbed: &Testbed,
    node: &TestNode,
    count: usize,
) -> anyhow::Result<Vec<Figure>> {
    let transport = if node.is_bare { Transport::Raw } else { Transport::WebSocket };
    // One-time allocations of the first command are not counted.
    drop(in_time("a first command", responding_command(testbed, node, transport)).await?);
    tokio::time::sleep(SETTLE).await;
    let pid = node.process.id();
    let before = Usage::of(pid)?;
    let begun = Instant::now();
    let begin =
        (0..count).map(|_| in_time("one of many commands", responding_command(testbed, node, transport)));
    let open = futures::future::try_join_all(begin).await?;
    let took = begun.elapsed();
    tokio::time::sleep(SETTLE).await;
    let idle = Usage::of(pid)?;
    drop(open);
    let files = in_time("the end of all commands", async {
        loop {
            let now = Usage::of(pid)?;
            if now.files <= before.files + 2 {
                return Ok(now.files);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    files.await?;
    tokio::time::sleep(SETTLE).await;
    let after = Usage::of(pid)?;
    #[expect(clippy::cast_precision_loss, reason = "a figure to print")]
    let each = idle.resident_bytes.saturating_sub(before.resident_bytes) as f64 / count.max(1) as f64 / 1e3;
    Ok(vec![
        ("all begun at once, each has answered", took.as_secs_f64(), "s"),
        ("memory of an idle one", each, "KB"),
        ("resident before", before.megabytes(), "MB"),
        ("resident with all of them idle", idle.megabytes(), "MB"),
        ("resident after their end", after.megabytes(), "MB"),
    ])
}

/// Starts a command that has responded once and waits for more input.
async fn responding_command(
    testbed: &Testbed,
    node: &TestNode,
    transport: Transport,
) -> anyhow::Result<ExecSession> {
    let mut running = start(testbed, node, transport, &["cat"], true).await?;
    let input = running.input.as_mut().context("no input")?;
    input.write_all(b"x\n").await?;
    input.flush().await?;
    let mut answer = [0; 2];
    running.output.read_exact(&mut answer).await?;
    anyhow::ensure!(&answer == b"x\n", "unexpected response {answer:?}");
    Ok(running)
}
