//! Logs, exec, attach, port-forward and stats.

use std::time::Duration;

use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vk_provider::{
    Provider,
    ability::{
        Attach, Exec, ExecOptions, Forward, LogBody, LogOptions, Logs, PortForward, Session, Started, Stats,
        TermSize,
    },
    error::Kind,
};
use vk_provider_mock::Mock;

use crate::support::{bundle, bundle_with_address, pod, reference};

const ALL: ExecOptions = ExecOptions { stdin: true, stdout: true, stderr: true, tty: false };

async fn running(annotations: &[(&str, &str)]) -> Mock {
    let mock = Mock::builder("node").build();
    mock.create_pod(bundle(pod("u1", annotations))).await.unwrap();
    mock
}

async fn start(mock: &Mock, command: &str, options: ExecOptions) -> Session {
    let words: Vec<String> = match command.strip_prefix("sh -c ") {
        Some(script) => vec!["sh".into(), "-c".into(), script.into()],
        None => command.split(' ').map(Into::into).collect(),
    };
    match mock.start(&reference("u1").container("app"), &words, &options).await.unwrap() {
        Started::Session(session) => session,
        Started::Url(_) => panic!("the mock has no addresses"),
    }
}

/// Runs a command with this input and returns exit code, stdout and stderr.
async fn run(mock: &Mock, command: &str, input: &str) -> (i32, String, String) {
    let session = start(mock, command, ALL).await;
    let (mut stdin, mut stdout, mut stderr) =
        (session.stdin.unwrap(), session.stdout.unwrap(), session.stderr.unwrap());
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let feed = async {
        let _ = stdin.write_all(input.as_bytes()).await;
        let _ = stdin.shutdown().await;
    };
    let (exit, (), _, _) =
        tokio::join!(session.exit, feed, stdout.read_to_end(&mut out), stderr.read_to_end(&mut err));
    (exit.unwrap().code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

async fn log(mock: &Mock, options: LogOptions) -> vk_provider::Result<Vec<String>> {
    let LogBody::Stamped(stream) = mock.open(&reference("u1").container("app"), &options).await? else {
        panic!("lines with times were expected")
    };
    let lines: Vec<_> = stream.map(|line| String::from_utf8(line.unwrap().to_vec()).unwrap()).collect().await;
    Ok(lines)
}

#[tokio::test(start_paused = true)]
async fn builtin_commands_work() {
    let mock = running(&[]).await;
    for (command, input, code, out, err) in [
        ("echo a b", "", 0, "a b\n", ""),
        ("cat", "hello\nworld", 0, "hello\nworld", ""),
        ("sh -c exit 7", "", 7, "", ""),
        ("exit 3", "", 3, "", ""),
        ("true", "", 0, "", ""),
        ("false", "", 1, "", ""),
        ("err out of order", "", 0, "", "out of order\n"),
        ("hostname", "", 0, "pod-u1\n", ""),
        ("env", "", 0, "HOSTNAME=pod-u1\n", ""),
        ("tty", "", 1, "not a tty\n", ""),
        ("sleep 2.5", "", 0, "", ""),
        ("yes 3", "", 0, "y\ny\ny\n", ""),
        ("ls -l /", "", 0, "ls -l /\n", ""),
        ("nosuchcommand", "", 127, "", "nosuchcommand: not found\n"),
    ] {
        assert_eq!(run(&mock, command, input).await, (code, out.into(), err.into()), "{command}");
    }
    let (code, out, _) = run(&mock, "head -c 1000000 /dev/zero", "").await;
    assert_eq!((code, out.len()), (0, 1_000_000));
}

#[tokio::test(start_paused = true)]
async fn a_container_that_starts_after_its_creation_has_the_address_of_its_pod() {
    for delay in ["0s", "2s"] {
        let mock = Mock::builder("node").build();
        mock.create_pod(bundle_with_address(pod("u1", &[("start-delay", delay)]))).await.unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let ip = mock.pod_status(&reference("u1")).await.unwrap().pod_ip.unwrap();
        let (_, out, _) = run(&mock, "env", "").await;
        assert_eq!(out, format!("HOSTNAME=pod-u1\nIP={ip}\n"), "{delay}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_terminal_reports_each_size() {
    let mock = running(&[]).await;
    let session = start(&mock, "size", ExecOptions { tty: true, stderr: false, ..ALL }).await;
    assert!(session.stderr.is_none());
    let resize = session.resize.unwrap();
    resize.send(TermSize { width: 80, height: 24 }).await.unwrap();
    resize.send(TermSize { width: 100, height: 40 }).await.unwrap();
    drop(resize);
    let mut out = String::new();
    session.stdout.unwrap().read_to_string(&mut out).await.unwrap();
    assert_eq!(out, "80x24\n100x40\n");
    assert_eq!(session.exit.await.unwrap().code, 0);
}

#[tokio::test(start_paused = true)]
async fn a_command_ends_with_its_session_and_with_its_container() {
    let mock = running(&[]).await;
    let session = start(&mock, "cat", ALL).await;
    let (mut stdout, exit) = (session.stdout.unwrap(), session.exit);
    drop(exit);
    // The process has ended, so its output ends although its input does not.
    assert_eq!(stdout.read_to_end(&mut Vec::new()).await.unwrap(), 0);

    let session = start(&mock, "sleep 1000", ALL).await;
    mock.vanish(&reference("u1")).await.unwrap();
    assert_eq!(session.exit.await.unwrap().code, 137);
}

#[tokio::test(start_paused = true)]
async fn exec_attach_and_dial_need_a_running_container() {
    let mock = running(&[("start-delay", "1h")]).await;
    let (app, none) = (reference("u1").container("app"), reference("u1").container("none"));
    let words = ["true".to_owned()];
    let waiting = mock.start(&app, &words, &ALL).await.unwrap_err();
    assert_eq!(*waiting.kind(), Kind::Unavailable);
    assert_eq!(*mock.start(&none, &words, &ALL).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(*Attach::attach(&mock, &app, &ALL).await.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(*log(&mock, LogOptions::default()).await.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(*mock.dial(&reference("u1"), 80).await.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(*mock.dial(&reference("u2"), 80).await.unwrap_err().kind(), Kind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_log_is_the_same_each_time_and_a_followed_one_ends_with_its_container() {
    let mock = running(&[("run-for", "4s"), ("exit-code", "3"), ("restart-backoff", "1m")]).await;
    let begun = log(&mock, LogOptions::default()).await.unwrap();
    assert_eq!(begun.len(), 3);
    let (time, text) = begun[0].split_once(' ').unwrap();
    time.parse::<jiff::Timestamp>().unwrap();
    assert_eq!(text, "starting app (restart 0)\n");
    assert_eq!(
        *log(&mock, LogOptions { previous: true, ..LogOptions::default() }).await.unwrap_err().kind(),
        Kind::NotFound
    );

    let followed = log(&mock, LogOptions { follow: true, ..LogOptions::default() }).await.unwrap();
    assert_eq!(followed[..3], begun);
    assert!(followed.last().unwrap().ends_with(" app exits with 3\n"), "{followed:?}");
    assert_eq!(log(&mock, LogOptions::default()).await.unwrap(), followed);

    tokio::time::sleep(Duration::from_secs(62)).await;
    let again = log(&mock, LogOptions::default()).await.unwrap();
    assert!(again[0].ends_with("(restart 1)\n"), "{again:?}");
    let previous = log(&mock, LogOptions { previous: true, ..LogOptions::default() }).await.unwrap();
    assert_eq!(previous, followed);
}

#[tokio::test(start_paused = true)]
async fn attaching_shows_the_log_and_echoes_the_input() {
    let mock = running(&[("run-for", "3s"), ("exit-code", "5")]).await;
    let started = Attach::attach(&mock, &reference("u1").container("app"), &ALL).await.unwrap();
    let Started::Session(session) = started else { panic!("the mock has no addresses") };
    let mut stdin = session.stdin.unwrap();
    stdin.write_all(b"ping\n").await.unwrap();
    let mut out = String::new();
    session.stdout.unwrap().read_to_string(&mut out).await.unwrap();
    for line in ["starting app (restart 0)", "ping", "app tick 2", "app exits with 5"] {
        assert!(out.lines().any(|known| known == line), "{line} is not in {out}");
    }
    assert_eq!(session.exit.await.unwrap().code, 5);
}

#[tokio::test(start_paused = true)]
async fn a_port_echoes_says_hello_or_refuses() {
    let mock = running(&[]).await;
    let talk = async |port: u16, input: &str| {
        let Forward::Stream(mut stream) = mock.dial(&reference("u1"), port).await.unwrap() else { panic!() };
        stream.write_all(input.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut output = String::new();
        stream.read_to_string(&mut output).await.unwrap();
        output
    };
    assert_eq!(talk(5432, "anything").await, "anything");
    let answer = talk(80, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("hello from pod-u1\n"), "{answer}");
    assert_eq!(*mock.dial(&reference("u1"), 1).await.unwrap_err().kind(), Kind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn cpu_time_grows_and_usage_is_constant_per_container() {
    let mock = running(&[]).await;
    mock.create_pod(bundle(pod("u2", &[]))).await.unwrap();
    let spent = |summary: &vk_provider::ability::Summary| {
        let container = summary.pods[0].containers[0].cpu.as_ref().unwrap();
        (
            container.usage_core_nano_seconds.unwrap(),
            summary.node.cpu.as_ref().unwrap().usage_core_nano_seconds.unwrap(),
        )
    };
    let before = mock.summary().await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let after = mock.summary().await.unwrap();
    assert_eq!(after.pods.len(), 2);
    assert!(spent(&after).0 > spent(&before).0 && spent(&after).1 > spent(&before).1);
    let memory =
        |index: usize| after.pods[index].containers[0].memory.as_ref().unwrap().working_set_bytes.unwrap();
    assert!(memory(0) > 0 && memory(1) > 0);
    mock.vanish(&reference("u2")).await.unwrap();
    let less = mock.summary().await.unwrap();
    assert_eq!(less.pods.len(), 1);
    assert!(spent(&less).1 >= spent(&after).1, "the node's processor time went back");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(
        spent(&mock.summary().await.unwrap()).1 > spent(&less).1,
        "it stands still for the pod that left"
    );
}

/// CPU usage in millicores, CPU time in milliseconds and memory in MiB of the container, the pod and the node.
async fn figures(mock: &Mock) -> [(u64, u64, u64); 3] {
    let summary = mock.summary().await.unwrap();
    let [pod] = &summary.pods[..] else { panic!("{summary:?}") };
    let container = &pod.containers[0];
    [(&container.cpu, &container.memory), (&pod.cpu, &pod.memory), (&summary.node.cpu, &summary.node.memory)]
        .map(|(cpu, memory)| {
            let (cpu, memory) = (cpu.as_ref().unwrap(), memory.as_ref().unwrap());
            let milli = |nanos: Option<u64>| nanos.unwrap() / 1_000_000;
            let mebi = memory.working_set_bytes.unwrap() >> 20;
            (milli(cpu.usage_nano_cores), milli(cpu.usage_core_nano_seconds), mebi)
        })
}

#[tokio::test(start_paused = true)]
async fn usage_follows_its_annotations_and_a_change_counts_from_then_on() {
    let mock = running(&[("cpu", "250m"), ("memory", "32Mi")]).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    // The node uses 50m and 200Mi itself.
    assert_eq!(figures(&mock).await, [(250, 1000, 32), (250, 1000, 32), (300, 1200, 232)]);
    mock.update_pod(bundle(pod("u1", &[("cpu", "2"), ("memory", "1Gi")]))).await.unwrap();
    assert_eq!(figures(&mock).await, [(2000, 1000, 1024), (2000, 1000, 1024), (2050, 1200, 1224)]);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(figures(&mock).await.map(|(_, spent, _)| spent), [7000, 7000, 7350]);
    mock.update_pod(bundle(pod("u1", &[("cpu", "0")]))).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(figures(&mock).await.map(|(_, spent, _)| spent), [7000, 7000, 7600]);
}

#[tokio::test(start_paused = true)]
async fn counters_of_a_restarted_container_start_at_zero_but_not_those_of_its_pod() {
    let script = [("cpu", "1"), ("run-for", "10s"), ("restart-backoff", "5s")];
    let mock = running(&script).await;
    tokio::time::sleep(Duration::from_secs(18)).await;
    let [container, pod, _] = figures(&mock).await;
    assert_eq!((container.1, pod.1), (3000, 13_000));
}
