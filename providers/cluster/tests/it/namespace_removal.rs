//! The removal of a lower namespace against another virtual node that begins to use it.

mod fixture;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use vk_kube::Client;
use vk_provider::PodRef;
use vk_provider_cluster::{
    dependencies::Dependencies,
    detach::{DetachOptions, detach},
    names::OwnerId,
};
use vk_supervisor::Clock;
use vk_testing::eventually;

use self::fixture::{CopierFixture, NAMESPACE, RETIRING, cluster_with, list, mark, own_map, owner_map};
use crate::{
    fake_api_server::{DEADLINE, FakeApiServer, RecordedRequest, ScriptedAnswer, status},
    scripted_cluster::{ScriptedCluster, owner},
};

/// A cluster in which our node has nothing but its owner ConfigMap, with these of other nodes.
fn unused_cluster(others: &[Value]) -> ScriptedCluster {
    let map = owner_map(&owner());
    let maps: Vec<Value> = std::iter::once(&map).chain(others).cloned().collect();
    let mut cluster = cluster_with(&maps);
    cluster.watched.insert("configmaps", vec![map]);
    cluster
}

#[tokio::test]
async fn a_namespace_is_marked_before_it_is_searched_and_deleted() {
    let fixture = CopierFixture::start(unused_cluster(&[]), Duration::from_millis(10)).await;
    let deleted = eventually("the namespace is deleted", DEADLINE, || async {
        let asked = fixture.server.asked();
        let is_deletion =
            |request: &RecordedRequest| request.method == Method::DELETE && request.path == NAMESPACE;
        let last = asked.iter().rev().take(8).map(|request| format!("{} {}", request.method, request.path));
        asked.iter().position(is_deletion).ok_or_else(|| last.collect::<Vec<_>>().join(", "))
    })
    .await;
    let asked = fixture.server.asked();
    let marked =
        asked.iter().position(|request| request.method == Method::PATCH && request.path == own_map());
    let marked = marked.expect("the owner ConfigMap is marked");
    let searched = asked[marked..deleted].iter().any(|request| {
        request.path == format!("{NAMESPACE}/configmaps") && !request.query.contains("watch=true")
    });
    assert!(searched, "owner ConfigMaps of other nodes are looked for between the mark and the deletion");
}

/// What a retirement deletes first from the namespace of these owner ConfigMaps, of which `late` is not there yet when it is searched.
async fn first_deletion(late: Value) -> String {
    let fixture = CopierFixture::start(unused_cluster(&[late]), Duration::from_millis(10)).await;
    eventually("the retirement ends", DEADLINE, || async {
        match (fixture.deletions().into_iter().next(), fixture.marks().len()) {
            (Some(deleted), _) => Ok(deleted),
            // It is marked, stays, and is marked again.
            (None, 3..) => Ok("nothing".to_owned()),
            (None, marks) => Err(format!("{marks} marks")),
        }
    })
    .await
}

#[tokio::test]
async fn a_namespace_stays_with_the_first_pod_of_another_upper_cluster() {
    let other = OwnerId { origin: "other".to_owned(), node: "other".to_owned() };
    let deleted = first_deletion(owner_map(&other)).await;
    assert_eq!(deleted, "nothing", "only nodes of our upper cluster remove it later");
}

/// A cluster from whose namespace a virtual node can be detached.
fn detachable_cluster(maps: &[Value]) -> ScriptedCluster {
    let mut cluster = cluster_with(maps);
    cluster.live.insert(format!("{NAMESPACE}/persistentvolumeclaims"), list("PersistentVolumeClaim", &[]));
    let namespaces = list("Namespace", &[cluster.live[NAMESPACE].clone()]);
    cluster.live.insert("/api/v1/namespaces".to_owned(), namespaces);
    cluster
}

fn detach_options(lower: &Client, owner: OwnerId) -> DetachOptions {
    DetachOptions {
        lower: lower.clone(),
        owner,
        namespaces: Some(vec!["web".to_owned()]),
        keep_claims: false,
        dry_run: false,
        timeout: DEADLINE,
    }
}

