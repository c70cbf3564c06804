//! Copies of claims with the permissions of the published roles: the process may list and watch claims, and the node may read a claim
//! while one of its pods uses it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::Method;
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use vk_kube::{Client, Kind, Metrics, Objects, Patch, objects::Object};
use vk_provider::{PodEvent, PodRef};
use vk_provider_cluster::{
    copies::{Copier, CopierOptions, GRACE, KeptMetadata, UpperWatches},
    dependencies::dependencies,
    lower_cluster::{LowerCluster, LowerClusterOptions},
    names::{self, NamespaceMapping, OwnerId},
};
use vk_supervisor::{Clock, Supervisor};
use vk_testing::{ControlPlane, control_plane, eventually};

use crate::{
    fake_api_server::{FakeApiServer, RecordedRequest},
    scripted_cluster::{self, ScriptedCluster},
};

const SOON: Duration = Duration::from_mins(1);

/// A copier between an upper namespace and one of the same cluster with a suffix.
struct ClaimFixture {
    _namespace: control_plane::Namespace,
    node: String,
    above: Objects<PersistentVolumeClaim>,
    below: Objects<PersistentVolumeClaim>,
    pods: Objects<Pod>,
    copier: Copier,
    _supervisor: Supervisor,
    _events: mpsc::Receiver<PodEvent>,
}

async fn make<K: Object>(objects: &Objects<K>, value: Value) -> K {
    objects.create(&serde_json::from_value(value).unwrap()).await.unwrap()
}

