//! References of many pods.

use std::{
    fs::{self, File},
    process::{Command, Stdio},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::Instant,
};
use vk_testing::{ControlPlane, Process, Usage, eventually};

const NODE: &str = "cycles";
const KUBELET_PORT: u16 = 18_460;
const METRICS_PORT: u16 = 18_461;
const PATIENCE: Duration = Duration::from_mins(2);
/// Pods at a time.
const BATCH: usize = 100;

fn cycles() -> usize {
    std::env::var("VK_CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000)
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// A pod with an environment of its own, files that it shares, and now and then a token.
fn pod(index: usize) -> Pod {
    let env = json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": format!("own-{}", index % BATCH), "key": "a"}}}]);
    let mut sources = vec![json!({"configMap": {"name": "shared"}})];
    if index.is_multiple_of(10) {
        sources.push(json!({"serviceAccountToken": {"path": "token", "audience": "vault"}}));
    }
    object(json!({
        "metadata": {"name": format!("pod-{}", index % BATCH)},
        "spec": {
            "nodeName": NODE,
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "example.com/app:1", "env": env}],
            "volumes": [
                {"name": "files", "projected": {"sources": sources}},
                {"name": "own", "secret": {"secretName": format!("own-{}", index % BATCH)}}
            ]
        }
    }))
}

async fn metric(name: &str) -> Option<f64> {
    let mut stream = TcpStream::connect(("127.0.0.1", METRICS_PORT)).await.ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_pods_come_and_go_and_no_watch_stays_open() {
    let begun = Instant::now();
    let cluster = ControlPlane::shared().await;
    let folder = TempDir::new().unwrap();
    let namespace = cluster.namespace("cycles").await.unwrap().name().to_owned();
    let admin = cluster.admin().unwrap();
    let secrets = Api::<Secret>::namespaced(admin.clone(), &namespace);
    for index in 0..BATCH {
        let own = json!({"metadata": {"name": format!("own-{index}")}, "stringData": {"a": "1"}});
        secrets.create(&PostParams::default(), &object(own)).await.unwrap();
    }
    let maps = Api::<ConfigMap>::namespaced(admin.clone(), &namespace);
    let shared = json!({"metadata": {"name": "shared"}, "data": {"a": "1"}});
    maps.create(&PostParams::default(), &object(shared)).await.unwrap();

    let kubeconfig = folder.path().join("kubeconfig");
    cluster.write_kubeconfig(&kubeconfig, &format!("system:node:{NODE}"), &["system:nodes"]).unwrap();
    let config = folder.path().join("vk.yaml");
    let text = format!(
        "provider: mock\nnodeName: {NODE}\nport: {KUBELET_PORT}\nmetricsAddr: '127.0.0.1:{METRICS_PORT}'\n\
         log: {{level: warn}}\nproviderConfig: {{pods: 1000, volumes: true, life: {{keepEnded: 0s}}}}\n"
    );
    fs::write(&config, text).unwrap();
    let log = folder.path().join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtual-kubelet"));
    command.arg("run").arg("--config").arg(&config).arg("--kubeconfig").arg(&kubeconfig);
    command.env_clear().env("HOME", folder.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
    let process = Process::spawn(&mut command).unwrap();
    let nodes = Api::<Node>::all(admin.clone());
    eventually("the node is there", PATIENCE, || async {
        let words = || fs::read_to_string(&log).unwrap_or_default();
        let node = nodes.get(NODE).await.map_err(|error| format!("{error}; it says {}", words()))?;
        let ready = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = ready.into_iter().any(|one| one.type_ == "Ready" && one.status == "True");
        if ready { Ok(()) } else { Err(words()) }
    })
    .await;

    let pods = Api::<Pod>::namespaced(admin, &namespace);
    let (mut done, mut most) = (0, 0.0_f64);
    while done < cycles() {
        let creates = stream::iter(done..done + BATCH).map(|index| {
            let pods = pods.clone();
            async move { drop(pods.create(&PostParams::default(), &pod(index)).await.unwrap()) }
        });
        creates.buffer_unordered(16).collect::<()>().await;
        let count = |running: bool| {
            let pods = pods.clone();
            async move {
                let list = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
                let is_running = |pod: &&Pod| {
                    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
                };
                let (all, up) = (list.items.len(), list.items.iter().filter(is_running).count());
                let wanted = if running { up == BATCH } else { all == 0 };
                if wanted { Ok(()) } else { Err(format!("{all} pods, {up} running")) }
            }
        };
        eventually("a batch runs", PATIENCE, || count(true)).await;
        most = most.max(metric("virtual_kubelet_object_watches").await.unwrap());
        pods.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
        eventually("a batch is gone", PATIENCE, || count(false)).await;
        done += BATCH;
    }
    assert!(most > 50.0, "{most} watches at most");
    eventually("no watch stays open", PATIENCE, || async {
        let open = metric("virtual_kubelet_object_watches").await;
        if open == Some(0.0) { Ok(()) } else { Err(format!("{open:?} are open")) }
    })
    .await;
    let usage = Usage::of(process.id()).unwrap();
    println!(
        "{done} pods came and went in {:.1?}, {most} objects watched at most, 0 at the end; {usage:?}",
        begun.elapsed()
    );
}