#[tokio::test]
async fn detach_leaves_a_namespace_that_another_upper_cluster_has_begun_to_use() {
    let other = OwnerId { origin: "other".to_owned(), node: "other".to_owned() };
    let cluster = Arc::new(Mutex::new(detachable_cluster(&[owner_map(&other)])));
    let shared = Arc::clone(&cluster);
    let server = FakeApiServer::start(move |request| shared.lock().answer_and_store(request)).await;
    let report = detach(&detach_options(&server.client, owner())).await.unwrap();
    assert_eq!(report.removed, []);
    assert!(report.left.iter().any(|(item, _)| item.to_string() == "Namespace web"), "{report:?}");
    assert_eq!(cluster.lock().live.get(&own_map()), None, "nothing of the detached node is left");
}

/// Whether `detach` deletes a namespace with these objects of a group that has their kind in an old version only.
async fn is_deleted_with(filters: Value) -> bool {
    let versions = ["x.io/v1", "x.io/v1alpha1"].map(|version| json!({"groupVersion": version}));
    let group = json!({"name": "x.io", "preferredVersion": versions[0], "versions": versions});
    let resource = json!({"name": "filters", "kind": "Filter", "namespaced": true, "verbs": ["list"]});
    let mut cluster = detachable_cluster(&[]);
    for (path, object) in [
        ("/apis", json!({"groups": [group]})),
        ("/apis/x.io/v1", json!({"resources": []})),
        ("/apis/x.io/v1alpha1", json!({"resources": [resource]})),
        ("/apis/x.io/v1alpha1/namespaces/web/filters", filters),
    ] {
        cluster.live.insert(path.to_owned(), object);
    }
    let cluster = Mutex::new(cluster);
    let server = FakeApiServer::start(move |request| cluster.lock().answer_and_store(request)).await;
    // The namespace of the script does not go.
    let options = DetachOptions { timeout: Duration::ZERO, ..detach_options(&server.client, owner()) };
    drop(detach(&options).await);
    server.asked().iter().any(|request| request.method == Method::DELETE && request.path == NAMESPACE)
}

#[tokio::test]
async fn kinds_that_only_an_old_version_of_their_group_has_keep_a_namespace() {
    assert!(is_deleted_with(list("Filter", &[])).await, "nothing is in it");
    let filter = json!({"metadata": {"namespace": "web", "name": "theirs"}});
    assert!(!is_deleted_with(list("Filter", &[filter])).await);
}

#[tokio::test]
async fn a_namespace_stays_if_one_kind_cannot_be_listed() {
    assert!(!is_deleted_with(json!({"items": "nonsense"})).await);
}

/// Until the deletion is answered, nobody knows whether it takes effect.
#[tokio::test]
async fn a_node_does_not_use_a_namespace_that_detach_is_removing() {
    let detached = OwnerId { node: "detached".to_owned(), ..owner() };
    let (answer_deletion, late) = oneshot::channel();
    let late = Mutex::new(Some(late));
    let cluster = detachable_cluster(&[owner_map(&detached)]);
    let fixture = CopierFixture::start_with(cluster, Duration::from_hours(1), move |request, cluster| {
        let is_deletion = request.method == Method::DELETE && request.path == NAMESPACE;
        let late = late.lock().take_if(|_| is_deletion)?;
        Some(ScriptedAnswer::Late(late, cluster.live[NAMESPACE].to_string()))
    })
    .await;
    let options = detach_options(&fixture.server.client, detached);
    let use_namespace = async {
        eventually("detach deletes the namespace", DEADLINE, || async {
            let deletions = fixture.deletions();
            if deletions.iter().any(|path| path == NAMESPACE) {
                Ok(())
            } else {
                Err(format!("{deletions:?}"))
            }
        })
        .await;
        let ensured = fixture.copier.ensure(&PodRef::new("web", "p", "u1"), Dependencies::default()).await;
        let refused = ensured.expect_err("the pod would be deleted with the namespace");
        assert!(refused.report().contains("is about to delete"), "{}", refused.report());
        fixture.cluster.lock().live.remove(NAMESPACE);
        answer_deletion.send(()).unwrap();
    };
    let (report, ()) = tokio::join!(detach(&options), use_namespace);
    let removed = report.unwrap().removed;
    assert!(removed.iter().any(|item| item.to_string() == "Namespace web"), "{removed:?}");
}

#[tokio::test]
async fn a_namespace_that_another_node_of_the_upper_cluster_uses_is_left_to_it() {
    let other = OwnerId { node: "other".to_owned(), ..owner() };
    let deleted = first_deletion(owner_map(&other)).await;
    assert_eq!(deleted, own_map());
}

