//! The removal of a lower namespace against another virtual node that begins to use it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use vk_provider::{PodEvent, PodRef};
use vk_provider_cluster::{
    copies::{Copier, CopierOptions, KeptMetadata},
    dependencies::Dependencies,
    lower_cluster::{LowerCluster, LowerClusterOptions},
    names::{NODE, NamespaceMapping, ORIGIN, ORIGIN_NAMESPACE, OwnerId},
    owner_config_map,
};
use vk_supervisor::{Clock, Supervisor};
use vk_testing::eventually;

use crate::{
    fake_api_server::{DEADLINE, FakeApiServer, RecordedRequest},
    scripted_cluster::{ScriptedCluster, owner},
};

const NAMESPACE: &str = "/api/v1/namespaces/web";
const RETIRING: &str = "multicluster.virtual-kubelet.io/retiring";

fn owner_map(owner: &OwnerId) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "web", "resourceVersion": "7",
        "name": owner_config_map::name(owner), "uid": format!("of-{}", owner.node),
        "labels": {ORIGIN: owner.origin, NODE: owner.node}}})
}

fn list(kind: &str, items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": format!("{kind}List"), "metadata": {"resourceVersion": "9"}, "items": items})
}

/// A cluster with a namespace that was created for our upper cluster, and these owner ConfigMaps in it.
fn cluster_with(maps: &[Value]) -> ScriptedCluster {
    let mut cluster = ScriptedCluster::default();
    let metadata = json!({"name": "web", "uid": "n1", "resourceVersion": "3", "labels": {ORIGIN: "upper"},
        "annotations": {ORIGIN_NAMESPACE: "web"}});
    cluster
        .live
        .insert(NAMESPACE.to_owned(), json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
    cluster.live.insert("/apis".to_owned(), json!({"groups": []}));
    cluster.live.insert("/api/v1".to_owned(), json!({"resources": []}));
    for map in maps {
        let name = map["metadata"]["name"].as_str().unwrap();
        cluster.live.insert(format!("{NAMESPACE}/configmaps/{name}"), map.clone());
    }
    for (resource, kind) in [("secrets", "Secret"), ("serviceaccounts", "ServiceAccount"), ("pods", "Pod")] {
        cluster.live.insert(format!("{NAMESPACE}/{resource}"), list(kind, &[]));
    }
    cluster.live.insert(format!("{NAMESPACE}/configmaps"), list("ConfigMap", maps));
    cluster
}

struct CopierFixture {
    server: FakeApiServer,
    cluster: Arc<Mutex<ScriptedCluster>>,
    copier: Copier,
    supervisor: Supervisor,
    _events: mpsc::Receiver<PodEvent>,
}

impl CopierFixture {
    async fn start(cluster: ScriptedCluster, namespace_retention: Duration) -> Self {
        let cluster = Arc::new(Mutex::new(cluster));
        let script = Arc::clone(&cluster);
        let server = FakeApiServer::start(move |request| script.lock().answer(request)).await;
        let (client, supervisor) = (server.client.clone(), Supervisor::new());
        let (sender, events) = mpsc::channel(16);
        let copier = Copier::new(CopierOptions {
            upper: client.clone(),
            claims: None,
            upper_watches: None,
            lower: client.clone(),
            lower_cluster: LowerCluster::start(LowerClusterOptions {
                client,
                origin: owner().origin,
                cluster: None,
                namespaces: NamespaceMapping::Same,
                supervisor: supervisor.clone(),
            }),
            owner: owner(),
            namespaces: NamespaceMapping::Same,
            storage_classes: BTreeMap::new(),
            metadata: KeptMetadata::default(),
            supervisor: supervisor.clone(),
            events: sender,
            grace: Duration::ZERO,
            namespace_retention,
            clock: Clock::system(),
        });
        Self { server, cluster, copier, supervisor, _events: events }
    }
}

impl Drop for CopierFixture {
    fn drop(&mut self) {
        self.supervisor.stop();
    }
}

#[tokio::test]
async fn a_namespace_is_marked_before_it_is_searched_and_deleted() {
    let map = owner_map(&owner());
    let mut cluster = cluster_with(std::slice::from_ref(&map));
    cluster.watched.insert("configmaps", vec![map]);
    let fixture = CopierFixture::start(cluster, Duration::from_millis(10)).await;
    let deleted = eventually("the namespace is deleted", DEADLINE, || async {
        let asked = fixture.server.asked();
        let is_deletion =
            |request: &RecordedRequest| request.method == Method::DELETE && request.path == NAMESPACE;
        let last = asked.iter().rev().take(8).map(|request| format!("{} {}", request.method, request.path));
        asked.iter().position(is_deletion).ok_or_else(|| last.collect::<Vec<_>>().join(", "))
    })
    .await;
    let asked = fixture.server.asked();
    let own_map = format!("{NAMESPACE}/configmaps/{}", owner_config_map::name(&owner()));
    let marked = asked.iter().position(|request| request.method == Method::PATCH && request.path == own_map);
    let marked = marked.expect("the owner ConfigMap is marked");
    let searched = asked[marked..deleted].iter().any(|request| {
        request.path == format!("{NAMESPACE}/configmaps") && !request.query.contains("watch=true")
    });
    assert!(searched, "owner ConfigMaps of other nodes are looked for between the mark and the deletion");
}

#[tokio::test]
async fn a_node_does_not_use_a_namespace_that_another_one_is_removing() {
    let other = OwnerId { node: "other".to_owned(), ..owner() };
    let marked = |seconds_ago: i64| {
        let at = Clock::system().now() - jiff::SignedDuration::from_secs(seconds_ago);
        let mut map = owner_map(&other);
        map["metadata"]["annotations"] = json!({RETIRING: at.to_string()});
        list("ConfigMap", &[owner_map(&owner()), map])
    };
    let mut cluster = cluster_with(&[owner_map(&owner())]);
    cluster.live.insert(format!("{NAMESPACE}/configmaps"), marked(0));
    let fixture = CopierFixture::start(cluster, Duration::from_hours(1)).await;
    let pod = PodRef::new("web", "p", "u1");
    let refused = fixture.copier.ensure(&pod, Dependencies::default()).await.unwrap_err();
    assert!(refused.report().contains("is about to delete"), "{}", refused.report());

    // A process that ended in between leaves its mark.
    fixture.cluster.lock().live.insert(format!("{NAMESPACE}/configmaps"), marked(3600));
    eventually("the namespace can be used", DEADLINE, || async {
        let ensured = fixture.copier.ensure(&pod, Dependencies::default()).await;
        ensured.map_err(|error| error.report())
    })
    .await;
}

#[tokio::test]
async fn a_pod_waits_while_its_namespace_is_being_deleted() {
    let mut cluster = cluster_with(&[owner_map(&owner())]);
    let namespace = cluster.live.get_mut(NAMESPACE).unwrap();
    namespace["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let fixture = CopierFixture::start(cluster, Duration::from_hours(1)).await;
    let pod = PodRef::new("web", "p", "u1");
    let refused = fixture.copier.ensure(&pod, Dependencies::default()).await.unwrap_err();
    assert!(refused.report().contains("is being deleted"), "{}", refused.report());
}
