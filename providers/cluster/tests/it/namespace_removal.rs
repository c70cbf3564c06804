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
    detach::{DetachOptions, detach},
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

/// What a retirement deletes first from the namespace of these owner ConfigMaps, of which `late` is not there yet when it is searched.
async fn first_deletion(late: Value) -> (String, CopierFixture) {
    let map = owner_map(&owner());
    let mut cluster = cluster_with(&[map.clone(), late]);
    cluster.watched.insert("configmaps", vec![map]);
    let fixture = CopierFixture::start(cluster, Duration::from_millis(10)).await;
    let own_map = format!("{NAMESPACE}/configmaps/{}", owner_config_map::name(&owner()));
    let decided = eventually("the retirement ends", DEADLINE, || async {
        let asked = fixture.server.asked();
        let deletions = asked.iter().filter(|request| request.method == Method::DELETE);
        let mut marks = asked.iter().filter(|it| it.method == Method::PATCH && it.path == own_map);
        match (deletions.map(|request| request.path.clone()).next(), marks.nth(1)) {
            (Some(deleted), _) => Ok(deleted),
            (None, Some(_)) => Ok("nothing".to_owned()),
            (None, None) => Err(format!("{} requests", asked.len())),
        }
    })
    .await;
    (decided, fixture)
}

#[tokio::test]
async fn a_namespace_stays_with_the_first_pod_of_another_upper_cluster() {
    let other = OwnerId { origin: "other".to_owned(), node: "other".to_owned() };
    let (deleted, _fixture) = first_deletion(owner_map(&other)).await;
    assert_eq!(deleted, "nothing", "only nodes of our upper cluster remove it later");
}

#[tokio::test]
async fn detach_leaves_a_namespace_that_another_upper_cluster_has_begun_to_use() {
    let other = OwnerId { origin: "other".to_owned(), node: "other".to_owned() };
    let mut cluster = cluster_with(&[owner_map(&other)]);
    cluster.live.insert(format!("{NAMESPACE}/persistentvolumeclaims"), list("PersistentVolumeClaim", &[]));
    cluster
        .live
        .insert("/api/v1/namespaces".to_owned(), list("Namespace", &[cluster.live[NAMESPACE].clone()]));
    let cluster = Mutex::new(cluster);
    let server = FakeApiServer::start(move |request| cluster.lock().answer(request)).await;
    let options = DetachOptions {
        lower: server.client.clone(),
        owner: owner(),
        namespaces: Some(vec!["web".to_owned()]),
        keep_claims: false,
        dry_run: false,
        timeout: Duration::ZERO,
    };
    let report = detach(&options).await.unwrap();
    assert_eq!(report.removed, []);
    assert!(report.left.iter().any(|(item, _)| item.to_string() == "Namespace web"), "{report:?}");
}

#[tokio::test]
async fn a_namespace_that_another_node_of_the_upper_cluster_uses_is_left_to_it() {
    let other = OwnerId { node: "other".to_owned(), ..owner() };
    let (deleted, _fixture) = first_deletion(owner_map(&other)).await;
    assert_eq!(deleted, format!("{NAMESPACE}/configmaps/{}", owner_config_map::name(&owner())));
}

/// If both left it to the other one, it would stay for ever.
#[tokio::test]
async fn a_node_does_not_leave_a_namespace_to_one_that_is_removing_it() {
    let mut map = owner_map(&OwnerId { node: "other".to_owned(), ..owner() });
    map["metadata"]["annotations"] = json!({RETIRING: Clock::system().now().to_string()});
    let (deleted, _fixture) = first_deletion(map).await;
    assert_eq!(deleted, "nothing", "it is tried again later");
}

#[tokio::test]
async fn a_node_does_not_use_a_namespace_that_another_one_is_removing() {
    is_not_used_while_marked_by(&OwnerId { node: "other".to_owned(), ..owner() }).await;
}

#[tokio::test]
async fn a_node_does_not_use_a_namespace_that_another_upper_cluster_is_removing() {
    is_not_used_while_marked_by(&OwnerId { origin: "other".to_owned(), node: "other".to_owned() }).await;
}

/// The deletion that an earlier process asked for may still take effect.
#[tokio::test]
async fn a_node_does_not_use_a_namespace_that_its_earlier_process_was_removing() {
    is_not_used_while_marked_by(&owner()).await;
}

/// The clock of who has set the mark may be wrong.
async fn is_not_used_while_marked_by(other: &OwnerId) {
    for minutes_ago in [0, 60, -60] {
        let at = Clock::system().now() - jiff::SignedDuration::from_mins(minutes_ago);
        let mut map = owner_map(other);
        map["metadata"]["annotations"] = json!({RETIRING: at.to_string()});
        let mut cluster = cluster_with(&[owner_map(&owner())]);
        cluster.live.insert(format!("{NAMESPACE}/configmaps"), list("ConfigMap", &[map]));
        let fixture = CopierFixture::start(cluster, Duration::from_hours(1)).await;
        let pod = PodRef::new("web", "p", "u1");
        let refused = fixture.copier.ensure(&pod, Dependencies::default()).await.unwrap_err();
        assert!(refused.report().contains("is about to delete"), "{}", refused.report());

        // A process that ended in between leaves its mark.
        tokio::time::pause();
        tokio::time::advance(Duration::from_mins(6)).await;
        tokio::time::resume();
        eventually("the namespace can be used", DEADLINE, || async {
            let ensured = fixture.copier.ensure(&pod, Dependencies::default()).await;
            ensured.map_err(|error| error.report())
        })
        .await;
    }
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
