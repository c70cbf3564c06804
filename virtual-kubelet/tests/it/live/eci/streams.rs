//! Logs, exec, usage, and a polite end.

use std::{process::Stdio, time::Duration};

use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use vk_testing::{ControlPlane, eventually};

use super::{EciNode, LATER};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make test"]
async fn logs_follow_and_end_with_the_container() {
    let node = EciNode::start(ControlPlane::shared().await, "logs").await;
    let script = "i=1; while [ $i -le 40 ]; do echo line $i; i=$((i + 1)); sleep 0.1; done";
    let mut pod = node.pod("counts", script);
    pod["spec"]["restartPolicy"] = "Never".into();
    node.apply(&pod).await;
    eventually("there are logs", LATER, || async {
        let output = node.try_kubectl(&["logs", "counts"], "").await;
        if output.stdout.contains("line 2") { Ok(()) } else { Err(format!("{output:?}")) }
    })
    .await;
    let mut follow = tokio::process::Command::new(node.cluster.kubectl().unwrap())
        .args(["-n", node.namespace.name(), "logs", "-f", "counts"])
        .env("KUBECONFIG", node.cluster.admin_kubeconfig())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    let mut seen = Vec::new();
    while let Some(line) =
        tokio::time::timeout(LATER, lines.next_line()).await.expect("the log ends").unwrap()
    {
        seen.push(line);
    }
    let expected: Vec<String> = (1..=40).map(|number| format!("line {number}")).collect();
    assert_eq!(seen, expected, "each line once, in order");
    assert_eq!(node.kubectl(&["logs", "counts", "--tail=2"]).await, "line 39\nline 40\n");
    let stamped = node.kubectl(&["logs", "counts", "--tail=1", "--timestamps"]).await;
    assert!(stamped.starts_with("20") && stamped.ends_with(" line 40\n"), "{stamped}");
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make test"]
async fn logs_of_the_last_instance_and_since_a_time_are_shown() {
    let node = EciNode::start(ControlPlane::shared().await, "previous").await;
    let script = "n=$(cat /data/n 2>/dev/null || echo 0); n=$((n + 1)); echo $n > /data/n; echo run $n; \
                  [ $n -gt 1 ] || exit 3; sleep 3; echo late; sleep 3600";
    let mut pod = node.pod("crashes", script);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    pod["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    node.apply(&pod).await;
    eventually("the second instance has written all", LATER, || async {
        let output = node.try_kubectl(&["logs", "crashes"], "").await;
        if output.stdout == "run 2\nlate\n" { Ok(()) } else { Err(format!("{output:?}")) }
    })
    .await;
    assert_eq!(node.kubectl(&["logs", "crashes", "--previous"]).await, "run 1\n");
    let stamped = node.kubectl(&["logs", "crashes", "--timestamps", "--tail=1"]).await;
    let since = format!("--since-time={}", stamped.split_once(' ').unwrap().0);
    assert_eq!(node.kubectl(&["logs", "crashes", &since]).await, "late\n");
    assert_eq!(node.kubectl(&["logs", "crashes", "--since=1h"]).await, "run 2\nlate\n");
    let status = node.get("pod/crashes").await["status"]["containerStatuses"][0].clone();
    assert_eq!(status["restartCount"], 1, "{status:#}");
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 3, "{status:#}");
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make test"]
async fn exec_has_codes_errors_input_and_top_has_usage() {
    let node = EciNode::start(ControlPlane::shared().await, "exec").await;
    node.apply(&node.pod("shell", "while :; do sleep 1; done")).await;
    node.ready("shell").await;
    let ended =
        node.try_kubectl(&["exec", "shell", "--", "sh", "-c", "echo out; echo err >&2; exit 7"], "").await;
    assert_eq!(ended.code, Some(7), "{ended:?}");
    assert_eq!(ended.stdout, "out\n");
    assert!(ended.stderr.starts_with("err\n"), "{ended:?}");
    let ended = node
        .try_kubectl(
            &["exec", "-i", "shell", "--", "sh", "-c", "read a; read b; echo $b $a; exit 0"],
            "one\ntwo\n",
        )
        .await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "two one\n"), "{ended:?}");
    let long = "x".repeat(257);
    let ended = node.try_kubectl(&["exec", "shell", "--", "echo", &long], "").await;
    assert_ne!(ended.code, Some(0));
    assert!(ended.stderr.contains("256"), "it names the limit: {ended:?}");
    let port = super::super::kubelet_port(&super::super::node(node.cluster, &node.name).await);
    // The API server's proxy does not connect to loopback.
    let server = format!("https://127.0.0.1:{port}");
    eventually("the summary has the pod's usage", LATER, || async {
        let summary = node
            .try_kubectl(
                &["--server", &server, "--insecure-skip-tls-verify", "get", "--raw", "/stats/summary"],
                "",
            )
            .await;
        let value: serde_json::Value =
            serde_json::from_str(&summary.stdout).map_err(|_| format!("{summary:?}"))?;
        let used = &value["pods"][0]["memory"]["workingSetBytes"];
        if used.as_u64() > Some(0) { Ok(()) } else { Err(value["pods"].to_string()) }
    })
    .await;
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make test"]
async fn exec_with_a_terminal_has_its_size_and_its_code() {
    let node = EciNode::start(ControlPlane::shared().await, "terminal").await;
    node.apply(&node.pod("shell", "while :; do sleep 1; done")).await;
    node.ready("shell").await;
    // `script` allocates a terminal. The size is sent after the start, and a quick command does not see it.
    let on_terminal = async |inner: &str| {
        let kubectl = node.cluster.kubectl().unwrap().display().to_string();
        let script = format!(
            "stty cols 132 rows 43; {kubectl} --namespace {} exec -it shell -- sh -c '{inner}'",
            node.namespace.name()
        );
        let output = tokio::process::Command::new("script")
            .args(["--quiet", "--return", "--command", &script, "/dev/null"])
            .env("KUBECONFIG", node.cluster.admin_kubeconfig())
            .env("NO_PROXY", "*")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(LATER, output).await.expect("the command ends").unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, output) = on_terminal("test -t 0 && test -t 1 && sleep 1 && stty size; exit 7").await;
    assert!(output.contains("43 132"), "{output:?}");
    assert_eq!(code, Some(7), "{output:?}");
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make test"]
async fn a_pod_goes_after_its_grace_period_and_not_before() {
    let node = EciNode::start(ControlPlane::shared().await, "grace").await;
    node.apply(&node.pod("stubborn", "trap '' TERM; while :; do sleep 0.1; done")).await;
    node.ready("stubborn").await;
    let began = tokio::time::Instant::now();
    node.kubectl(&["delete", "pod/stubborn", "--wait=false"]).await;
    let group = node.emulator.groups().remove(0);
    eventually("the group is gone", LATER, || async {
        let groups = node.emulator.groups();
        if groups.is_empty() { Ok(()) } else { Err(format!("{groups:?}")) }
    })
    .await;
    assert!(began.elapsed() >= Duration::from_secs(3), "{group:?} went after {:?}", began.elapsed());
    eventually("the pod is gone", LATER, || async {
        let pods = node.get("pods").await["items"].clone();
        if pods.as_array().unwrap().is_empty() { Ok(()) } else { Err(pods.to_string()) }
    })
    .await;
    node.close().await;
}
