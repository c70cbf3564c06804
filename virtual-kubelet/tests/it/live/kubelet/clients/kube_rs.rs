//! kube-rs: WebSocket with channels, v5 or v4 for commands and v4 for ports.

use std::time::Duration;

use futures::SinkExt as _;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Status};
use kube::{
    Api,
    api::{AttachParams, LogParams, TerminalSize},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use vk_testing::kubectl_matrix::KubectlSession;

use super::{Served, WAYS, served};

/// Long enough for a busy machine.
const LIMIT: Duration = Duration::from_mins(1);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(LIMIT, future).await;
    done.unwrap_or_else(|_| panic!("not within {LIMIT:?}: {what}"))
}

fn pods(served: &Served<'_>, stage: &KubectlSession) -> Api<Pod> {
    Api::namespaced(served.cluster.admin().unwrap(), &stage.namespace)
}

/// Runs a command, with this input until its end: output, errors, and how it ended.
async fn exec(pods: &Api<Pod>, command: &[&str], input: &[u8]) -> (Vec<u8>, String, Status) {
    let params = AttachParams::default().container("main").stdin(!input.is_empty()).stderr(true);
    let running = async {
        let mut process = pods.exec("web", command.to_vec(), &params).await.unwrap();
        let (stdin, status) = (process.stdin(), process.take_status().unwrap());
        let (mut stdout, mut stderr) = (process.stdout().unwrap(), process.stderr().unwrap());
        let (mut out, mut err) = (Vec::new(), String::new());
        let feed = async {
            if let Some(mut stdin) = stdin {
                stdin.write_all(input).await.unwrap();
                stdin.shutdown().await.unwrap();
            }
        };
        let ((), read, errors, status) =
            tokio::join!(feed, stdout.read_to_end(&mut out), stderr.read_to_string(&mut err), status);
        read.unwrap();
        errors.unwrap();
        process.join().await.unwrap();
        (out, err, status.expect("how it ended"))
    };
    soon(&format!("{command:?} ends"), running).await
}

/// The exit code that a status tells.
fn code(status: &Status) -> i32 {
    if status.status.as_deref() == Some("Success") {
        return 0;
    }
    assert_eq!(status.reason.as_deref(), Some("NonZeroExitCode"), "{status:?}");
    let causes = status.details.as_ref().and_then(|details| details.causes.as_ref());
    let cause =
        causes.into_iter().flatten().find(|cause| cause.reason.as_deref() == Some("ExitCode")).unwrap();
    cause.message.as_ref().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn kube_rs_execs_with_input_output_errors_codes_and_a_terminal() {
    for way in WAYS {
        let served = served("kube-rs-exec", way).await;
        let stage = served.stage().await;
        let pods = pods(&served, &stage);

        let (out, err, status) = exec(&pods, &["echo", "hello", "world"], &[]).await;
        assert_eq!((out.as_slice(), err.as_str(), code(&status)), (&b"hello world\n"[..], "", 0), "{way:?}");
        let (out, err, status) = exec(&pods, &["sh", "-c", "echo oops >&2"], &[]).await;
        assert_eq!((out.len(), err.as_str(), code(&status)), (0, "oops\n", 0), "{way:?}");
        for wanted in [1, 42, 137] {
            let (_, _, status) = exec(&pods, &["sh", "-c", &format!("exit {wanted}")], &[]).await;
            assert_eq!(code(&status), wanted, "{way:?}: {status:?}");
        }
        let much: Vec<u8> = (0..500_000_u32).flat_map(u32::to_le_bytes).collect();
        let (back, _, status) = exec(&pods, &["cat"], &much).await;
        assert!(back == much, "{way:?}: {} bytes came back of {}", back.len(), much.len());
        assert_eq!(code(&status), 0, "{way:?}");

        let mut process = pods.exec("web", ["stty", "size"], &AttachParams::interactive_tty()).await.unwrap();
        let mut terminal = process.terminal_size().unwrap();
        terminal.send(TerminalSize { width: 132, height: 43 }).await.unwrap();
        let mut size = String::new();
        soon("the size is told", process.stdout().unwrap().read_to_string(&mut size)).await.unwrap();
        assert!(size.contains("43 132"), "{way:?}: {size:?}");

        let params = AttachParams::default().container("nobody");
        let Err(refused) = pods.exec("web", ["true"], &params).await else { panic!("{way:?}: it was run") };
        // Its text is not for clients of kube-rs to see: an upgrade that is refused is told by its code.
        assert!(refused.to_string().contains("400"), "{way:?}: {refused}");
        stage.close().await;
        served.no_sessions().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn kube_rs_forwards_ports_side_by_side() {
    for way in WAYS {
        let served = served("kube-rs-forward", way).await;
        let stage = served.stage().await;
        let pods = pods(&served, &stage);

        let mut forwarder = pods.portforward("web", &[8080, 9000]).await.unwrap();
        let mut web = forwarder.take_stream(8080).unwrap();
        web.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let reading = async {
            while !answer.ends_with(b"hello from web\n") {
                assert!(web.read_buf(&mut answer).await.unwrap() > 0, "{way:?}: it ended");
            }
        };
        soon("the whole answer", reading).await;
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{way:?}: {}", String::from_utf8_lossy(&answer));

        let much: Vec<u8> = (0..250_000_u32).flat_map(u32::to_le_bytes).collect();
        let (mut read, mut write) = tokio::io::split(forwarder.take_stream(9000).unwrap());
        let mut back = vec![0; much.len()];
        let (sent, received) =
            soon("the echo", async { tokio::join!(write.write_all(&much), read.read_exact(&mut back)) })
                .await;
        sent.unwrap();
        received.unwrap();
        assert!(back == much, "{way:?}: the echo is another");
        drop((web, read, write));
        soon("the forwarding ends", forwarder.join()).await.unwrap();

        let mut forwarder = pods.portforward("web", &[1]).await.unwrap();
        let mut closed = forwarder.take_stream(1).unwrap();
        closed.write_all(b"anybody?").await.unwrap();
        let error = soon("an error", forwarder.take_error(1).unwrap()).await;
        assert!(
            error.as_ref().is_some_and(|error| error.contains("connection refused")),
            "{way:?}: {error:?}"
        );
        drop((closed, forwarder));
        stage.close().await;
        served.no_sessions().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn kube_rs_reads_and_follows_logs() {
    let served = served("kube-rs-logs", WAYS[0]).await;
    let stage = served.stage().await;
    let pods = pods(&served, &stage);
    let mut following = String::new();
    let params = LogParams { follow: true, limit_bytes: Some(20), ..LogParams::default() };
    let mut stream = pods.log_stream("web", &params).await.unwrap();
    let reading = futures::AsyncReadExt::read_to_string(&mut stream, &mut following);
    soon("twenty bytes", reading).await.unwrap();
    assert_eq!(following.len(), 20, "{following:?}");
    let all = pods.logs("web", &LogParams::default()).await.unwrap();
    assert!(all.starts_with(&following), "{all:?} after {following:?}");
    let none = pods.logs("web", &LogParams { tail_lines: Some(0), ..LogParams::default() }).await.unwrap();
    assert_eq!(none, "");
    stage.close().await;
}