/// A client that may list and watch claims, like that of the published role.
async fn process_client(cluster: &ControlPlane, admin: &Client) -> Client {
    let user = format!("claims-{:08x}", rand::random::<u32>());
    let rules =
        json!([{"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["list", "watch"]}]);
    let roles = Objects::<ClusterRole>::all(admin.clone());
    make(&roles, json!({"metadata": {"name": user}, "rules": rules})).await;
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user});
    let bindings = Objects::<ClusterRoleBinding>::all(admin.clone());
    make(&bindings, json!({"metadata": {"name": user}, "roleRef": role, "subjects": [subject]})).await;
    let client = Client::fixed(cluster.client_for(&user, &[]).unwrap(), Metrics::default());
    let claims = Objects::<PersistentVolumeClaim>::namespaced(client.clone(), "default");
    eventually("the role is known", SOON, || async {
        claims.list(&vk_kube::Selector::default()).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    client
}

impl ClaimFixture {
    async fn new() -> Self {
        let cluster = ControlPlane::shared().await;
        let namespace = cluster.namespace("claims").await.unwrap();
        let admin = Client::fixed(cluster.admin().unwrap(), Metrics::default());
        let node = format!("node-{}", namespace.name());
        let process = process_client(cluster, &admin).await;
        let owner = OwnerId { origin: namespace.name().to_owned(), node: node.clone() };
        let (sender, events) = mpsc::channel(16);
        let supervisor = Supervisor::new();
        let namespaces = NamespaceMapping::Suffix("-below".to_owned());
        let copier = Copier::new(CopierOptions {
            upper: Client::fixed(cluster.node_client(&node).unwrap(), Metrics::default()),
            claims: Some(process.clone()),
            upper_watches: Some(Arc::new(UpperWatches::new(&process, &supervisor))),
            lower: admin.clone(),
            lower_cluster: LowerCluster::start(LowerClusterOptions {
                client: admin.clone(),
                origin: owner.origin.clone(),
                cluster: None,
                namespaces: namespaces.clone(),
                autoscales: false,
                supervisor: supervisor.clone(),
            }),
            owner,
            namespaces,
            storage_classes: BTreeMap::new(),
            metadata: KeptMetadata::default(),
            supervisor: supervisor.clone(),
            events: sender,
            grace: GRACE,
            namespace_retention: Duration::from_hours(1),
            clock: Clock::system(),
        });
        let below = format!("{}-below", namespace.name());
        Self {
            node,
            above: Objects::namespaced(admin.clone(), namespace.name()),
            below: Objects::namespaced(admin.clone(), &below),
            pods: Objects::namespaced(admin, namespace.name()),
            _namespace: namespace,
            copier,
            _supervisor: supervisor,
            _events: events,
        }
    }

    /// Creates the claim `data` and returns its UID.
    async fn claim(&self) -> String {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        });
        make(&self.above, json!({"metadata": {"name": "data"}, "spec": spec})).await.metadata.uid.unwrap()
    }

    /// Creates a pod that uses the claim, as the core does, and waits for its copies.
    async fn pod(&self, name: &str) -> PodRef {
        let spec = json!({
            "nodeName": self.node, "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        });
        let pod = make(&self.pods, json!({"metadata": {"name": name}, "spec": spec})).await;
        let reference = PodRef::of(&pod).unwrap();
        eventually("the claim is copied", SOON, || async {
            let copied = self.copier.ensure(&reference, dependencies(&pod)).await;
            copied.map_err(|error| error.report())
        })
        .await;
        reference
    }

    async fn remove_pod(&self, pod: &PodRef) {
        self.pods.delete_with_grace(&pod.name, &pod.uid, Duration::ZERO).await.unwrap();
        self.copier.release(pod);
    }

    /// Deletes a claim. There is no controller here that removes its finalizer.
    async fn delete(&self, uid: &str) {
        self.above.delete("data", uid).await.unwrap();
        self.above.patch("data", Patch::Merge(&json!({"metadata": {"finalizers": null}}))).await.unwrap();
    }

    /// Waits until a copy is deleted, and lets it go.
    async fn copy_goes(&self, copy: &PersistentVolumeClaim) {
        eventually("the copy is deleted", SOON, || async {
            match self.below.get("data").await {
                Ok(found) if found.metadata.deletion_timestamp.is_some() => Ok(()),
                other => Err(format!("{:?}", other.map(|found| found.metadata))),
            }
        })
        .await;
        self.below.patch("data", Patch::Merge(&json!({"metadata": {"finalizers": null}}))).await.unwrap();
        eventually("the copy is gone", SOON, || async {
            match self.below.get("data").await {
                Err(error) if error.kind == Kind::NotFound => Ok(()),
                Ok(found) if found.metadata.uid != copy.metadata.uid => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// The UID of the upper claim that the copy belongs to.
    async fn copied(&self) -> Option<String> {
        let copy = self.below.get("data").await.unwrap();
        names::annotation(&copy.metadata, names::ORIGIN_UID).map(str::to_owned)
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_copy_goes_with_the_upper_claim_that_no_pod_uses_any_more() {
    let fixture = ClaimFixture::new().await;
    let uid = fixture.claim().await;
    let pod = fixture.pod("first").await;
    let copy = fixture.below.get("data").await.unwrap();
    fixture.remove_pod(&pod).await;
    fixture.delete(&uid).await;
    fixture.copy_goes(&copy).await;

    let uid = fixture.claim().await;
    fixture.pod("second").await;
    assert_eq!(fixture.copied().await, Some(uid));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_new_claim_of_the_same_name_does_not_get_the_data_of_the_old_one() {
    let fixture = ClaimFixture::new().await;
    let old = fixture.claim().await;
    let pod = fixture.pod("first").await;
    let copy = fixture.below.get("data").await.unwrap();
    fixture.remove_pod(&pod).await;
    fixture.delete(&old).await;
    let new = fixture.claim().await;
    let second = async {
        fixture.pod("second").await;
        fixture.copied().await
    };
    let (copied, ()) = tokio::join!(second, fixture.copy_goes(&copy));
    assert_eq!(copied, Some(new), "when the pod can be created");
}

/// A proxy that filters lists answers `200` with none, and a watch without objects.
#[tokio::test]
async fn a_claim_that_can_be_read_is_not_gone_because_a_list_lacks_it() {
    let mut above = ScriptedCluster::default();
    let all = "/api/v1/namespaces/web/persistentvolumeclaims";
    let none = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaimList", "metadata": {"resourceVersion": "9"},
        "items": []});
    above.live.insert(all.to_owned(), none);
    let spec =
        |size: &str| json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}});
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec("2Gi"),
        "metadata": {"namespace": "web", "name": "data", "uid": "u1", "resourceVersion": "7"}});
    above.live.insert(format!("{all}/data"), claim);
    let mut below = ScriptedCluster::default();
    let annotations =
        json!({names::ORIGIN_NAMESPACE: "web", names::ORIGIN_NAME: "data", names::ORIGIN_UID: "u1"});
    let copy = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec("1Gi"),
        "metadata": {"namespace": "web", "name": "data", "uid": "c1", "resourceVersion": "5",
            "labels": {names::ORIGIN: "upper"}, "annotations": annotations}});
    below.watched.insert("persistentvolumeclaims", vec![copy.clone()]);
    below.live.insert(format!("{all}/data"), copy);
    let above = FakeApiServer::start(move |request| above.answer(request)).await;
    let below = FakeApiServer::start(move |request| below.answer(request)).await;
    let supervisor = Supervisor::new();
    let (sender, _events) = mpsc::channel(16);
    let _copier = Copier::new(CopierOptions {
        upper: above.client.clone(),
        claims: Some(above.client.clone()),
        upper_watches: None,
        lower: below.client.clone(),
        lower_cluster: LowerCluster::start(LowerClusterOptions {
            client: below.client.clone(),
            origin: "upper".to_owned(),
            cluster: None,
            namespaces: NamespaceMapping::Same,
            autoscales: false,
            supervisor: supervisor.clone(),
        }),
        owner: scripted_cluster::owner(),
        namespaces: NamespaceMapping::Same,
        storage_classes: BTreeMap::new(),
        metadata: KeptMetadata::default(),
        supervisor: supervisor.clone(),
        events: sender,
        grace: GRACE,
        namespace_retention: Duration::from_hours(1),
        clock: Clock::system(),
    });
    let is_write =
        |request: &RecordedRequest| request.method == Method::PATCH || request.method == Method::DELETE;
    let is_watch = |request: &RecordedRequest| request.path == all && request.query.contains("watch=true");
    let first = eventually("the copy is written, and the claim is watched", SOON, || async {
        let write = below.asked().into_iter().find(is_write).map(|request| request.method);
        let watches = above.asked().iter().filter(|request| is_watch(request)).count();
        write.filter(|_| watches > 0).ok_or_else(|| format!("{watches} watches"))
    })
    .await;
    assert_eq!(first, Method::PATCH, "it gets the size of the upper claim");
    eventually("the claim is read because the watch lacks it", SOON, || async {
        let reads = above.asked().iter().filter(|request| request.path.ends_with("/data")).count();
        if reads > 1 { Ok(()) } else { Err(format!("{reads} reads")) }
    })
    .await;
    assert!(below.asked().iter().all(|request| request.method != Method::DELETE));
    supervisor.stop();
}
