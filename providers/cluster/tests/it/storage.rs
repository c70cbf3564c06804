//! Claims that wait for a node, with two real clusters.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::{
    core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
    storage::v1::StorageClass,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use vk_kube::{Client, Kind, Metrics, Objects, Patch, Selector, objects::Object};
use vk_provider::PodRef;
use vk_provider_cluster::{
    copies::{self, Copier},
    dependencies::Dependencies,
    lower_cluster::{LowerCluster, LowerClusterOptions},
    names::{self, NamespaceMapping, OwnerId},
    storage::{PROVISIONER, StorageOptions, start},
};
use vk_supervisor::{Clock, Supervisor};
use vk_testing::{ControlPlane, control_plane, eventually};

const SOON: Duration = Duration::from_mins(1);
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// ObjectPair clusters, and the storage controller of one virtual node between them.
struct StorageFixture {
    namespace: control_plane::Namespace,
    upper: Client,
    lower: Client,
    owner: OwnerId,
    /// The name of the lower cluster.
    cluster: String,
    supervisor: Supervisor,
}

impl StorageFixture {
    async fn new(upper: &ControlPlane) -> Self {
        Self::serving(upper, upper.admin().unwrap()).await
    }

    /// With a client of few permissions for the upper cluster.
    async fn serving(upper: &ControlPlane, served: kube::Client) -> Self {
        let namespace = upper.namespace("storage").await.unwrap();
        let lower = ControlPlane::shared().await;
        let [upper, lower] = [upper, lower].map(|it| Client::fixed(it.admin().unwrap(), Metrics::default()));
        let owner = OwnerId { origin: namespace.name().to_owned(), node: format!("vk-{}", namespace.name()) };
        let cluster = format!("berlin-{}", namespace.name());
        let supervisor = Supervisor::new();
        start(StorageOptions {
            upper: Client::fixed(served, Metrics::default()),
            lower: lower.clone(),
            owner: owner.clone(),
            namespaces: NamespaceMapping::Suffix("-below".to_owned()),
            cluster: cluster.clone(),
            supervisor: supervisor.clone(),
        });
        Self { namespace, upper, lower, owner, cluster, supervisor }
    }

    fn claims(&self) -> Objects<PersistentVolumeClaim> {
        Objects::namespaced(self.upper.clone(), self.namespace.name())
    }

    fn pods(&self) -> Objects<Pod> {
        Objects::namespaced(self.upper.clone(), self.namespace.name())
    }

    fn volumes(&self) -> Objects<PersistentVolume> {
        Objects::all(self.upper.clone())
    }

    /// A node with room that takes no other pods.
    async fn node(&self, name: &str, cluster: &str) {
        let room = json!({"cpu": "8", "memory": "8Gi", "pods": "100"});
        let labels =
            json!({names::CLUSTER: cluster, "test": self.namespace.name(), "kubernetes.io/hostname": name});
        let taints = json!([{"key": "test", "effect": "NoSchedule"}]);
        let node = json!({
            "metadata": {"name": name, "labels": labels}, "spec": {"taints": taints},
            "status": {"capacity": room, "allocatable": room},
        });
        made(&Objects::<Node>::all(self.upper.clone()), node).await;
    }

    /// Creates a class with delayed binding, and returns its name.
    async fn class(&self, client: &Client, provisioner: &str) -> String {
        let name = format!("class-{}", self.namespace.name());
        let class = json!({
            "metadata": {"name": name}, "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true,
        });
        made(&Objects::<StorageClass>::all(client.clone()), class).await;
        name
    }