/// If both left it to the other one, it would stay for ever.
#[tokio::test]
async fn a_node_does_not_leave_a_namespace_to_one_that_is_removing_it() {
    let mut map = owner_map(&OwnerId { node: "other".to_owned(), ..owner() });
    map["metadata"]["annotations"] = json!({RETIRING: Clock::system().now().to_string()});
    let deleted = first_deletion(map).await;
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

fn is_mark(request: &RecordedRequest) -> bool {
    request.method == Method::PATCH && request.path == own_map()
}

#[tokio::test]
async fn a_mark_is_removed_if_the_search_fails() {
    let owner_maps = format!("{NAMESPACE}/configmaps");
    let fixture =
        CopierFixture::start_with(unused_cluster(&[]), Duration::from_millis(10), move |request, cluster| {
            let marked = cluster.live[&own_map()]["metadata"]["annotations"].get(RETIRING).is_some();
            let fails = marked && request.path == owner_maps && !request.query.contains("watch=true");
            fails.then(|| status(429, "TooManyRequests", "try again later"))
        })
        .await;
    mark_is_removed_without_deletion(&fixture).await;
}

#[tokio::test]
async fn a_mark_is_removed_if_it_is_not_known_whether_it_was_set() {
    let fixture =
        CopierFixture::start_with(unused_cluster(&[]), Duration::from_millis(10), |request, cluster| {
            let fails = is_mark(request) && mark(request).is_some();
            fails.then(|| {
                cluster.answer_and_store(request);
                status(504, "Timeout", "the answer is lost")
            })
        })
        .await;
    mark_is_removed_without_deletion(&fixture).await;
}

async fn mark_is_removed_without_deletion(fixture: &CopierFixture) {
    let marks = eventually("the mark is patched again", DEADLINE, || async {
        let marks = fixture.marks();
        if marks.len() < 2 { Err(format!("{marks:?}")) } else { Ok(marks) }
    })
    .await;
    assert!(marks[0].is_some() && marks[1].is_none(), "{marks:?}");
    assert_eq!(fixture.deletions(), [""; 0]);
}

#[tokio::test]
async fn a_pod_does_not_wait_for_a_mark_of_its_own_process_that_no_deletion_followed() {
    let outage = Arc::new(AtomicBool::new(true));
    let during = Arc::clone(&outage);
    let fixture =
        CopierFixture::start_with(unused_cluster(&[]), Duration::from_millis(10), move |request, cluster| {
            if !is_mark(request) {
                return None;
            }
            let sets = mark(request).is_some();
            if sets {
                cluster.answer_and_store(request);
            }
            let fails = sets || during.load(Ordering::SeqCst);
            fails.then(|| status(504, "Timeout", "the answer is lost"))
        })
        .await;
    eventually("the mark cannot be removed", DEADLINE, || async {
        let marks = fixture.marks();
        if marks.contains(&None) { Ok(()) } else { Err(format!("{marks:?}")) }
    })
    .await;
    outage.store(false, Ordering::SeqCst);
    fixture.copier.ensure(&PodRef::new("web", "p", "u1"), Dependencies::default()).await.unwrap();
    let marks = &fixture.cluster.lock().live[&own_map()]["metadata"]["annotations"];
    assert_eq!(marks.get(RETIRING), None, "nodes that use it later do not wait either");
}

#[tokio::test]
async fn a_pod_waits_if_a_failed_deletion_may_still_take_effect() {
    let fixture = CopierFixture::start_with(unused_cluster(&[]), Duration::from_millis(10), |request, _| {
        let fails = request.method == Method::DELETE && request.path == NAMESPACE;
        fails.then(|| status(504, "Timeout", "the answer is lost"))
    })
    .await;
    eventually("the namespace is deleted", DEADLINE, || async {
        fixture.deletions().first().cloned().ok_or("nothing is deleted")
    })
    .await;
    let pod = PodRef::new("web", "p", "u1");
    let refused = fixture.copier.ensure(&pod, Dependencies::default()).await.unwrap_err();
    assert!(refused.report().contains("is about to delete"), "{}", refused.report());
    assert!(!fixture.marks().contains(&None), "the mark stays: {:?}", fixture.marks());
}
