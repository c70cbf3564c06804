//! A backend that reports inconsistent pods, with the real command.

use std::{path::Path, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream, unix::OwnedWriteHalf},
    sync::Mutex,
    task::JoinSet,
};
use vk_testing::{
    ControlPlane,
    control_plane::{AUDIT_METADATA, Options},
    eventually, kubectl,
};

use super::{SOON, becomes_ready, problem_pods::writes, run};

/// The pods and the status that it reports. It uses the protocol of `vk-mock-backend`.
#[derive(Default)]
struct InconsistentBackend {
    status: Value,
    pods: Vec<Value>,
    /// Connected clients.
    listeners: Vec<OwnedWriteHalf>,
}

/// How often each inconsistent status is repeated.
const REPEATED: usize = 50;

async fn serve(listener: UnixListener, backend: Arc<Mutex<InconsistentBackend>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(answer(stream, Arc::clone(&backend)));
    }
}

async fn answer(stream: UnixStream, backend: Arc<Mutex<InconsistentBackend>>) {
    let (read, write) = stream.into_split();
    let mine = {
        let mut backend = backend.lock().await;
        backend.listeners.push(write);
        backend.listeners.len() - 1
    };
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let line: Value = serde_json::from_str(&line).unwrap();
        let Some(ask) = line.get("ask") else { continue };
        let mut backend = backend.lock().await;
        let said = backend.reply(&ask["request"]);
        let text = format!("{}\n", json!({"answer": {"id": ask["id"], "answer": said}}));
        if backend.listeners[mine].write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

// === impl InconsistentBackend ===

impl InconsistentBackend {
    fn reply(&mut self, request: &Value) -> Value {
        let gone = json!({"failed": {"kind": "NotFound", "message": "no such pod"}});
        let known = |pods: &[Value], pod: &Value| pods.iter().any(|known| known["uid"] == pod["uid"]);
        if let Some(desired) = request.get("create").or_else(|| request.get("update")) {
            let meta = &desired["pod"]["metadata"];
            let pod = json!({"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]});
            if !known(&self.pods, &pod) {
                self.pods.push(pod);
            }
        } else if let Some(list) = request.get("list") {
            let listed = |pod: &Value| json!({"pod": pod, "node": list["node"], "status": self.status});
            return json!({"ok": {"pods": self.pods.iter().map(listed).collect::<Vec<_>>()}});
        } else if let Some(pod) = request.get("status") {
            return if known(&self.pods, pod) { json!({"ok": {"status": self.status}}) } else { gone };
        } else if let Some(delete) = request.get("delete") {
            let count = self.pods.len();
            self.pods.retain(|pod| pod["uid"] != delete["pod"]["uid"]);
            if self.pods.len() == count {
                return gone;
            }
        }
        json!({"ok": "done"})
    }

    /// Reports this status for all pods from now on, repeatedly to all clients.
    async fn say(&mut self, status: &Value) {
        self.status = status.clone();
        for pod in self.pods.clone() {
            let text = format!("{}\n", json!({"change": {"pod": pod, "status": status}}));
            for listener in &mut self.listeners {
                // The client may be gone.
                drop(listener.write_all(text.as_bytes()).await);
            }
        }
    }
}

fn container(name: &str, state: &Value) -> Value {
    json!({
        "name": name, "image": "example.com/app:1", "imageID": "", "containerID": "backend://1", "ready": true,
        "started": true, "restartCount": 0, "state": state,
    })
}

fn sense() -> Value {
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    json!({"phase": "Running", "podIP": "10.9.8.7", "containerStatuses": [container("main", &running)]})
}

fn lies() -> Vec<(&'static str, Value)> {
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let both = json!({"running": {}, "terminated": {"exitCode": 1}});
    let with = |change: &dyn Fn(&mut Value)| {
        let mut status = sense();
        change(&mut status);
        status
    };
    vec![
        ("a phase that there is not", with(&|status| status["phase"] = "Sideways".into())),
        ("a phase that goes back", with(&|status| status["phase"] = "Pending".into())),
        (
            "containers of somebody else",
            with(&|status| {
                status["containerStatuses"] = (0..30)
                    .map(|number| container(&format!("stranger-{number}"), &running))
                    .chain([container("main", &running)])
                    .collect();
            }),
        ),
        ("two states at once", with(&|status| status["containerStatuses"][0]["state"] = both.clone())),
        ("no address", with(&|status| status["podIP"] = "around the corner".into())),
        (
            "less than no restarts",
            with(&|status| status["containerStatuses"][0]["restartCount"] = (-7).into()),
        ),
        ("nothing at all", json!({})),
        ("a long story", with(&|status| status["message"] = "so ".repeat(100_000).into())),
    ]
}

async fn pod(cluster: &ControlPlane, namespace: &str) -> Value {
    let found = kubectl(cluster, ["get", "pod", "web", "-n", namespace, "-o", "json"]).await.unwrap();
    serde_json::from_str(&found.stdout).unwrap_or_default()
}

async fn runs(cluster: &ControlPlane, namespace: &str) {
    eventually("the pod runs", SOON, || async {
        let status = pod(cluster, namespace).await["status"].clone();
        let sane = status["phase"] == "Running"
            && status["podIP"] == "10.9.8.7"
            && status["containerStatuses"][0]["ready"] == true
            && status["containerStatuses"][0]["restartCount"] == 0;
        if sane { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn nonsense_of_a_backend_costs_few_writes_and_is_over_when_it_speaks_sense_again() {
    let options = Options { audit_policy: Some(AUDIT_METADATA.to_owned()), ..Options::default() };
    let cluster = ControlPlane::start(options).await.unwrap();
    let namespace = cluster.namespace("backend").await.unwrap().name().to_owned();
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("backend.sock");
    let backend =
        Arc::new(Mutex::new(InconsistentBackend { status: sense(), ..InconsistentBackend::default() }));
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(UnixListener::bind(&socket).unwrap(), Arc::clone(&backend)));
    let file = format!("providerConfig: {{backend: {}}}\n", socket.display());
    let mut process = run(&cluster, &["--nodename", "backend", "--log-level", "warn"]).file(&file).start();
    becomes_ready(&cluster, "backend").await;
    create(&cluster, &namespace, folder.path()).await;
    runs(&cluster, &namespace).await;

    let mut told = 0;
    for (lie, status) in lies() {
        let before = writes(&cluster, "web");
        for _ in 0..REPEATED {
            backend.lock().await.say(&status).await;
            // Slow enough that they are not coalesced.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        backend.lock().await.say(&sense()).await;
        runs(&cluster, &namespace).await;
        let after = writes(&cluster, "web");
        let (statuses, events) = (after.0 - before.0, after.1 - before.1);
        assert!(statuses <= 2, "{lie}: {statuses} writes of the status");
        assert!(events <= 3, "{lie}: {events} writes of events");
        told += events;
        assert!(process.is_running(), "{lie}");
    }
    assert!(told > 0, "nobody was told");
    assert_eq!(pod(&cluster, &namespace).await["status"]["containerStatuses"].as_array().unwrap().len(), 1);
    let deleted =
        kubectl(&cluster, ["delete", "pod", "web", "-n", &namespace, "--timeout=30s"]).await.unwrap();
    assert!(deleted.success(), "{deleted:?}");
    assert!(backend.lock().await.pods.is_empty());
    assert_eq!(process.stop(SOON).await.code, 0);
}

async fn create(cluster: &ControlPlane, namespace: &str, folder: &Path) {
    let path = folder.join("pod.json");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "nodeName": "backend",
            "tolerations": [{"operator": "Exists"}],
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "example.com/app:1"}],
        },
    });
    std::fs::write(&path, pod.to_string()).unwrap();
    let created = kubectl(cluster, ["create", "-f", path.to_str().unwrap()]).await.unwrap();
    assert!(created.success(), "{created:?}");
}
