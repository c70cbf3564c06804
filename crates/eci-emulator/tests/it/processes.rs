//! Containers that are processes.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio::time::timeout;
use tokio_tungstenite::{client_async, tungstenite::Message};
use vk_eci_emulator::{Containers, EciEmulator};

use crate::caller::{call, create, start, until};

const LIMIT: Duration = Duration::from_secs(30);

async fn emulator() -> EciEmulator {
    start(Containers::Processes).await
}

/// A container that runs this script.
fn shell<'a>(script: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all = vec![
        ("Container.1.Command.1", "sh"),
        ("Container.1.Command.2", "-c"),
        ("Container.1.Arg.1", script),
        ("TerminationGracePeriodSeconds", "5"),
    ];
    all.extend(more);
    all
}

async fn log(emulator: &EciEmulator, id: &str, more: &[(&str, &str)]) -> String {
    let mut all = vec![("ContainerGroupId", id), ("ContainerName", "main")];
    all.extend(more);
    let answer = call(emulator, "DescribeContainerLog", &all).await.json();
    answer["Content"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

async fn ended(emulator: &EciEmulator, id: &str) -> Value {
    until(emulator, id, |group| group["Status"] == "Succeeded" || group["Status"] == "Failed").await
}

/// All that comes from a command: its output, errors, and the end.
async fn exec(emulator: &EciEmulator, id: &str, command: &[&str], tty: bool, input: &[&[u8]]) -> [String; 3] {
    let command = serde_json::to_string(command).unwrap();
    let tty = tty.to_string();
    let all = [("ContainerGroupId", id), ("ContainerName", "main"), ("Command", &command), ("TTY", &tty)];
    let answer = call(emulator, "ExecContainerCommand", &all).await.json();
    let uri = answer["WebSocketUri"].as_str().unwrap_or_else(|| panic!("{answer}"));
    let address = emulator.endpoint().trim_start_matches("http://").to_owned();
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut socket, _) = client_async(uri, stream).await.unwrap();
    for part in input {
        socket.send(Message::Binary(part.to_vec().into())).await.unwrap();
    }
    let mut came = [Vec::new(), Vec::new(), Vec::new()];
    while let Some(Ok(message)) = timeout(LIMIT, socket.next()).await.expect("the command ends") {
        if let Message::Binary(bytes) = message {
            came[usize::from(bytes[0]) - 1].extend(&bytes[1..]);
        }
    }
    came.map(|bytes| String::from_utf8(bytes).unwrap())
}

fn exit_code(end: &str) -> i64 {
    let status: Value = serde_json::from_str(end).unwrap_or_else(|error| panic!("{error}: {end}"));
    if status["status"] == "Success" {
        return 0;
    }
    status["details"]["causes"][0]["message"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_container_has_its_variables_files_volumes_and_root() {
    let emulator = emulator().await;
    let content = BASE64_STANDARD.encode("a secret\n");
    let script = "echo $NAME $POD_IP; cat /files/deep/file; stat -c %a /files/deep/file; cat /scratch/from-init; pwd; \
                  ls /; hostname; id -u; touch /files/x 2>&1 || echo read-only; cat /etc/resolv.conf; grep friend /etc/hosts";
    let more = [
        ("RestartPolicy", "Never"),
        ("HostName", "my-host"),
        ("DnsPolicy", "None"),
        ("DnsConfig.NameServer.1", "10.96.0.10"),
        ("DnsConfig.Search.1", "svc.local"),
        ("HostAliase.1.Ip", "10.1.2.3"),
        ("HostAliase.1.Hostname.1", "friend"),
        ("Container.1.WorkingDir", "/work"),
        ("Container.1.EnvironmentVar.1.Key", "NAME"),
        ("Container.1.EnvironmentVar.1.Value", "value"),
        ("Container.1.EnvironmentVar.2.Key", "POD_IP"),
        ("Container.1.EnvironmentVar.2.FieldRef.FieldPath", "status.podIP"),
        ("Container.1.VolumeMount.1.Name", "files"),
        ("Container.1.VolumeMount.1.MountPath", "/files"),
        ("Container.1.VolumeMount.2.Name", "scratch"),
        ("Container.1.VolumeMount.2.MountPath", "/scratch"),
        ("Container.1.SecurityContext.RunAsUser", "1234"),
        ("InitContainer.1.Name", "init"),
        ("InitContainer.1.Image", "busybox"),
        ("InitContainer.1.Command.1", "sh"),
        ("InitContainer.1.Command.2", "-c"),
        ("InitContainer.1.Command.3", "echo from init > /s/from-init"),
        ("InitContainer.1.VolumeMount.1.Name", "scratch"),
        ("InitContainer.1.VolumeMount.1.MountPath", "/s"),
        ("Volume.1.Name", "files"),
        ("Volume.1.Type", "ConfigFileVolume"),
        ("Volume.1.ConfigFileVolume.ConfigFileToPath.1.Path", "deep/file"),
        ("Volume.1.ConfigFileVolume.ConfigFileToPath.1.Content", content.as_str()),
        ("Volume.1.ConfigFileVolume.ConfigFileToPath.1.Mode", "0640"),
        ("Volume.2.Name", "scratch"),
        ("Volume.2.Type", "EmptyDirVolume"),
    ];
    let id = create(&emulator, "vk-1", &shell(script, &more)).await;
    let group = ended(&emulator, &id).await;
    let log = log(&emulator, &id, &[]).await;
    assert_eq!(group["Status"], "Succeeded", "{group:#}\n{log}");
    let ip = group["IntranetIp"].as_str().unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines[0], format!("value {ip}"));
    assert_eq!(lines[1..5], ["a secret", "640", "from init", "/work"], "{log}");
    assert!(lines.contains(&"bin") && !lines.contains(&"home"), "{log}");
    for expected in
        ["my-host", "1234", "read-only", "nameserver 10.96.0.10", "search svc.local", "10.1.2.3\tfriend"]
    {
        assert!(lines.contains(&expected), "{expected}: {log}");
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn exit_codes_signals_messages_and_restarts_are_real() {
    let emulator = emulator().await;
    let id = create(
        &emulator,
        "vk-1",
        &shell("echo gone > /dev/termination-log; exit 7", &[("RestartPolicy", "Never")]),
    )
    .await;
    let group = ended(&emulator, &id).await;
    let state = &group["Containers"][0]["CurrentState"];
    assert_eq!((state["ExitCode"].clone(), state["Message"].clone()), (7.into(), "gone\n".into()));
    assert_eq!(group["Status"], "Failed");
    let killed = shell("kill -9 $$", &[("RestartPolicy", "Never")]);
    let id = create(&emulator, "vk-2", &killed).await;
    assert_eq!(ended(&emulator, &id).await["Containers"][0]["CurrentState"]["ExitCode"], 137);
    assert_eq!(log(&emulator, &id, &[]).await, "");
    let missing = [("RestartPolicy", "Never"), ("Container.1.Command.1", "/no/such/program")];
    let id = create(&emulator, "vk-3", &missing).await;
    assert_eq!(ended(&emulator, &id).await["Containers"][0]["CurrentState"]["ExitCode"], 127);
    let id = create(&emulator, "vk-4", &shell("echo run; exit 1", &[("RestartPolicy", "OnFailure")])).await;
    until(&emulator, &id, |group| group["Containers"][0]["RestartCount"].as_i64() >= Some(2)).await;
    assert_eq!(log(&emulator, &id, &[("LastTime", "true")]).await, "run\n");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_delete_is_polite_and_waits_for_hooks_and_the_grace_period() {
    let emulator = emulator().await;
    let polite = shell(
        "trap 'echo terminated; exit 0' TERM; while :; do sleep 0.05; done",
        &[
            ("Container.1.LifecyclePreStopHandlerExec.1", "sh"),
            ("Container.1.LifecyclePreStopHandlerExec.2", "-c"),
            ("Container.1.LifecyclePreStopHandlerExec.3", "echo hook > /proc/1/fd/1; sleep 1"),
        ],
    );
    let id = create(&emulator, "vk-1", &polite).await;
    until(&emulator, &id, |group| group["Containers"][0]["Ready"] == true).await;
    call(&emulator, "DeleteContainerGroup", &[("ContainerGroupId", &id)]).await;
    let mut seen = String::new();
    until(&emulator, &id, |group| group.is_null() || group["Status"] == "Terminating").await;
    loop {
        let all = [("ContainerGroupId", id.as_str()), ("ContainerName", "main")];
        let answer = call(&emulator, "DescribeContainerLog", &all).await;
        if answer.status != 200 {
            break;
        }
        answer.json()["Content"].as_str().unwrap().clone_into(&mut seen);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(seen.contains("hook\n"), "{seen:?}");
    let stubborn = shell("trap '' TERM; while :; do sleep 0.05; done", &[]);
    let mut stubborn = stubborn;
    stubborn.retain(|(name, _)| *name != "TerminationGracePeriodSeconds");
    stubborn.push(("TerminationGracePeriodSeconds", "1"));
    let id = create(&emulator, "vk-2", &stubborn).await;
    until(&emulator, &id, |group| group["Containers"][0]["Ready"] == true).await;
    let began = tokio::time::Instant::now();
    call(&emulator, "DeleteContainerGroup", &[("ContainerGroupId", &id)]).await;
    until(&emulator, &id, Value::is_null).await;
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn exec_has_input_its_end_errors_codes_and_a_terminal() {
    let emulator = emulator().await;
    let id = create(&emulator, "vk-1", &shell("sleep 3600", &[])).await;
    until(&emulator, &id, |group| group["Containers"][0]["Ready"] == true).await;
    let [out, err, end] =
        exec(&emulator, &id, &["sh", "-c", "echo out; echo err >&2; exit 5"], false, &[]).await;
    assert_eq!((out.as_str(), err.as_str(), exit_code(&end)), ("out\n", "err\n", 5));
    let large = [b"\0".as_slice(), &vec![b'x'; 200_000]].concat();
    let [out, _, end] = exec(&emulator, &id, &["cat"], false, &[&large, &[255, 0]]).await;
    assert_eq!((out.len(), exit_code(&end)), (200_000, 0));
    let size = br#"_{"Width":100,"Height":40}"#;
    let mut size = size.to_vec();
    size[0] = 4;
    let [out, err, end] =
        exec(&emulator, &id, &["sh", "-c", "tty; read line; stty size; exit 3"], true, &[&size, b"\0\n"])
            .await;
    assert!(out.starts_with("/dev/") && out.contains("40 100"), "{out:?} {err:?}");
    assert_eq!(exit_code(&end), 3);
    let [_, _, end] = exec(&emulator, &id, &["no-such-program"], false, &[]).await;
    assert_eq!(exit_code(&end), 127);
    let sync = [
        ("ContainerGroupId", id.as_str()),
        ("ContainerName", "main"),
        ("Command", "[\"hostname\"]"),
        ("Sync", "true"),
    ];
    assert_eq!(call(&emulator, "ExecContainerCommand", &sync).await.json()["SyncResponse"], "vk-1\n");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn probes_make_ready_and_restart() {
    let emulator = emulator().await;
    let ready = shell(
        "sleep 0.3; touch /tmp/ready; sleep 1; rm /tmp/ready; sleep 3600",
        &[
            ("Container.1.ReadinessProbe.Exec.Command.1", "test"),
            ("Container.1.ReadinessProbe.Exec.Command.2", "-e"),
            ("Container.1.ReadinessProbe.Exec.Command.3", "/tmp/ready"),
            ("Container.1.ReadinessProbe.PeriodSeconds", "1"),
            ("Container.1.ReadinessProbe.FailureThreshold", "1"),
        ],
    );
    let id = create(&emulator, "vk-1", &ready).await;
    until(&emulator, &id, |group| group["Containers"][0]["Ready"] == true).await;
    until(&emulator, &id, |group| group["Containers"][0]["Ready"] == false).await;
    let dead = shell(
        "sleep 3600",
        &[
            ("Container.1.LivenessProbe.TcpSocket.Port", "1"),
            ("Container.1.LivenessProbe.PeriodSeconds", "1"),
            ("Container.1.LivenessProbe.FailureThreshold", "1"),
        ],
    );
    let id = create(&emulator, "vk-2", &dead).await;
    let group = until(&emulator, &id, |group| group["Containers"][0]["RestartCount"] == 1).await;
    assert_eq!(group["Containers"][0]["PreviousState"]["ExitCode"], 137);
    assert!(group["Events"].as_array().unwrap().iter().any(|event| event["Reason"] == "Unhealthy"));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn usage_is_measured() {
    let emulator = emulator().await;
    let id = create(&emulator, "vk-1", &shell("while :; do :; done", &[])).await;
    until(&emulator, &id, |group| group["Containers"][0]["Ready"] == true).await;
    let usage = async || {
        let answer =
            call(&emulator, "DescribeContainerGroupMetric", &[("ContainerGroupId", &id)]).await.json();
        answer["Records"][0]["Containers"][0].clone()
    };
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let now = usage().await;
        if now["CPU"]["UsageCoreNanoSeconds"].as_u64() > Some(100_000_000) {
            assert!(now["CPU"]["UsageNanoCores"].as_u64() > Some(1_000_000), "{now}");
            assert!(now["Memory"]["UsageBytes"].as_u64() > Some(4096), "{now}");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{now}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn everything_ends_with_the_emulator() {
    let emulator = emulator().await;
    let marker = format!("sleep 4{:09}", std::process::id());
    let id = create(&emulator, "vk-1", &shell(&format!("{marker} & {marker}"), &[])).await;
    until(&emulator, &id, |group| group["Containers"][0]["Ready"] == true).await;
    let running = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        let marker = marker.replace(' ', "\0");
        lines.filter(|line| String::from_utf8_lossy(line).starts_with(&marker)).count()
    };
    let deadline = tokio::time::Instant::now() + LIMIT;
    while running() < 2 {
        assert!(tokio::time::Instant::now() < deadline, "{}", running());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(emulator);
    while running() > 0 {
        assert!(tokio::time::Instant::now() < deadline, "{}", running());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
