//! Replicas of one node: processes with one identity and one backend.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::UnixListener, task::JoinSet};
use vk_provider_mock::{
    PodHost, serve,
    simulator::{Reply, Request},
};
use vk_testing::{ControlPlane, control_plane::Namespace, eventually};

use super::super::{Process, SOON, answers, leases, node, ports, ready, run_as};

/// A node with a backend that outlives the processes, and pods for it.
pub(super) struct Stage<'a> {
    pub(super) cluster: &'a ControlPlane,
    pub(super) name: String,
    pub(super) host: PodHost,
    pub(super) pods: Api<Pod>,
    _namespace: Namespace,
    file: String,
    folder: TempDir,
    _tasks: JoinSet<()>,
}

/// One process that may run the node.
pub(super) struct Replica {
    pub(super) process: Process,
    /// Where it serves its own endpoints.
    pub(super) admin: u16,
}

/// Looks at a Node all the time, for moments in which it was not Ready.
pub(super) struct Lookout {
    tasks: JoinSet<Vec<String>>,
    enough: Arc<AtomicBool>,
}

/// A request as the API server saw it.
pub(super) struct Seen {
    pub(super) verb: String,
    pub(super) resource: String,
    pub(super) received: Timestamp,
    /// Tells the certificates of one identity apart.
    pub(super) credential: String,
    pub(super) text: String,
}

// === impl Stage ===

impl<'a> Stage<'a> {
    pub(super) async fn new(cluster: &'a ControlPlane, name: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("mock.sock");
        let host = PodHost::default();
        let mut tasks = JoinSet::new();
        let serving = serve(UnixListener::bind(&socket).unwrap(), host.clone());
        tasks.spawn(async move { serving.await.unwrap() });
        let namespace = cluster.namespace(name).await.unwrap();
        let file = format!("providerConfig: {{backend: {}, pods: 1000}}\n", socket.display());
        let pods = Api::namespaced(cluster.admin().unwrap(), namespace.name());
        Self {
            cluster,
            name: name.to_owned(),
            host,
            pods,
            _namespace: namespace,
            file,
            folder,
            _tasks: tasks,
        }
    }

    /// Starts a replica as `system:node:NAME`, with a certificate of its own.
    pub(super) fn start(&self, flags: &[&str]) -> Replica {
        let admin = ports(1);
        let kubeconfig: PathBuf = self.folder.path().join(format!("{admin}.kubeconfig"));
        let user = format!("system:node:{}", self.name);
        self.cluster.write_kubeconfig(&kubeconfig, &user, &["system:nodes"]).unwrap();
        let listen = format!("127.0.0.1:{admin}");
        let mut all = vec!["--leader-elect", "--nodename", &self.name, "--metrics-addr", &listen];
        // A replica asks for a certificate of its own, whether it leads or not.
        all.push("--rotate-server-certificates=false");
        all.extend(flags);
        Replica { process: run_as(&kubeconfig, &all).file(&self.file).start(), admin }
    }

    /// Starts one that leads, and then one that stands by.
    pub(super) async fn start_both(&self, flags: &[&str]) -> (Replica, Replica) {
        let leader = self.start(flags);
        super::super::becomes_ready(self.cluster, &self.name).await;
        assert_eq!(leader.leads(&self.name), Ok(true));
        let standby = self.start(flags);
        standby.stands_by().await;
        (leader, standby)
    }

