//! Copies between two real API servers.

mod fixture;

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, Pod, ServiceAccount};
use serde_json::json;
use vk_kube::{Client, Metrics, Objects, Patch};
use vk_provider::{PodRef, error::Kind as ErrorKind};
use vk_provider_cluster::{dependencies::Dependencies, names, owner_config_map};
use vk_testing::{ControlPlane, eventually};

use self::fixture::{CopierFixture, ObjectPair, SOON, needs};

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn dependencies_are_copied_before_the_pod_and_follow_the_upper_objects() {
    let fixture = CopierFixture::new().await;
    let (maps, secrets) = (fixture.maps(), fixture.secrets());
    maps.create(json!({"metadata": {"name": "a", "labels": {"team": "x"}}, "data": {"old": "1"}})).await;
    let token = json!({
        "metadata": {"name": "s", "annotations": {"kubernetes.io/service-account.name": "default"}},
        "type": "kubernetes.io/service-account-token", "data": {"token": "eA=="},
    });
    secrets.create(token).await;
    let mut all = needs(&["a", "late"], &["s"]);
    all.optional_config_maps = ["late".to_owned()].into();
    all.service_account = Some("builder".to_owned());
    fixture.copier.ensure(&fixture.pod("p"), all).await.unwrap();

    let map = maps.copy("a").await;
    assert_eq!((&map["data"], &map["metadata"]["labels"]["team"]), (&json!({"old": "1"}), &json!("x")));
    assert_eq!(map["metadata"]["labels"][names::ORIGIN], fixture.owner.origin);
    assert_eq!(map["metadata"]["ownerReferences"][0]["name"], owner_config_map::name(&fixture.owner));
    assert_eq!(secrets.copy("s").await["type"], "Opaque");
    let accounts: Objects<ServiceAccount> = Objects::namespaced(fixture.lower.clone(), &fixture.namespace);
    accounts.get("builder").await.unwrap();

    let change = json!({"data": {"old": null, "new": "2"}, "metadata": {"labels": {"team": null}}});
    maps.above.patch("a", Patch::Merge(&change)).await.unwrap();
    secrets.above.patch("s", Patch::Merge(&json!({"data": {"token": "eQ=="}}))).await.unwrap();
    let map = maps.becomes("a", "the update is below", |map| map["data"] == json!({"new": "2"})).await;
    assert_eq!(map["metadata"]["labels"].get("team"), None);
    secrets.becomes("s", "the update is below", |secret| secret["data"]["token"] == "eQ==").await;

    maps.create(json!({"metadata": {"name": "late"}, "data": {"k": "v"}})).await;
    maps.becomes("late", "what comes late is copied", |map| map["data"]["k"] == "v").await;
    // What the pod needs stays as it is, so that nobody else's object can take the name. What is optional is emptied.
    ObjectPair::delete(&maps.above, "a").await;
    ObjectPair::delete(&secrets.above, "s").await;
    ObjectPair::delete(&maps.above, "late").await;
    maps.becomes("late", "it is emptied", |map| map.get("data").is_none()).await;
    maps.copy("a").await;
    secrets.copy("s").await;
    fixture.copier.release(&fixture.pod("p"));
    for name in ["a", "late"] {
        maps.goes(name).await;
    }
    secrets.goes("s").await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_waits_for_an_object_that_it_needs() {
    let fixture = CopierFixture::new().await;
    let missing = fixture.copier.ensure(&fixture.pod("p"), needs(&[], &["s"])).await.unwrap_err();
    assert!(
        matches!(missing.kind(), ErrorKind::Unresolved(reference) if &*reference.name == "s"),
        "{missing:?}"
    );
    fixture.secrets().create(json!({"metadata": {"name": "s"}})).await;
    eventually("the copy is there", SOON, || async {
        let made = fixture.copier.ensure(&fixture.pod("p"), needs(&[], &["s"])).await;
        made.map_err(|error| error.report())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_foreign_lower_object_is_left_alone_and_no_pod_gets_it() {
    let fixture = CopierFixture::new().await;
    let namespaces: Objects<Namespace> = Objects::all(fixture.lower.clone());
    let namespace = json!({"metadata": {"name": fixture.namespace}});
    namespaces.create(&serde_json::from_value(namespace).unwrap()).await.unwrap();
    let (maps, secrets) = (fixture.maps(), fixture.secrets());
    let theirs = json!({"metadata": {"name": "a"}, "data": {"key": "theirs"}});
    let map = maps.below.create(&serde_json::from_value(theirs).unwrap()).await.unwrap();
    let annotations = json!({names::ORIGIN_NAMESPACE: fixture.above.name(), names::ORIGIN_NAME: "s"});
    let theirs =
        json!({"metadata": {"name": "s", "labels": {names::ORIGIN: "other"}, "annotations": annotations}});
    let secret = secrets.below.create(&serde_json::from_value(theirs).unwrap()).await.unwrap();

    maps.create(json!({"metadata": {"name": "a"}, "data": {"key": "ours"}})).await;
    secrets.create(json!({"metadata": {"name": "s"}, "data": {"key": "eA=="}})).await;
    let conflict = |error: &vk_provider::Error| *error.kind() == ErrorKind::Blocked("NameConflict");
    for (maps, secrets) in [(&["a"][..], &[][..]), (&[], &["s"])] {
        let error = fixture.copier.ensure(&fixture.pod("p"), needs(maps, secrets)).await.unwrap_err();
        assert!(conflict(&error) && error.message().contains("not a copy of ours"), "{error:?}");
    }

    // When a later object was copied, this one had its chance.
    ObjectPair::delete(&maps.above, "a").await;
    secrets.above.patch("s", Patch::Merge(&json!({"data": {"key": "eQ=="}}))).await.unwrap();
    maps.create(json!({"metadata": {"name": "mark"}})).await;
    fixture.copier.ensure(&fixture.pod("q"), needs(&["mark"], &[])).await.unwrap();
    fixture.copier.release(&fixture.pod("p"));
    fixture.copier.release(&fixture.pod("q"));
    maps.goes("mark").await;
    assert_eq!(maps.below.get("a").await.unwrap(), map);
    assert_eq!(secrets.below.get("s").await.unwrap(), secret);
    // Nor if there is nothing of the name above.
    let error = fixture.copier.ensure(&fixture.pod("r"), needs(&["a"], &[])).await.unwrap_err();
    assert!(conflict(&error), "{error:?}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_replaced_immutable_object_is_replaced() {
    let fixture = CopierFixture::new().await;
    let (maps, secrets) = (fixture.maps(), fixture.secrets());
    let map = |value: &str| json!({"metadata": {"name": "a"}, "immutable": true, "data": {"key": value}});
    let secret = |value: &str| json!({"metadata": {"name": "s"}, "immutable": true, "data": {"key": value}});
    maps.create(map("1")).await;
    secrets.create(secret("eA==")).await;
    fixture.copier.ensure(&fixture.pod("p"), needs(&["a"], &["s"])).await.unwrap();
    assert_eq!(maps.copy("a").await["immutable"], true);
    ObjectPair::delete(&maps.above, "a").await;
    maps.create(map("2")).await;
    ObjectPair::delete(&secrets.above, "s").await;
    secrets.create(secret("eQ==")).await;
    maps.becomes("a", "the new one is below", |map| map["data"]["key"] == "2").await;
    secrets.becomes("s", "the new one is below", |secret| secret["data"]["key"] == "eQ==").await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn after_a_restart_unused_copies_are_deleted() {
    let mut fixture = CopierFixture::new().await;
    let (maps, secrets) = (fixture.maps(), fixture.secrets());
    for name in ["wanted", "used", "left"] {
        maps.create(json!({"metadata": {"name": name}, "data": {"key": "1"}})).await;
    }
    secrets.create(json!({"metadata": {"name": "left"}, "data": {"key": "eA=="}})).await;
    fixture.copier.ensure(&fixture.pod("p"), needs(&["wanted", "used", "left"], &["left"])).await.unwrap();
    let uid = maps.copy("wanted").await["metadata"]["uid"].clone();
    let accounts: Objects<ServiceAccount> = Objects::namespaced(fixture.lower.clone(), &fixture.namespace);
    let account = json!({"metadata": {"name": "default"}});
    accounts.create(&serde_json::from_value(account).unwrap()).await.unwrap();
    let pods: Objects<Pod> = Objects::namespaced(fixture.lower.clone(), &fixture.namespace);
    let container = json!({"name": "c", "image": "i", "envFrom": [{"configMapRef": {"name": "used"}}]});
    let metadata = json!({"name": "p", "labels": {names::ORIGIN: fixture.owner.origin}});
    let pod = json!({"metadata": metadata, "spec": {"containers": [container]}});
    pods.create(&serde_json::from_value(pod).unwrap()).await.unwrap();

    fixture.restart().await;
    maps.above.patch("wanted", Patch::Merge(&json!({"data": {"key": "2"}}))).await.unwrap();
    fixture.copier.ensure(&fixture.pod("p"), needs(&["wanted"], &[])).await.unwrap();
    assert_eq!(maps.copy("wanted").await["data"]["key"], "2", "what happened meanwhile");
    maps.goes("left").await;
    secrets.goes("left").await;
    assert_eq!(maps.copy("wanted").await["metadata"]["uid"], uid);
    maps.copy("used").await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn node_permissions_suffice_in_the_upper_cluster() {
    let cluster = ControlPlane::shared().await;
    let node = Client::fixed(cluster.node_client("reflecting").unwrap(), Metrics::default());
    let fixture = CopierFixture::reading(node).await;
    let (maps, secrets, claims) = (fixture.maps(), fixture.secrets(), fixture.claims());
    maps.create(json!({"metadata": {"name": "a"}, "data": {"key": "1"}})).await;
    secrets.create(json!({"metadata": {"name": "s"}, "data": {"key": "eA=="}})).await;
    let resources = json!({"requests": {"storage": "1Gi"}});
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": resources, "storageClassName": ""});
    claims.create(json!({"metadata": {"name": "c"}, "spec": spec})).await;
    let pods: Objects<Pod> = Objects::namespaced(fixture.upper.clone(), fixture.above.name());
    let from = json!([{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "s"}}]);
    let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}});
    let pod = json!({
        "metadata": {"name": "p"},
        "spec": {
            "nodeName": "reflecting",
            "containers": [{"name": "c", "image": "i", "envFrom": from}],
            "volumes": [volume],
        },
    });
    let pod = pods.create(&serde_json::from_value(pod).unwrap()).await.unwrap();
    let reference = PodRef::of(&pod).unwrap();
    fixture.copier.ensure(&reference, vk_provider_cluster::dependencies::dependencies(&pod)).await.unwrap();
    assert_eq!(maps.copy("a").await["data"]["key"], "1");
    assert_eq!(secrets.copy("s").await["data"]["key"], "eA==");
    let claim = claims.copy("c").await;
    assert_eq!(claim["spec"]["storageClassName"], "");
    assert_eq!(claim["metadata"].get("ownerReferences"), None);
    maps.above.patch("a", Patch::Merge(&json!({"data": {"key": "2"}}))).await.unwrap();
    maps.becomes("a", "the update is below", |map| map["data"]["key"] == "2").await;
    fixture.copier.release(&reference);
    maps.goes("a").await;
    claims.copy("c").await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_claim_bound_to_a_volume_that_exists_in_both_clusters_uses_it() {
    let fixture = CopierFixture::new().await;
    let claims = fixture.claims();
    let volume = format!("{}-volume", fixture.above.name());
    let volumes: Objects<PersistentVolume> = Objects::all(fixture.lower.clone());
    let spec = json!({
        "capacity": {"storage": "100Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/data"},
    });
    let lower = json!({"metadata": {"name": volume}, "spec": spec});
    volumes.create(&serde_json::from_value(lower).unwrap()).await.unwrap();
    for (name, volume) in [("static", volume.as_str()), ("dynamic", "pvc-of-the-upper-cluster")] {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "50Mi"}},
            "storageClassName": "", "volumeName": volume,
        });
        let annotations = json!({"pv.kubernetes.io/bind-completed": "yes"});
        claims.create(json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec})).await;
        // As the controllers of the upper cluster do.
        let bound = json!({"status": {"phase": "Bound"}});
        claims.above.patch_subresource(name, "status", Patch::Merge(&bound)).await.unwrap();
    }
    // Anybody can name any volume.
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "50Mi"}},
        "storageClassName": "", "volumeName": volume,
    });
    claims.create(json!({"metadata": {"name": "thief"}, "spec": spec})).await;
    let both = ["static", "dynamic", "thief"].map(str::to_owned).into();
    let needs = Dependencies { claims: both, ..Dependencies::default() };
    fixture.copier.ensure(&fixture.pod("p"), needs).await.unwrap();
    assert_eq!(claims.copy("static").await["spec"]["volumeName"], volume);
    assert_eq!(claims.copy("thief").await["spec"].get("volumeName"), None);
    let dynamic = claims.copy("dynamic").await;
    assert_eq!(dynamic["spec"].get("volumeName"), None);
    assert_eq!(dynamic["metadata"]["annotations"].get("pv.kubernetes.io/bind-completed"), None);

    // It is deleted with the upper claim, and the volume stays. There is no controller here to remove the finalizer.
    fixture.copier.release(&fixture.pod("p"));
    ObjectPair::delete(&claims.above, "static").await;
    let unprotect = json!({"metadata": {"finalizers": null}});
    claims.above.patch("static", Patch::Merge(&unprotect)).await.unwrap();
    claims
        .becomes("static", "it is being deleted", |claim| claim["metadata"]["deletionTimestamp"].is_string())
        .await;
    claims.below.patch("static", Patch::Merge(&unprotect)).await.unwrap();
    claims.goes("static").await;
    volumes.get(&volume).await.unwrap();
    claims.copy("dynamic").await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn concurrent_creation_of_namespace_and_owner_config_map_succeeds() {
    let fixture = CopierFixture::new().await;
    let attempts = (0..8).map(|_| async {
        owner_config_map::ensure_namespace(
            &fixture.lower,
            &fixture.namespace,
            fixture.above.name(),
            &fixture.owner,
        )
        .await?;
        owner_config_map::ensure(&fixture.lower, &fixture.namespace, &fixture.owner).await
    });
    let made = futures::future::join_all(attempts).await;
    let first = made[0].as_ref().unwrap();
    assert!(made.iter().all(|one| one.as_ref() == Ok(first)), "{made:?}");
    let maps = fixture.maps();
    maps.create(json!({"metadata": {"name": "a"}})).await;
    fixture.copier.ensure(&fixture.pod("p"), needs(&["a"], &[])).await.unwrap();
    let owners = &maps.copy("a").await["metadata"]["ownerReferences"];
    assert_eq!((&owners[0]["uid"], owners[0].get("controller")), (&json!(first.uid), None));

    // Without the owner ConfigMap, the garbage collector would delete everything that follows.
    ObjectPair::delete(&maps.below, &first.name).await;
    eventually("there is another anchor", SOON, || async {
        match maps.below.get(&first.name).await {
            Ok(found) if found.metadata.uid.as_ref() != Some(&first.uid) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// Waits until the lower namespace is being deleted. Without controllers it never goes.
async fn namespace_goes(fixture: &CopierFixture) {
    let namespaces: Objects<Namespace> = Objects::all(fixture.lower.clone());
    eventually("the lower namespace is being deleted", SOON, || async {
        let found = namespaces.get(&fixture.namespace).await.unwrap();
        found.metadata.deletion_timestamp.map(drop).ok_or_else(|| "it stays".to_owned())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_lower_namespace_that_we_made_and_nobody_uses_is_deleted() {
    let fixture = CopierFixture::retaining(Duration::from_secs(2)).await;
    let maps = fixture.maps();
    maps.create(json!({"metadata": {"name": "a"}, "data": {"key": "1"}})).await;
    fixture.copier.ensure(&fixture.pod("p"), needs(&["a"], &[])).await.unwrap();
    let theirs = json!({"metadata": {"name": "theirs"}});
    maps.below.create(&serde_json::from_value(theirs).unwrap()).await.unwrap();
    fixture.copier.release(&fixture.pod("p"));
    maps.goes("a").await;

    let namespaces: Objects<Namespace> = Objects::all(fixture.lower.clone());
    let kept = namespaces.get(&fixture.namespace).await.unwrap();
    assert_eq!(kept.metadata.deletion_timestamp, None, "somebody else's object is in it");
    ObjectPair::delete(&maps.below, "theirs").await;
    namespace_goes(&fixture).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_lower_namespace_of_somebody_else_stays_and_our_owner_config_map_goes() {
    let fixture = CopierFixture::retaining(Duration::from_secs(2)).await;
    let namespaces: Objects<Namespace> = Objects::all(fixture.lower.clone());
    let namespace = json!({"metadata": {"name": fixture.namespace}});
    namespaces.create(&serde_json::from_value(namespace).unwrap()).await.unwrap();
    fixture.copier.ensure(&fixture.pod("p"), needs(&[], &[])).await.unwrap();
    let maps = fixture.maps();
    maps.below.get(&owner_config_map::name(&fixture.owner)).await.unwrap();
    fixture.copier.release(&fixture.pod("p"));
    maps.goes(&owner_config_map::name(&fixture.owner)).await;
    let kept = namespaces.get(&fixture.namespace).await.unwrap();
    assert_eq!(kept.metadata.deletion_timestamp, None);
    // The next pod gets another.
    fixture.copier.ensure(&fixture.pod("q"), needs(&[], &[])).await.unwrap();
    maps.below.get(&owner_config_map::name(&fixture.owner)).await.unwrap();
}
