//! A lower namespace is only removed if nothing of others is in it, of whatever kind.

use std::time::Duration;

use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use vk_provider_cluster::{
    detach::{DetachOptions, detach},
    names::{ORIGIN, ORIGIN_NAMESPACE},
};

use crate::{
    fake_api_server::FakeApiServer,
    scripted_cluster::{ScriptedCluster, owner},
};

const NAMESPACE: &str = "/api/v1/namespaces/web";

fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "9"}, "items": items})
}

/// Detaches from a cluster with a namespace that was created for us and these filters of a group that has them in an old version only.
/// Returns whether the namespace was deleted.
async fn is_deleted_with(filters: Value) -> bool {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "web", "uid": "n1",
        "resourceVersion": "3", "labels": {ORIGIN: "upper"}, "annotations": {ORIGIN_NAMESPACE: "web"}}});
    let versions = ["x.io/v1", "x.io/v1alpha1"].map(|version| json!({"groupVersion": version}));
    let group = json!({"name": "x.io", "preferredVersion": versions[0], "versions": versions});
    let resource = json!({"name": "filters", "kind": "Filter", "namespaced": true, "verbs": ["list"]});
    let mut cluster = ScriptedCluster::default();
    for (path, object) in [
        (NAMESPACE, namespace.clone()),
        ("/api/v1/namespaces", list(&[namespace])),
        ("/api/v1", json!({"resources": []})),
        ("/apis", json!({"groups": [group]})),
        ("/apis/x.io/v1", json!({"resources": []})),
        ("/apis/x.io/v1alpha1", json!({"resources": [resource]})),
        ("/apis/x.io/v1alpha1/namespaces/web/filters", filters),
    ] {
        cluster.live.insert(path.to_owned(), object);
    }
    for resource in ["configmaps", "secrets", "serviceaccounts", "pods", "persistentvolumeclaims"] {
        cluster.live.insert(format!("{NAMESPACE}/{resource}"), list(&[]));
    }
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
    drop(detach(&options).await);
    server.asked().iter().any(|request| request.method == Method::DELETE && request.path == NAMESPACE)
}

#[tokio::test]
async fn kinds_that_only_an_old_version_of_their_group_has_keep_a_namespace() {
    assert!(is_deleted_with(list(&[])).await, "nothing is in it");
    let filter = json!({"metadata": {"namespace": "web", "name": "theirs"}});
    assert!(!is_deleted_with(list(&[filter])).await);
}

#[tokio::test]
async fn a_namespace_stays_if_one_kind_cannot_be_listed() {
    assert!(!is_deleted_with(json!({"items": "nonsense"})).await);
}