    /// Creates a pod for the node; with a life of its own, if asked for.
    pub(super) async fn create(&self, name: &str, annotations: &[(&str, &str)]) -> Pod {
        let annotations: BTreeMap<String, &str> = annotations
            .iter()
            .map(|(key, value)| (format!("mock.virtual-kubelet.io/{key}"), *value))
            .collect();
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "nodeName": self.name,
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 1,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "app", "image": "app"}],
            },
        }));
        self.pods.create(&PostParams::default(), &pod.unwrap()).await.unwrap()
    }

    /// Waits until all pods run, and answers which containers each of them has, and since when.
    pub(super) async fn all_run(&self, count: usize) -> BTreeMap<String, String> {
        eventually("all pods run", SOON, || async {
            let pods = self.pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let running: BTreeMap<String, String> = pods.iter().filter_map(container).collect();
            if running.len() == count {
                Ok(running)
            } else {
                Err(format!("{} of {} pods", running.len(), pods.len()))
            }
        })
        .await
    }

    /// Waits until the node's lease is this process'.
    pub(super) async fn is_taken_by(&self, replica: &Replica, limit: Duration) {
        let mark = format!("/{}/", replica.process.pid());
        eventually("the lease is taken", limit, || async {
            let lease = leases(self.cluster).get(&self.name).await.map_err(|error| error.to_string())?;
            let all = lease.metadata.annotations.unwrap_or_default();
            let holder = all.get("virtual-kubelet.io/instance").cloned().unwrap_or_default();
            if holder.contains(&mark) { Ok(()) } else { Err(holder) }
        })
        .await;
    }

    /// Resolves at the very moment when the backend has had so many pods.
    pub(super) async fn has_made(&self, count: usize) {
        let made = async {
            while self.journal().len() < count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(SOON, made).await.expect("the backend gets pods");
    }

    /// How often each pod was created in the backend.
    fn journal(&self) -> BTreeMap<Arc<str>, u32> {
        let Reply::Journal(journal) = self.host.apply(Request::Journal).unwrap() else {
            panic!("no journal")
        };
        journal
    }

    /// Every pod that the backend ever had was created there once.
    pub(super) fn nothing_was_made_twice(&self) -> usize {
        let journal = self.journal();
        let twice: Vec<_> = journal.iter().filter(|(_, creations)| **creations != 1).collect();
        assert!(twice.is_empty(), "created more than once: {twice:?}");
        journal.len()
    }

    pub(super) fn lookout(&self) -> Lookout {
        let enough = Arc::new(AtomicBool::new(false));
        let (nodes, name, done) = (super::super::nodes(self.cluster), self.name.clone(), Arc::clone(&enough));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut seen = Vec::new();
            while !done.load(Ordering::Relaxed) {
                if let Ok(node) = nodes.get(&name).await {
                    let condition = ready(&json!(node));
                    if condition["status"] != "True" {
                        seen.push(condition.to_string());
                    }
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            seen
        });
        Lookout { tasks, enough }
    }

    /// What the API server was asked for by this node's identity.
    pub(super) fn requests(&self) -> Vec<Seen> {
        let log = std::fs::read_to_string(self.cluster.audit_log().unwrap()).unwrap();
        let user = format!("system:node:{}", self.name);
        log.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|entry| entry["user"]["username"] == user.as_str())
            .map(|entry| {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                Seen {
                    verb: text(&entry["verb"]),
                    resource: text(&entry["objectRef"]["resource"]),
                    received: text(&entry["requestReceivedTimestamp"]).parse().unwrap(),
                    credential: entry["user"]["extra"]["authentication.kubernetes.io/credential-id"]
                        .to_string(),
                    text: format!(
                        "{} {} {} {}",
                        entry["requestReceivedTimestamp"],
                        entry["verb"],
                        entry["requestURI"],
                        entry["responseStatus"]["code"]
                    ),
                }
            })
            .collect()
    }

    /// What somebody with this certificate asked for that changes something.
    pub(super) fn writes_of(&self, credential: &str) -> Vec<Seen> {
        let ours = |seen: &Seen| seen.credential == credential && seen.changes_something();
        self.requests().into_iter().filter(ours).collect()
    }

    /// The one certificate that was used until now.
    pub(super) fn only_credential(&self) -> String {
        let all: BTreeSet<String> = self.requests().into_iter().map(|seen| seen.credential).collect();
        assert_eq!(all.len(), 1, "{all:?}");
        all.into_iter().next().unwrap()
    }

    /// The certificate that is not this one.
    pub(super) fn other_credential(&self, one: &str) -> String {
        let other = self.requests().into_iter().map(|seen| seen.credential).find(|seen| seen != one);
        other.unwrap()
    }

    pub(super) async fn is_ready(&self) -> bool {
        ready(&node(self.cluster, &self.name).await)["status"] == "True"
    }
}

fn container(pod: &Pod) -> Option<(String, String)> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let since = status.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0;
    let id = status.container_id.as_ref()?;
    Some((pod.metadata.name.clone()?, format!("{id} since {since}, {} restarts", status.restart_count)))
}

// === impl Replica ===

impl Replica {
    /// Whether it says that it leads the node.
    pub(super) fn leads(&self, node: &str) -> Result<bool, String> {
        let (_, metrics) = super::super::get(self.admin, "/metrics")?;
        let line = |value: u8| format!("virtual_kubelet_node_leader{{node=\"{node}\"}} {value}\n");
        match (metrics.contains(&line(1)), metrics.contains(&line(0))) {
            (true, false) => Ok(true),
            (false, true) => Ok(false),
            _ => Err(metrics),
        }
    }

    /// Waits until it is ready to take over.
    pub(super) async fn stands_by(&self) {
        eventually("it stands by", SOON, || async {
            let (code, answer) = super::super::get(self.admin, "/readyz")?;
            if code == 200 && answer.contains("standing by") { Ok(()) } else { Err(answer) }
        })
        .await;
        answers(self.admin, "/healthz", 200, SOON).await;
    }
}

// === impl Lookout ===

impl Lookout {
    /// The node was Ready whenever one looked.
    pub(super) async fn saw_nothing(mut self) {
        self.enough.store(true, Ordering::Relaxed);
        let seen = self.tasks.join_next().await.unwrap().unwrap();
        assert!(seen.is_empty(), "{seen:#?}");
    }
}

// === impl Seen ===

impl Seen {
    fn changes_something(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch") && self.resource != "selfsubjectreviews"
    }
}
