//! Whether copies are in use, for many copies and many virtual nodes at once.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt as _;
use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};
use vk_kube::{Client, Kind, Metrics, Objects, Patch};
use vk_provider::PodEvent;
use vk_provider_cluster::{
    copies::{Copier, CopierOptions, KeptMetadata},
    lower_cluster::{LowerCluster, LowerClusterOptions},
    names::{NamespaceMapping, ORIGIN, ORIGIN_NAME, ORIGIN_NAMESPACE, OwnerId},
};
use vk_supervisor::{Clock, Supervisor};
use vk_testing::{ControlPlane, eventually};

use crate::{
    fake_api_server::{DEADLINE, FakeApiServer, ScriptedAnswer, status},
    scripted_cluster::{ScriptedCluster, lower_pod},
};

const PODS: &str = "/api/v1/namespaces/web/pods";

/// The ConfigMaps that an earlier process copied and nobody uses, and virtual nodes that find them.
struct LeftCopies {
    server: FakeApiServer,
    supervisor: Supervisor,
    lower_cluster: LowerCluster,
    _copiers: Vec<(Copier, mpsc::Receiver<PodEvent>)>,
}

fn copy(number: usize) -> Value {
    let name = format!("copy-{number}");
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "namespace": "web", "name": name, "uid": format!("u{number}"), "resourceVersion": "7",
        "labels": {ORIGIN: "upper"}, "annotations": {ORIGIN_NAMESPACE: "web", ORIGIN_NAME: name}}})
}

async fn server(copies: usize) -> FakeApiServer {
    let cluster = cluster(copies);
    FakeApiServer::start(move |request| cluster.answer(request)).await
}

fn cluster(copies: usize) -> ScriptedCluster {
    let mut cluster = ScriptedCluster::default();
    cluster.watched.insert("configmaps", (0..copies).map(copy).collect());
    let none =
        json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": []});
    cluster.live.insert(PODS.to_owned(), none);
    cluster
}

impl LeftCopies {
    fn new(server: FakeApiServer, nodes: usize) -> Self {
        let supervisor = Supervisor::new();
        let client = &server.client;
        let lower_cluster = LowerCluster::start(LowerClusterOptions {
            client: client.clone(),
            origin: "upper".to_owned(),
            cluster: None,
            namespaces: NamespaceMapping::Same,
            autoscales: false,
            supervisor: supervisor.clone(),
        });
        let start = |number: usize| {
            let (sender, events) = mpsc::channel(16);
            let copier = Copier::new(CopierOptions {
                upper: client.clone(),
                claims: None,
                upper_watches: None,
                lower: client.clone(),
                lower_cluster: lower_cluster.clone(),
                owner: OwnerId { origin: "upper".to_owned(), node: format!("vk-{number}") },
                namespaces: NamespaceMapping::Same,
                storage_classes: BTreeMap::new(),
                metadata: KeptMetadata::default(),
                supervisor: supervisor.clone(),
                events: sender,
                grace: Duration::ZERO,
                namespace_retention: Duration::from_hours(1),
                clock: Clock::system(),
            });
            (copier, events)
        };
        let copiers = (0..nodes).map(start).collect();
        Self { server, supervisor, lower_cluster, _copiers: copiers }
    }

    /// How often the pods of the namespace were listed.
    fn lists(&self) -> usize {
        let asked = self.server.asked();
        asked.iter().filter(|request| request.path == PODS && !request.query.contains("watch=true")).count()
    }

    fn deletions(&self) -> usize {
        self.server.asked().iter().filter(|request| request.method == Method::DELETE).count()
    }
}

impl Drop for LeftCopies {
    fn drop(&mut self) {
        self.supervisor.stop();
    }
}

