//! A control plane ends with the process that started it, no matter how that process ends.
//!
//! The parent process is this test binary, which runs `a_parent`; an environment variable selects how it ends.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use vk_testing::control_plane::{Options, SHARED_CONTROL_PLANES};
use vk_testing::{ControlPlane, eventually};

/// Selects how the parent ends; unset in ordinary test runs.
const ENDING: &str = "VK_TESTING_ENDING";
const MARK: &str = "control planes: ";
const SOON: Duration = Duration::from_secs(20);

/// A parent process and what it started.
struct Started {
    parent: Child,
    /// Kept open: the parent's test harness writes to it at the end.
    _stdout: Lines<BufReader<ChildStdout>>,
    pids: Vec<u32>,
    folders: Vec<PathBuf>,
}

/// Not a test: the parent process of the tests below.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_parent() {
    let Ok(ending) = std::env::var(ENDING) else { return };
    // Unwinding drops one of them; nothing drops the other.
    let own = ControlPlane::start(Options::default()).await.unwrap();
    let shared = ControlPlane::shared().await;
    let mut started = Vec::new();
    for cluster in [&own, shared] {
        let pids: Vec<u32> = cluster.pids().await.into_iter().map(|(_, pid)| pid).collect();
        started.push(json!({ "pids": pids, "folder": cluster.data_dir().parent() }));
    }
    println!("\n{MARK}{}", json!(started));
    match ending.as_str() {
        "panic" => panic!("as asked"),
        "exit" => std::process::exit(0),
        "return" => {}
        _ => std::future::pending().await,
    }
}

async fn start_parent(ending: &str) -> Started {
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["cleanup::a_parent", "--exact", "--include-ignored", "--nocapture"])
        .env(ENDING, ending)
        .env_remove(SHARED_CONTROL_PLANES)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let started: Value = loop {
        let line = lines.next_line().await.unwrap().expect("the parent starts its control planes");
        if let Some(text) = line.strip_prefix(MARK) {
            break serde_json::from_str(text).unwrap();
        }
    };
    let clusters = started.as_array().unwrap();
    let pids = clusters.iter().flat_map(|cluster| cluster["pids"].as_array().unwrap());
    let pids: Vec<u32> = pids.map(|pid| u32::try_from(pid.as_u64().unwrap()).unwrap()).collect();
    let folders = clusters.iter().map(|cluster| PathBuf::from(cluster["folder"].as_str().unwrap())).collect();
    assert_eq!(pids.len(), 4, "etcd and the API server, twice");
    Started { parent, _stdout: lines, pids, folders }
}

/// Whether the process runs: a zombie has no command line.
fn runs(pid: u32) -> bool {
    std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).is_ok_and(|line| !line.is_empty())
}

impl Started {
    async fn nothing_remains(&self) {
        eventually("no process and no folder remains", SOON, || async {
            let pids: Vec<_> = self.pids.iter().filter(|&&pid| runs(pid)).collect();
            let folders: Vec<_> = self.folders.iter().filter(|folder| folder.exists()).collect();
            if pids.is_empty() && folders.is_empty() { Ok(()) } else { Err(format!("{pids:?} {folders:?}")) }
        })
        .await;
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_killed_parent_leaves_nothing() {
    let mut started = start_parent("wait").await;
    assert!(started.pids.iter().all(|&pid| runs(pid)));
    assert!(started.folders.iter().all(|folder| folder.is_dir()));
    started.parent.kill().await.unwrap();
    started.nothing_remains().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_panicking_parent_leaves_nothing() {
    let mut started = start_parent("panic").await;
    assert_eq!(started.parent.wait().await.unwrap().code(), Some(101));
    started.nothing_remains().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_parent_that_exits_without_dropping_leaves_nothing() {
    for ending in ["exit", "return"] {
        let mut started = start_parent(ending).await;
        assert_eq!(started.parent.wait().await.unwrap().code(), Some(0));
        started.nothing_remains().await;
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_dropped_control_plane_is_gone_when_the_drop_returns() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let pids = cluster.pids().await;
    let folder = cluster.data_dir().parent().unwrap().to_owned();
    assert!(folder.is_dir());
    // A paused component handles no signal but SIGKILL.
    cluster.pause_api_server().await.unwrap();
    drop(cluster);
    assert!(pids.iter().all(|&(_, pid)| !runs(pid)));
    assert!(!folder.exists());
}
