//! The process is killed at any moment while pods come, change and go. The pods live in a backend that goes on, so whatever
//! the next process makes of them shows: nothing may be lost, left over or made twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;
use tempfile::TempDir;
use tokio::{net::UnixListener, task::JoinSet, time::Instant};
use vk_provider_mock::{
    PodHost, serve,
    simulator::{Reply, Request},
};
use vk_testing::{ControlPlane, eventually};

use super::{Process, run};

const NODE: &str = "crash";
/// People who work at the same time, each on pods of their own.
const HANDS: usize = 4;
/// Time enough for a leftover, which is removed only when it was seen twice in two minutes.
const PATIENCE: Duration = Duration::from_mins(4);

/// A number that `make e2e` makes larger.
fn number<T: FromStr>(name: &str, usual: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn pod(name: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": NODE,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "app", "image": "app"}],
        },
    }))
    .unwrap()
}

/// One who creates, labels and deletes pods until it is enough. Some are forced, where there is time to clean up after it.
struct Hand {
    pods: Api<Pod>,
    names: Vec<String>,
    rng: StdRng,
    forces: bool,
    enough: Arc<AtomicBool>,
    done: Arc<[AtomicUsize; 3]>,
}

impl Hand {
    async fn work(mut self) {
        for name in self.names.clone() {
            self.create(&name).await;
        }
        while !self.enough.load(Ordering::Relaxed) {
            let name = self.names[self.rng.random_range(0..self.names.len())].clone();
            match self.rng.random_range(0..3) {
                0 => self.create(&name).await,
                1 => self.label(&name).await,
                _ => self.delete(&name).await,
            }
            tokio::time::sleep(Duration::from_millis(self.rng.random_range(1..30))).await;
        }
    }

    async fn create(&self, name: &str) {
        if self.pods.create(&PostParams::default(), &pod(name)).await.is_ok() {
            self.done[0].fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn label(&mut self, name: &str) {
        let label = json!({"metadata": {"labels": {"edit": self.rng.random_range(0..1000).to_string()}}});
        if self.pods.patch(name, &PatchParams::default(), &Patch::Merge(&label)).await.is_ok() {
            self.done[1].fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn delete(&mut self, name: &str) {
        let grace = if self.forces && self.rng.random_bool(0.1) { 0 } else { self.rng.random_range(1..3) };
        let params = DeleteParams { grace_period_seconds: Some(grace), ..DeleteParams::default() };
        if self.pods.delete(name, &params).await.is_ok() {
            self.done[2].fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn ask(host: &PodHost, request: Request) -> Reply {
    host.apply(request).unwrap()
}

/// UIDs in the backend, and what they are.
fn in_backend(host: &PodHost) -> BTreeMap<String, String> {
    let Reply::Pods(pods) = ask(host, Request::List { node: NODE.into() }) else { panic!("not a list") };
    pods.into_iter()
        .map(|listed| (listed.pod.uid.to_string(), listed.status.phase.unwrap_or_default()))
        .collect()
}

/// Whether both sides have the same pods, all of them running.
async fn agree(pods: &Api<Pod>, host: &PodHost) -> Result<usize, String> {
    let list = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
    let mut wrong = Vec::new();
    let mut say = |uid: &str, what: &dyn Display| wrong.push(format!("{uid} {what}"));
    let backend = in_backend(host);
    let mut known = BTreeSet::new();
    for pod in &list.items {
        let uid = pod.metadata.uid.clone().unwrap();
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
        let there = backend.get(&uid).map_or("not there", String::as_str);
        if pod.metadata.deletion_timestamp.is_some() {
            say(&uid, &"is still being deleted");
        } else if (phase.as_str(), there) != ("Running", "Running") {
            say(&uid, &format!("is {phase} in the API server and {there} in the backend"));
        }
        known.insert(uid);
    }
    for uid in backend.keys().filter(|uid| !known.contains(*uid)) {
        say(uid, &"is left over in the backend");
    }
    if wrong.is_empty() {
        Ok(known.len())
    } else {
        Err(format!("{} pods: {}", wrong.len(), wrong.join(", ")))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_process_that_is_killed_at_any_moment_loses_nothing_leaves_nothing_and_makes_nothing_twice() {
    let (kills, count): (usize, usize) = (number("VK_CRASHES", 10), number("VK_CRASH_PODS", 100));
    let seed: u64 = number("VK_SEED", 1);
    let forces = kills > 50;
    let cluster = ControlPlane::shared().await;
    let namespace = cluster.namespace("crash").await.unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.admin().unwrap(), namespace.name());

    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("mock.sock");
    let host = PodHost::default();
    let mut tasks = JoinSet::new();
    let serving = serve(UnixListener::bind(&socket).unwrap(), host.clone());
    tasks.spawn(async move { serving.await.unwrap() });
    let file = format!(
        "providerConfig: {{backend: {}, pods: 1000, life: {{startDelay: 20ms, stopDelay: 300ms, keepEnded: 1s}}}}\n",
        socket.display()
    );
    let start =
        || -> Process { run(cluster, &["--nodename", NODE, "--log-level", "warn"]).file(&file).start() };

    let begun = Instant::now();
    let (enough, done) = (Arc::new(AtomicBool::new(false)), Arc::new([0, 0, 0].map(AtomicUsize::new)));
    let mut hands = JoinSet::new();
    for hand in 0..HANDS {
        let names = (hand..count).step_by(HANDS).map(|index| format!("pod-{index}")).collect();
        let rng = StdRng::seed_from_u64(seed + hand as u64);
        let (pods, enough, done) = (pods.clone(), Arc::clone(&enough), Arc::clone(&done));
        hands.spawn(Hand { pods, names, rng, forces, enough, done }.work());
    }
    let mut rng = StdRng::seed_from_u64(seed);
    let mut process = start();
    for _ in 0..kills {
        // Sometimes before it has done anything, sometimes in the midst of it.
        tokio::time::sleep(Duration::from_millis(rng.random_range(50..1500))).await;
        process.kill();
        process = start();
    }
    enough.store(true, Ordering::Relaxed);
    while let Some(ended) = hands.join_next().await {
        ended.unwrap();
    }
    let (stormy, calm) = (begun.elapsed(), Instant::now());
    let patience = if forces { PATIENCE } else { Duration::from_secs(30) };
    let running =
        eventually("API server and backend agree", patience, || async { agree(&pods, &host).await }).await;

    let Reply::Journal(journal) = ask(&host, Request::Journal) else { panic!("not a journal") };
    let twice: Vec<_> = journal.iter().filter(|(_, creations)| **creations != 1).collect();
    assert!(twice.is_empty(), "created more than once: {twice:?}");
    let [created, labelled, deleted] = [0, 1, 2].map(|index| done[index].load(Ordering::Relaxed));
    println!(
        "seed {seed}: {kills} kills in {stormy:.1?} over {created} creations, {labelled} labels and {deleted} deletions; \
         {} pods came to the backend, {running} run; agreed after {:.1?}",
        journal.len(),
        calm.elapsed()
    );
    pods.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
}