    async fn claim(&self, name: &str, class: &str) -> PersistentVolumeClaim {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}},
        });
        made(&self.claims(), json!({"metadata": {"name": name}, "spec": spec})).await
    }

    /// A pod that uses a claim, on a node with these labels.
    async fn pod(&self, name: &str, claim: &str, selector: Value) {
        let spec = json!({
            "containers": [{"name": "main", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
            "nodeSelector": selector, "tolerations": [{"operator": "Exists"}],
            "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
        });
        made(&self.pods(), json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    /// The node that the scheduler binds a pod to.
    async fn place(&self, pod: &str) -> String {
        eventually(&format!("{pod} has a node"), SOON, || async {
            let pod = self.pods().get(pod).await.map_err(|error| error.to_string())?;
            let status = format!("{:?}", pod.status.and_then(|status| status.conditions));
            pod.spec.and_then(|spec| spec.node_name).ok_or(status)
        })
        .await
    }

    /// Type and message of the event with this reason on a claim.
    async fn told(&self, claim: &str, reason: &str) -> (String, String) {
        let events: Objects<Event> = Objects::namespaced(self.upper.clone(), self.namespace.name());
        eventually(&format!("{reason} is told"), SOON, || async {
            let uid = self.claims().get(claim).await.unwrap().metadata.uid.unwrap();
            let selector = Selector { fields: Some(format!("involvedObject.uid={uid}")), labels: None };
            let events = events.list(&selector).await.map_err(|error| error.to_string())?.objects;
            let found = events.iter().find(|event| event.reason.as_deref() == Some(reason));
            found
                .map(|event| (event.type_.clone().unwrap(), event.message.clone().unwrap()))
                .ok_or_else(|| format!("{:?}", events.iter().map(|event| &event.reason).collect::<Vec<_>>()))
        })
        .await
    }

    async fn end(self) {
        assert!(self.supervisor.shut_down(Duration::from_secs(10)).await);
    }
}

async fn made<K: Object>(objects: &Objects<K>, value: Value) -> K {
    objects.create(&serde_json::from_value(value).unwrap()).await.unwrap()
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_claim_is_bound_to_the_lower_cluster_of_its_first_pod() {
    let fixture = StorageFixture::new(ControlPlane::shared_with_controllers().await).await;
    let other = format!("other-{}", fixture.namespace.name());
    fixture.node(&fixture.owner.node, &fixture.cluster).await;
    fixture.node(&other, "paris").await;
    let class = fixture.class(&fixture.upper, PROVISIONER).await;
    let claim = fixture.claim("data", &class).await;
    let uid = claim.metadata.uid.unwrap();
    fixture.pod("first", "data", json!({"kubernetes.io/hostname": fixture.owner.node})).await;
    assert_eq!(fixture.place("first").await, fixture.owner.node);

    let claim = fixture.claims().get("data").await.unwrap();
    assert_eq!(claim.spec.as_ref().unwrap().volume_name, Some(format!("pvc-{uid}")));
    let volume = fixture.volumes().get(&format!("pvc-{uid}")).await.unwrap();
    assert_eq!(volume.spec.unwrap().claim_ref.unwrap().uid.as_ref(), Some(&uid));
    assert_eq!(fixture.told("data", "ProvisioningSucceeded").await.0, "Normal");

    // Both nodes fit apart from the claim, which excludes one of them.
    let first = fixture.pods().get("first").await.unwrap();
    fixture.pods().delete_with_grace("first", &first.metadata.uid.unwrap(), Duration::ZERO).await.unwrap();
    fixture.pod("next", "data", json!({"test": fixture.namespace.name()})).await;
    assert_eq!(fixture.place("next").await, fixture.owner.node);
    fixture.claim("unclaimed", &class).await;
    fixture.pod("elsewhere", "unclaimed", json!({"kubernetes.io/hostname": other})).await;
    eventually("the scheduler chooses the other node", SOON, || async {
        let claim = fixture.claims().get("unclaimed").await.unwrap();
        let chosen = names::annotation(&claim.metadata, SELECTED_NODE).map(str::to_owned);
        if chosen.as_deref() == Some(other.as_str()) { Ok(()) } else { Err(format!("{chosen:?}")) }
    })
    .await;

    // The placeholder is deleted with the claim, because its class says so by default, and not with the pod.
    let next = fixture.pods().get("next").await.unwrap();
    fixture.pods().delete_with_grace("next", &next.metadata.uid.unwrap(), Duration::ZERO).await.unwrap();
    fixture.claims().delete("data", &uid).await.unwrap();
    eventually("the claim is gone", SOON, || async {
        match fixture.claims().get("data").await {
            Err(error) if error.kind == Kind::NotFound => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    eventually("the placeholder is gone", SOON, || async {
        match fixture.volumes().get(&format!("pvc-{uid}")).await {
            Err(error) if error.kind == Kind::NotFound => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let unclaimed = fixture.claims().get("unclaimed").await.unwrap();
    assert_eq!(unclaimed.spec.as_ref().unwrap().volume_name, None, "that is another cluster's");
    fixture.end().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_claim_of_an_upper_class_gets_a_warning() {
    let fixture = StorageFixture::new(ControlPlane::shared_with_controllers().await).await;
    fixture.node(&fixture.owner.node, &fixture.cluster).await;
    let class = fixture.class(&fixture.upper, "disks.example.com").await;
    let uid = fixture.claim("data", &class).await.metadata.uid.unwrap();
    fixture.pod("first", "data", json!({"kubernetes.io/hostname": fixture.owner.node})).await;
    let (kind, message) = fixture.told("data", "ProvisionedAbove").await;
    assert_eq!(kind, "Warning");
    for word in [class.as_str(), "disks.example.com", fixture.owner.node.as_str(), PROVISIONER] {
        assert!(message.contains(word), "{message}");
    }
    let error = fixture.volumes().get(&format!("pvc-{uid}")).await.unwrap_err();
    assert_eq!(error.kind, Kind::NotFound);
    fixture.end().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_foreign_volume_stays_and_the_claim_gets_a_warning() {
    let fixture = StorageFixture::new(ControlPlane::shared().await).await;
    let class = fixture.class(&fixture.upper, PROVISIONER).await;
    let uid = fixture.claim("data", &class).await.metadata.uid.unwrap();
    let name = format!("pvc-{uid}");
    let spec = json!({"capacity": {"storage": "9Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/theirs"}});
    let theirs = made(&fixture.volumes(), json!({"metadata": {"name": name}, "spec": spec})).await;
    let chosen = json!({"metadata": {"annotations": {SELECTED_NODE: fixture.owner.node}}});
    let claim = fixture.claims().patch("data", Patch::Merge(&chosen)).await.unwrap();
    let (kind, message) = fixture.told("data", "ProvisioningFailed").await;
    assert!(kind == "Warning" && message.contains(&name), "{kind} {message}");
    assert_eq!(fixture.volumes().get(&name).await.unwrap(), theirs);
    assert_eq!(fixture.claims().get("data").await.unwrap(), claim, "users' claims are not written to");
    fixture.end().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_larger_request_is_copied_and_its_progress_reported() {
    let fixture = StorageFixture::new(ControlPlane::shared_with_controllers().await).await;
    fixture.node(&fixture.owner.node, &fixture.cluster).await;
    let class = fixture.class(&fixture.upper, PROVISIONER).await;
    fixture.class(&fixture.lower, "disks.example.com").await;
    fixture.claim("data", &class).await;
    fixture.pod("first", "data", json!({"kubernetes.io/hostname": fixture.owner.node})).await;
    fixture.place("first").await;
    let (events, _heard) = mpsc::channel(16);
    let copier = Copier::new(copies::CopierOptions {
        upper: fixture.upper.clone(),
        claims: None,
        upper_watches: None,
        lower: fixture.lower.clone(),
        lower_cluster: LowerCluster::start(LowerClusterOptions {
            client: fixture.lower.clone(),
            origin: fixture.owner.origin.clone(),
            cluster: None,
            namespaces: NamespaceMapping::Suffix("-below".to_owned()),
            autoscales: false,
            supervisor: fixture.supervisor.clone(),
        }),
        owner: fixture.owner.clone(),
        namespaces: NamespaceMapping::Suffix("-below".to_owned()),
        storage_classes: BTreeMap::new(),
        metadata: copies::KeptMetadata::default(),
        supervisor: fixture.supervisor.clone(),
        events,
        grace: copies::GRACE,
        namespace_retention: Duration::from_hours(1),
        clock: Clock::system(),
    });
    let pod = PodRef::of(&fixture.pods().get("first").await.unwrap()).unwrap();
    let needs = Dependencies { claims: ["data".to_owned()].into(), ..Dependencies::default() };
    copier.ensure(&pod, needs).await.unwrap();

    // What a lower provisioner does.
    let namespace = format!("{}-below", fixture.namespace.name());
    let copies: Objects<PersistentVolumeClaim> = Objects::namespaced(fixture.lower.clone(), &namespace);
    let copy = copies.get("data").await.unwrap();
    assert_eq!(copy.spec.as_ref().unwrap().volume_name, None, "the upper volume is of the upper cluster");
    let status = |size: &str, conditions: Value| json!({"status": {"phase": "Bound", "capacity": {"storage": size}, "conditions": conditions}});
    copies.patch("data", Patch::Merge(&json!({"spec": {"volumeName": "disk-1"}}))).await.unwrap();
    copies.patch_status("data", Patch::Merge(&status("1Gi", json!([])))).await.unwrap();

    let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let claim = fixture.claims().patch("data", Patch::Merge(&larger)).await.unwrap();
    eventually("the lower claim asks for more", SOON, || async {
        let spec = copies.get("data").await.unwrap().spec.unwrap();
        let requests = spec.resources.unwrap().requests.unwrap();
        if requests["storage"].0 == "2Gi" { Ok(()) } else { Err(format!("{requests:?}")) }
    })
    .await;

    let refused = json!([{"type": "ControllerResizeError", "status": "True", "message": "the disk is full"}]);
    copies.patch_status("data", Patch::Merge(&status("1Gi", refused))).await.unwrap();
    let told = fixture.told("data", "ControllerResizeError").await;
    assert_eq!(told, ("Warning".to_owned(), "the disk is full (lower)".to_owned()));
    copies.patch_status("data", Patch::Merge(&status("2Gi", json!([])))).await.unwrap();
    assert_eq!(fixture.told("data", "Resized").await.1, "the claim now has 2Gi (lower)");
    let after = fixture.claims().get("data").await.unwrap();
    assert_eq!(after.spec, claim.spec);
    fixture.end().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_missing_permission_is_reported_on_the_claim_and_retried() {
    let cluster = ControlPlane::shared().await;
    let user = format!("storage-{:08x}", rand::random::<u32>());
    let fixture = StorageFixture::serving(cluster, cluster.client_for(&user, &[]).unwrap()).await;
    let (roles, bindings) = (
        Objects::<ClusterRole>::all(fixture.upper.clone()),
        Objects::<ClusterRoleBinding>::all(fixture.upper.clone()),
    );
    let rule = |group: &str, resource: &str, verbs: &[&str]| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
    let mut rules = vec![
        rule("", "persistentvolumeclaims", &["list", "watch"]),
        rule("storage.k8s.io", "storageclasses", &["get"]),
        rule("events.k8s.io", "events", &["create", "patch"]),
    ];
    made(&roles, json!({"metadata": {"name": user}, "rules": rules})).await;
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user});
    made(&bindings, json!({"metadata": {"name": user}, "roleRef": role, "subjects": [subject]})).await;
    let class = fixture.class(&fixture.upper, PROVISIONER).await;
    let uid = fixture.claim("data", &class).await.metadata.uid.unwrap();
    let chosen = json!({"metadata": {"annotations": {SELECTED_NODE: fixture.owner.node}}});
    fixture.claims().patch("data", Patch::Merge(&chosen)).await.unwrap();
    let (kind, message) = fixture.told("data", "ProvisioningFailed").await;
    assert_eq!(kind, "Warning");
    assert!(message.contains(&user) && message.contains("cannot create resource"), "{message}");

    rules.push(rule("", "persistentvolumes", &["get", "create"]));
    roles.patch(&user, Patch::Merge(&json!({"rules": rules}))).await.unwrap();
    fixture.told("data", "ProvisioningSucceeded").await;
    fixture.volumes().get(&format!("pvc-{uid}")).await.unwrap();
    fixture.end().await;
}
