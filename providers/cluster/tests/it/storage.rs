//! Claims that wait above for a node, and what the lower cluster has to do with them.

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
    names::{self, NamespaceMapping, Owner},
    storage::{PROVISIONER, StorageOptions, follow},
};
use vk_supervisor::Supervisor;
use vk_testing::{ControlPlane, control_plane, eventually};

const SOON: Duration = Duration::from_mins(1);
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Two clusters, and whoever serves the claims of one virtual node between them.
struct Rig {
    namespace: control_plane::Namespace,
    upper: Client,
    lower: Client,
    owner: Owner,
    /// What the lower cluster is called.
    cluster: String,
    supervisor: Supervisor,
}

impl Rig {
    async fn new(upper: &ControlPlane) -> Self {
        Self::serving(upper, upper.admin().unwrap()).await
    }

    /// With a client of few rights for the upper cluster.
    async fn serving(upper: &ControlPlane, served: kube::Client) -> Self {
        let namespace = upper.namespace("storage").await.unwrap();
        let lower = ControlPlane::shared().await;
        let [upper, lower] = [upper, lower].map(|it| Client::fixed(it.admin().unwrap(), Metrics::default()));
        let owner = Owner { origin: namespace.name().to_owned(), node: format!("vk-{}", namespace.name()) };
        let cluster = format!("berlin-{}", namespace.name());
        let supervisor = Supervisor::new();
        follow(StorageOptions {
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
        Objects::cluster(self.upper.clone())
    }

    /// A node with room, which no pod of others gets on.
    async fn node(&self, name: &str, cluster: &str) {
        let room = json!({"cpu": "8", "memory": "8Gi", "pods": "100"});
        let labels =
            json!({names::CLUSTER: cluster, "test": self.namespace.name(), "kubernetes.io/hostname": name});
        let taints = json!([{"key": "test", "effect": "NoSchedule"}]);
        let node = json!({
            "metadata": {"name": name, "labels": labels}, "spec": {"taints": taints},
            "status": {"capacity": room, "allocatable": room},
        });
        made(&Objects::<Node>::cluster(self.upper.clone()), node).await;
    }

    /// A class whose claims wait for their first pod; its name.
    async fn class(&self, client: &Client, provisioner: &str) -> String {
        let name = format!("class-{}", self.namespace.name());
        let class = json!({
            "metadata": {"name": name}, "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true,
        });
        made(&Objects::<StorageClass>::cluster(client.clone()), class).await;
        name
    }

    async fn claim(&self, name: &str, class: &str) -> PersistentVolumeClaim {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}},
        });
        made(&self.claims(), json!({"metadata": {"name": name}, "spec": spec})).await
    }

    /// A pod that uses a claim, on a node that has these labels.
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

    /// The event of this reason on a claim: its type and text.
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
async fn a_claim_is_bound_to_the_lower_cluster_of_its_first_pod_and_draws_the_next_one_there() {
    let rig = Rig::new(ControlPlane::shared_with_controllers().await).await;
    let other = format!("other-{}", rig.namespace.name());
    rig.node(&rig.owner.node, &rig.cluster).await;
    rig.node(&other, "paris").await;
    let class = rig.class(&rig.upper, PROVISIONER).await;
    let claim = rig.claim("data", &class).await;
    let uid = claim.metadata.uid.unwrap();
    rig.pod("first", "data", json!({"kubernetes.io/hostname": rig.owner.node})).await;
    assert_eq!(rig.place("first").await, rig.owner.node);

    let claim = rig.claims().get("data").await.unwrap();
    assert_eq!(claim.spec.as_ref().unwrap().volume_name, Some(format!("pvc-{uid}")));
    let volume = rig.volumes().get(&format!("pvc-{uid}")).await.unwrap();
    assert_eq!(volume.spec.unwrap().claim_ref.unwrap().uid.as_ref(), Some(&uid));
    assert_eq!(rig.told("data", "ProvisioningSucceeded").await.0, "Normal");

    // Both nodes would do, were it not for the claim; and one that does not is not taken.
    let first = rig.pods().get("first").await.unwrap();
    rig.pods().delete_now("first", &first.metadata.uid.unwrap()).await.unwrap();
    rig.pod("next", "data", json!({"test": rig.namespace.name()})).await;
    assert_eq!(rig.place("next").await, rig.owner.node);
    rig.claim("unclaimed", &class).await;
    rig.pod("elsewhere", "unclaimed", json!({"kubernetes.io/hostname": other})).await;
    eventually("the scheduler chooses the other node", SOON, || async {
        let claim = rig.claims().get("unclaimed").await.unwrap();
        let chosen = names::annotation(&claim.metadata, SELECTED_NODE).map(str::to_owned);
        if chosen.as_deref() == Some(other.as_str()) { Ok(()) } else { Err(format!("{chosen:?}")) }
    })
    .await;

    // It goes with nobody's pod or claim: what is below may be needed.
    let next = rig.pods().get("next").await.unwrap();
    rig.pods().delete_now("next", &next.metadata.uid.unwrap()).await.unwrap();
    rig.claims().delete("data", &uid).await.unwrap();
    eventually("the claim is gone", SOON, || async {
        match rig.claims().get("data").await {
            Err(error) if error.kind == Kind::NotFound => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let kept = rig.volumes().get(&format!("pvc-{uid}")).await.unwrap();
    assert_eq!(kept.metadata.deletion_timestamp, None);
    let unclaimed = rig.claims().get("unclaimed").await.unwrap();
    assert_eq!(unclaimed.spec.as_ref().unwrap().volume_name, None, "that is another cluster's");
    rig.end().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_claim_of_a_class_that_somebody_serves_above_is_told_so_and_left_alone() {
    let rig = Rig::new(ControlPlane::shared_with_controllers().await).await;
    rig.node(&rig.owner.node, &rig.cluster).await;
    let class = rig.class(&rig.upper, "disks.example.com").await;
    let uid = rig.claim("data", &class).await.metadata.uid.unwrap();
    rig.pod("first", "data", json!({"kubernetes.io/hostname": rig.owner.node})).await;
    let (kind, message) = rig.told("data", "ProvisionedAbove").await;
    assert_eq!(kind, "Warning");
    for word in [class.as_str(), "disks.example.com", rig.owner.node.as_str(), PROVISIONER] {
        assert!(message.contains(word), "{message}");
    }
    let error = rig.volumes().get(&format!("pvc-{uid}")).await.unwrap_err();
    assert_eq!(error.kind, Kind::NotFound);
    rig.end().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_volume_of_others_in_the_way_stays_as_it_is_and_the_claim_is_told() {
    let rig = Rig::new(ControlPlane::shared().await).await;
    let class = rig.class(&rig.upper, PROVISIONER).await;
    let uid = rig.claim("data", &class).await.metadata.uid.unwrap();
    let name = format!("pvc-{uid}");
    let spec = json!({"capacity": {"storage": "9Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/theirs"}});
    let theirs = made(&rig.volumes(), json!({"metadata": {"name": name}, "spec": spec})).await;
    let chosen = json!({"metadata": {"annotations": {SELECTED_NODE: rig.owner.node}}});
    let claim = rig.claims().patch("data", Patch::Merge(&chosen)).await.unwrap();
    let (kind, message) = rig.told("data", "ProvisioningFailed").await;
    assert!(kind == "Warning" && message.contains(&name), "{kind} {message}");
    assert_eq!(rig.volumes().get(&name).await.unwrap(), theirs);
    assert_eq!(rig.claims().get("data").await.unwrap(), claim, "users' claims are not written to");
    rig.end().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_larger_request_reaches_the_lower_claim_and_what_becomes_of_it_is_told_above() {
    let rig = Rig::new(ControlPlane::shared_with_controllers().await).await;
    rig.node(&rig.owner.node, &rig.cluster).await;
    let class = rig.class(&rig.upper, PROVISIONER).await;
    rig.class(&rig.lower, "disks.example.com").await;
    rig.claim("data", &class).await;
    rig.pod("first", "data", json!({"kubernetes.io/hostname": rig.owner.node})).await;
    rig.place("first").await;
    let (events, _heard) = mpsc::channel(16);
    let copier = Copier::new(copies::CopierOptions {
        upper: rig.upper.clone(),
        claims: None,
        lower: rig.lower.clone(),
        owner: rig.owner.clone(),
        namespaces: NamespaceMapping::Suffix("-below".to_owned()),
        storage_classes: BTreeMap::new(),
        supervisor: rig.supervisor.clone(),
        events,
        grace: copies::GRACE,
    });
    let pod = PodRef::of(&rig.pods().get("first").await.unwrap()).unwrap();
    let needs = Dependencies { claims: ["data".to_owned()].into(), ..Dependencies::default() };
    copier.ensure(&pod, needs).await.unwrap();

    // What a provisioner below does.
    let namespace = format!("{}-below", rig.namespace.name());
    let copies: Objects<PersistentVolumeClaim> = Objects::namespaced(rig.lower.clone(), &namespace);
    let copy = copies.get("data").await.unwrap();
    assert_eq!(copy.spec.as_ref().unwrap().volume_name, None, "the upper volume is of the upper cluster");
    let status = |size: &str, conditions: Value| json!({"status": {"phase": "Bound", "capacity": {"storage": size}, "conditions": conditions}});
    copies.patch("data", Patch::Merge(&json!({"spec": {"volumeName": "disk-1"}}))).await.unwrap();
    copies.patch_status("data", Patch::Merge(&status("1Gi", json!([])))).await.unwrap();

    let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let claim = rig.claims().patch("data", Patch::Merge(&larger)).await.unwrap();
    eventually("the lower claim asks for more", SOON, || async {
        let spec = copies.get("data").await.unwrap().spec.unwrap();
        let requests = spec.resources.unwrap().requests.unwrap();
        if requests["storage"].0 == "2Gi" { Ok(()) } else { Err(format!("{requests:?}")) }
    })
    .await;

    let refused = json!([{"type": "ControllerResizeError", "status": "True", "message": "the disk is full"}]);
    copies.patch_status("data", Patch::Merge(&status("1Gi", refused))).await.unwrap();
    let told = rig.told("data", "ControllerResizeError").await;
    assert_eq!(told, ("Warning".to_owned(), "the disk is full (lower)".to_owned()));
    copies.patch_status("data", Patch::Merge(&status("2Gi", json!([])))).await.unwrap();
    assert_eq!(rig.told("data", "Resized").await.1, "the claim has 2Gi now (lower)");
    let after = rig.claims().get("data").await.unwrap();
    assert_eq!(after.spec, claim.spec);
    rig.end().await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn what_may_not_be_done_is_told_on_the_claim_in_the_servers_words_and_done_once_it_may() {
    let cluster = ControlPlane::shared().await;
    let user = format!("storage-{:08x}", rand::random::<u32>());
    let rig = Rig::serving(cluster, cluster.client_for(&user, &[]).unwrap()).await;
    let (roles, bindings) = (
        Objects::<ClusterRole>::cluster(rig.upper.clone()),
        Objects::<ClusterRoleBinding>::cluster(rig.upper.clone()),
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
    let class = rig.class(&rig.upper, PROVISIONER).await;
    let uid = rig.claim("data", &class).await.metadata.uid.unwrap();
    let chosen = json!({"metadata": {"annotations": {SELECTED_NODE: rig.owner.node}}});
    rig.claims().patch("data", Patch::Merge(&chosen)).await.unwrap();
    let (kind, message) = rig.told("data", "ProvisioningFailed").await;
    assert_eq!(kind, "Warning");
    assert!(message.contains(&user) && message.contains("cannot create resource"), "{message}");

    rules.push(rule("", "persistentvolumes", &["get", "create"]));
    roles.patch(&user, Patch::Merge(&json!({"rules": rules}))).await.unwrap();
    rig.told("data", "ProvisioningSucceeded").await;
    rig.volumes().get(&format!("pvc-{uid}")).await.unwrap();
    rig.end().await;
}
