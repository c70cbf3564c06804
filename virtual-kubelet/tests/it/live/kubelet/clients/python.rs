//! The official Python client with its own WebSocket code, which offers v5 and v4 for everything. The calls are in
//! `dev/python-client/calls.py`; one process makes them all, because it takes seconds to load.

use std::{path::Path, process::Stdio, time::Duration};

use serde_json::{Value, json};
use tokio::process::Command;
use vk_testing::kubectl_matrix::KubectlSession;

use super::{WAYS, served};

/// Long enough for a busy machine.
const LIMIT: Duration = Duration::from_mins(3);

/// The interpreter, with the client installed if need be.
async fn interpreter(folder: &Path) -> String {
    let output = Command::new(folder.join("build")).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "no Python client: dev/python-client/build says: {said}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Makes all calls, and answers what came of them.
async fn calls(stage: &KubectlSession) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dev/python-client");
    let mut command = Command::new(interpreter(&folder).await);
    command.arg(folder.join("calls.py")).arg(&stage.target.kubeconfig).args([&stage.namespace, "web"]);
    command.env("NO_PROXY", "*").env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(LIMIT, command.output()).await.expect("an end in time").unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "calls.py: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn the_python_client_execs_forwards_ports_and_reads_logs() {
    for way in WAYS {
        let served = served("python", way).await;
        let stage = served.stage().await;
        let seen = calls(&stage).await;

        assert_eq!(seen["simple"], "hello world\n", "{way:?}: {seen}");
        let errors = &seen["errors"];
        assert_eq!((&errors["out"], &errors["err"]), (&json!(""), &json!("oops\n")), "{way:?}: {seen}");
        assert_eq!(seen["codes"], json!([0, 1, 42, 137]), "{way:?}: {seen}");
        let whole = json!({"protocol": "v5.channel.k8s.io", "ended": true, "out": "one\ntwo\n", "err": "", "code": 0});
        assert_eq!(seen["input"], whole, "{way:?}");
        assert_eq!(seen["much"], 300_000, "{way:?}");
        let refused = seen["unknown container"].as_str().unwrap();
        assert!(refused.contains("container nobody is not valid"), "{way:?}: {refused}");

        let answer = seen["http"]["answer"].as_str().unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello from web\n"),
            "{way:?}: {answer}"
        );
        assert_eq!(seen["http"]["error"], Value::Null, "{way:?}");
        assert_eq!(seen["echo"], json!({"same": true, "length": 300_000}), "{way:?}");
        let closed = seen["closed port"].as_str().unwrap_or_default();
        assert!(closed.contains("connection refused"), "{way:?}: {seen}");

        let log = |part: &str| seen["log"][part].as_str().unwrap().to_owned();
        assert!(log("first").ends_with('\n') && log("whole").starts_with(&log("first")), "{way:?}: {seen}");
        assert_eq!((log("bytes").as_str(), log("tail").lines().count()), (&log("whole")[..5], 1), "{way:?}");
        let time: Result<jiff::Timestamp, _> = log("tail").split(' ').next().unwrap().parse();
        assert!(time.is_ok(), "{way:?}: {seen}");
        stage.close().await;
        served.no_sessions().await;
    }
}