#[tokio::test]
async fn a_use_check_does_not_wait_for_writes() {
    let server = server(1).await;
    let limiter = server.client.write_limiter();
    let all = u32::try_from(limiter.available_permits()).unwrap();
    let writing = limiter.acquire_many_owned(all).await.unwrap();
    let left = LeftCopies::new(server, 1);
    eventually("pods are listed", DEADLINE, || async {
        if left.lists() > 0 { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    assert_eq!(left.deletions(), 0, "that is a write");
    drop(writing);
    eventually("the copy is deleted", DEADLINE, || async {
        if left.deletions() > 0 { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
}

#[tokio::test]
async fn virtual_nodes_share_the_lists_of_pods() {
    const NODES: usize = 20;
    const COPIES: usize = 10;
    let left = LeftCopies::new(server(COPIES).await, NODES);
    eventually("each node deletes each copy", DEADLINE, || async {
        let deletions = left.deletions();
        if deletions >= NODES * COPIES { Ok(()) } else { Err(format!("{deletions} deletions")) }
    })
    .await;
    let lists = left.lists();
    assert!(lists < NODES, "{lists} lists of pods for {NODES} nodes");
}

#[tokio::test]
async fn virtual_nodes_share_a_list_of_pods_that_fails() {
    let cluster = cluster(10);
    let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let lists = Arc::clone(&times);
    let server = FakeApiServer::start(move |request| {
        if request.path != PODS || request.query.contains("watch=true") {
            return cluster.answer(request);
        }
        let mut lists = lists.lock();
        lists.push(Instant::now());
        match lists.len() {
            1 => status(500, "InternalError", "overloaded"),
            _ => cluster.answer(request),
        }
    })
    .await;
    let left = LeftCopies::new(server, 20);
    eventually("copies are deleted", DEADLINE, || async {
        if left.deletions() > 0 { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    let times = times.lock().clone();
    let between = times[1] - times[0];
    assert!(between > Duration::from_secs(1), "all ask again at once, after {between:?}");
}

#[tokio::test]
async fn a_copy_whose_first_pod_appears_after_the_use_check_is_not_deleted() {
    let cluster = cluster(2);
    let (first_pod, pods) = futures::channel::mpsc::unbounded();
    let pods = Mutex::new(Some(pods));
    let server = FakeApiServer::start(move |request| {
        let is_pod_watch = request.path.ends_with("/pods") && request.query.contains("watch=true");
        // Pods of others have a selector of their own.
        let pods = if is_pod_watch && !request.query.contains("%21%3D") { pods.lock().take() } else { None };
        pods.map_or_else(|| cluster.answer(request), |pods| ScriptedAnswer::Stream(pods.boxed()))
    })
    .await;
    let limiter = server.client.write_limiter();
    let all = limiter.available_permits();
    let writing = Arc::clone(&limiter).acquire_many_owned(u32::try_from(all).unwrap()).await.unwrap();
    let left = LeftCopies::new(server, 1);
    eventually("pods are listed", DEADLINE, || async {
        if left.lists() > 0 { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;

    let mut pod = lower_pod("Pending", &json!({"waiting": {}}));
    pod["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": "copy-0"}}]);
    let end = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
        "resourceVersion": "8", "annotations": {"k8s.io/initial-events-end": "true"}}});
    for line in [json!({"type": "ADDED", "object": pod}), json!({"type": "BOOKMARK", "object": end})] {
        first_pod.unbounded_send(Ok(Bytes::from(format!("{line}\n")))).unwrap();
    }
    eventually("the pod is known", DEADLINE, || async {
        left.lower_cluster.check_synced().map_err(|error| error.report())
    })
    .await;
    drop(writing);
    eventually("all writes are done", DEADLINE, || async {
        let done = left.deletions() > 0 && limiter.available_permits() == all;
        if done { Ok(()) } else { Err(format!("{} deletions", left.deletions())) }
    })
    .await;
    let deleted = left.server.asked().into_iter().filter(|request| request.method == Method::DELETE);
    let deleted: Vec<String> = deleted.map(|request| request.path).collect();
    assert!(deleted.iter().all(|path| path.ends_with("/copy-1")), "{deleted:?}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_version_that_was_changed_meanwhile_is_not_deleted() {
    let cluster = ControlPlane::shared().await;
    let namespace = cluster.namespace("versions").await.unwrap();
    let client = Client::fixed(cluster.admin().unwrap(), Metrics::default());
    let maps: Objects<ConfigMap> = Objects::namespaced(client, namespace.name());
    let map = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
    let old = maps.create(&map).await.unwrap().metadata;
    let new = maps.patch("a", Patch::Merge(&json!({"data": {"key": "1"}}))).await.unwrap().metadata;
    let [uid, old, new] = [old.uid, old.resource_version, new.resource_version].map(Option::unwrap);
    let refused = maps.delete_version("a", &uid, &old).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Conflict);
    maps.delete_version("a", &uid, &new).await.unwrap();
}
