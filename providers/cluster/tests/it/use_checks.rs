//! Whether copies are in use, for many copies and many virtual nodes at once.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use vk_provider::PodEvent;
use vk_provider_cluster::{
    copies::{Copier, CopierOptions, KeptMetadata},
    lower_cluster::{LowerCluster, LowerClusterOptions},
    names::{NamespaceMapping, ORIGIN, ORIGIN_NAME, ORIGIN_NAMESPACE, OwnerId},
};
use vk_supervisor::{Clock, Supervisor};
use vk_testing::eventually;

use crate::{
    fake_api_server::{DEADLINE, FakeApiServer},
    scripted_cluster::ScriptedCluster,
};

const PODS: &str = "/api/v1/namespaces/web/pods";

/// The ConfigMaps that an earlier process copied and nobody uses, and virtual nodes that find them.
struct LeftCopies {
    server: FakeApiServer,
    supervisor: Supervisor,
    _copiers: Vec<(Copier, mpsc::Receiver<PodEvent>)>,
}

fn copy(number: usize) -> Value {
    let name = format!("copy-{number}");
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "namespace": "web", "name": name, "uid": format!("u{number}"), "resourceVersion": "7",
        "labels": {ORIGIN: "upper"}, "annotations": {ORIGIN_NAMESPACE: "web", ORIGIN_NAME: name}}})
}

async fn server(copies: usize) -> FakeApiServer {
    let mut cluster = ScriptedCluster::default();
    cluster.watched.insert("configmaps", (0..copies).map(copy).collect());
    let none =
        json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": []});
    cluster.live.insert(PODS.to_owned(), none);
    let cluster = Arc::new(Mutex::new(cluster));
    FakeApiServer::start(move |request| cluster.lock().answer(request)).await
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
        Self { server, supervisor, _copiers: copiers }
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
