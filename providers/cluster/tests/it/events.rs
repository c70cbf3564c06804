//! Events of a real lower cluster, relayed to the upper pods.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{Event, PersistentVolumeClaim, Pod},
    rbac::v1::{Role, RoleBinding},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use vk_kube::{Client, Kind, Metrics, Objects, Patch, Selector};
use vk_provider::{EventKind, PodEvent, PodRef};
use vk_provider_cluster::{
    events::{EventOptions, PodLookup, start},
    lower_cluster::{LowerCluster, LowerClusterOptions},
    names::{NamespaceMapping, OwnerId},
};
use vk_supervisor::Supervisor;
use vk_testing::{ControlPlane, control_plane::Options};

const SOON: Duration = Duration::from_mins(1);

/// The provider's knowledge of its pods.
#[derive(Default)]
struct KnownPods {
    upper_pods: Mutex<HashMap<String, PodRef>>,
    users: Mutex<HashMap<(String, String), Vec<PodRef>>>,
}

impl PodLookup for KnownPods {
    fn upper_pod(&self, _namespace: &str, _name: &str, uid: &str) -> Option<PodRef> {
        self.upper_pods.lock().get(uid).cloned()
    }

    fn claim_users(&self, namespace: &str, claim: &str) -> Vec<PodRef> {
        self.users.lock().get(&(namespace.to_owned(), claim.to_owned())).cloned().unwrap_or_default()
    }
}

struct RelayFixture {
    lower: Client,
    namespaces: NamespaceMapping,
    pods: Arc<KnownPods>,
    supervisor: Supervisor,
    events: mpsc::Receiver<PodEvent>,
    marks: u32,
}

impl RelayFixture {
    fn new(lower: kube::Client, namespaces: NamespaceMapping) -> Self {
        let lower = Client::fixed(lower, Metrics::default());
        let pods = Arc::<KnownPods>::default();
        let (supervisor, events) = begin(&lower, &namespaces, &pods);
        Self { lower, namespaces, pods, supervisor, events, marks: 0 }
    }

    async fn restart(&mut self) {
        assert!(self.supervisor.shut_down(Duration::from_secs(10)).await);
        (self.supervisor, self.events) = begin(&self.lower, &self.namespaces, &self.pods);
    }

    async fn told(&mut self) -> PodEvent {
        tokio::time::timeout(SOON, self.events.recv()).await.expect("an event is told").unwrap()
    }

    fn know(&self, lower: &Pod) -> PodRef {
        let name = lower.metadata.name.clone().unwrap();
        let upper = PodRef::new("above", name.as_str(), format!("upper-{name}"));
        self.pods.upper_pods.lock().insert(lower.metadata.uid.clone().unwrap(), upper.clone());
        upper
    }

    /// Writes lower events until one of them is relayed, because the watch may not have started before. Returns the reasons of the other
    /// events.
    async fn begun(&mut self, events: &Objects<Event>, involved: &Pod) -> Vec<String> {
        let mut others = Vec::new();
        let (last, mut heard) = loop {
            self.marks += 1;
            assert!(self.marks < 500, "nothing is told");
            let name = format!("mark-{}", self.marks);
            events.create(&event(involved, &name, "Mark", &name)).await.unwrap();
            if let Ok(told) = tokio::time::timeout(Duration::from_millis(500), self.events.recv()).await {
                let told = told.unwrap();
                if told.reason == "Mark" {
                    break (name, told);
                }
                others.push(told.reason);
            }
        };
        // Waits for the last event, so that none is late.
        while !heard.message.starts_with(&format!("{last} ")) {
            heard = self.told().await;
            if heard.reason != "Mark" {
                others.push(heard.reason.clone());
            }
        }
        others
    }
}

fn begin(
    lower: &Client,
    namespaces: &NamespaceMapping,
    pods: &Arc<KnownPods>,
) -> (Supervisor, mpsc::Receiver<PodEvent>) {
    let (sender, events) = mpsc::channel(64);
    let supervisor = Supervisor::new();
    start(EventOptions {
        lower: LowerCluster::start(LowerClusterOptions {
            client: lower.clone(),
            origin: "o".to_owned(),
            cluster: None,
            namespaces: namespaces.clone(),
            autoscales: false,
            supervisor: supervisor.clone(),
        }),
        owner: OwnerId { origin: "o".to_owned(), node: "vk".to_owned() },
        pods: Arc::clone(pods) as Arc<dyn PodLookup>,
        supervisor: supervisor.clone(),
        events: sender,
    });
    (supervisor, events)
}

/// An event as a kubelet writes it.
fn event(involved: &Pod, name: &str, reason: &str, message: &str) -> Event {
    let namespace = involved.metadata.namespace.clone().unwrap();
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"kind": "Pod", "apiVersion": "v1", "namespace": namespace,
            "name": involved.metadata.name, "uid": involved.metadata.uid, "fieldPath": "spec.containers{main}"},
        "reason": reason, "message": message, "type": "Warning", "count": 1,
        "source": {"component": "kubelet", "host": "node-7"},
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
    }))
    .unwrap()
}

async fn pod(client: &Client, namespace: &str, name: &str, volumes: Value) -> Pod {
    let pods: Objects<Pod> = Objects::namespaced(client.clone(), namespace);
    let pod = json!({
        "metadata": {"name": name},
        "spec": {"automountServiceAccountToken": false, "volumes": volumes,
            "containers": [{"name": "main", "image": "i"}]},
    });
    pods.create(&serde_json::from_value(pod).unwrap()).await.unwrap()
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_event_is_relayed_once_and_not_again_after_a_restart() {
    let cluster = ControlPlane::shared().await;
    let namespace = cluster.namespace("events").await.unwrap();
    let mut fixture = RelayFixture::new(cluster.admin().unwrap(), NamespaceMapping::Same);
    let [ours, theirs] = ["ours", "theirs"].map(|name| {
        let (client, namespace) = (fixture.lower.clone(), namespace.name().to_owned());
        async move { pod(&client, &namespace, name, json!([])).await }
    });
    let (ours, theirs) = (ours.await, theirs.await);
    let events: Objects<Event> = Objects::namespaced(fixture.lower.clone(), namespace.name());
    let upper = fixture.know(&ours);
    assert!(fixture.begun(&events, &ours).await.is_empty());

    events.create(&event(&theirs, "e0", "Failed", "not ours")).await.unwrap();
    events.create(&event(&ours, "e1", "Failed", "no such image")).await.unwrap();
    let told = fixture.told().await;
    assert_eq!((&told.pod, told.reason.as_str(), told.kind), (&upper, "Failed", EventKind::Warning));
    assert_eq!(told.message, "no such image (lower: kubelet, node-7)");
    assert_eq!(told.container.as_deref(), Some("main"));

    // Updated, but not repeated.
    let label = json!({"metadata": {"labels": {"seen": "yes"}}});
    events.patch("e1", Patch::Merge(&label)).await.unwrap();
    fixture.restart().await;
    let others = fixture.begun(&events, &ours).await;
    assert!(others.is_empty(), "{others:?}");
    events.patch("e1", Patch::Merge(&json!({"count": 2}))).await.unwrap();
    let told = fixture.told().await;
    assert_eq!((told.pod, told.reason.as_str()), (upper, "Failed"), "it has happened again");
    assert!(fixture.events.try_recv().is_err());
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn liqo_2603_errors_of_lower_controllers_are_relayed() {
    let cluster = ControlPlane::shared_with_controllers().await;
    let namespace = cluster.namespace("events").await.unwrap();
    let mut fixture = RelayFixture::new(cluster.admin().unwrap(), NamespaceMapping::Same);
    // The claim is created first, as the copier does.
    let claims: Objects<PersistentVolumeClaim> = Objects::namespaced(fixture.lower.clone(), namespace.name());
    let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "unknown-below",
        "resources": {"requests": {"storage": "1Gi"}}});
    let claim = json!({"metadata": {"name": "data"}, "spec": spec});
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    let events: Objects<Event> = Objects::namespaced(fixture.lower.clone(), namespace.name());
    let first = pod(&fixture.lower, namespace.name(), "first", json!([])).await;
    fixture.know(&first);
    fixture.begun(&events, &first).await;
    claims.create(&serde_json::from_value(claim).unwrap()).await.unwrap();
    let lower = pod(&fixture.lower, namespace.name(), "a", volumes).await;
    let upper = fixture.know(&lower);
    let key = (namespace.name().to_owned(), "data".to_owned());
    fixture.pods.users.lock().insert(key, vec![upper.clone()]);

    let (mut scheduler, mut volumes) = (None, None);
    while scheduler.is_none() || volumes.is_none() {
        let told = fixture.told().await;
        if told.pod == upper {
            match told.reason.as_str() {
                "FailedScheduling" => scheduler = Some(told.message),
                "ProvisioningFailed" => volumes = Some(told.message),
                _ => {}
            }
        }
    }
    let (scheduler, volumes) = (scheduler.unwrap(), volumes.unwrap());
    assert!(scheduler.ends_with("(lower: default-scheduler)"), "{scheduler}");
    assert!(volumes.starts_with("PersistentVolumeClaim data: storageclass.storage.k8s.io"), "{volumes}");
    assert!(volumes.contains("\"unknown-below\" not found"), "{volumes}");
    assert!(volumes.ends_with("(lower: persistentvolume-controller)"), "{volumes}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_role_in_the_mapped_namespaces_suffices_and_can_be_granted_late() {
    let cluster = ControlPlane::shared().await;
    let namespace = cluster.namespace("events").await.unwrap();
    let user = format!("reader-of-{}", namespace.name());
    let map = NamespaceMapping::Map([("above".to_owned(), namespace.name().to_owned())].into());
    let mut fixture = RelayFixture::new(cluster.client_for(&user, &[]).unwrap(), map);
    let all = Client::fixed(cluster.admin().unwrap(), Metrics::default());
    let ours = pod(&all, namespace.name(), "ours", json!([])).await;
    fixture.know(&ours);
    let events: Objects<Event> = Objects::namespaced(all.clone(), namespace.name());
    let refused: Objects<Event> = Objects::namespaced(fixture.lower.clone(), namespace.name());
    let error = refused.list(&Selector::default()).await.unwrap_err();
    assert_eq!(error.kind, Kind::Forbidden, "{error}");

    let roles: Objects<Role> = Objects::namespaced(all.clone(), namespace.name());
    let rules = json!([{"apiGroups": [""], "resources": ["events"], "verbs": ["list", "watch"]}]);
    roles
        .create(&serde_json::from_value(json!({"metadata": {"name": "r"}, "rules": rules})).unwrap())
        .await
        .unwrap();
    let bindings: Objects<RoleBinding> = Objects::namespaced(all.clone(), namespace.name());
    let binding = json!({
        "metadata": {"name": "r"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    bindings.create(&serde_json::from_value(binding).unwrap()).await.unwrap();
    fixture.begun(&events, &ours).await;
    events.create(&event(&ours, "e", "Unhealthy", "probe failed")).await.unwrap();
    assert_eq!(fixture.told().await.message, "probe failed (lower: kubelet, node-7)");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn after_an_outage_only_new_events_are_relayed() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let namespace = cluster.namespace("events").await.unwrap();
    let mut fixture = RelayFixture::new(cluster.admin().unwrap(), NamespaceMapping::Same);
    let ours = pod(&fixture.lower, namespace.name(), "ours", json!([])).await;
    let events: Objects<Event> = Objects::namespaced(fixture.lower.clone(), namespace.name());
    fixture.know(&ours);
    fixture.begun(&events, &ours).await;
    events.create(&event(&ours, "before", "Unhealthy", "before")).await.unwrap();
    assert_eq!(fixture.told().await.reason, "Unhealthy");
    cluster.kill_api_server().await.unwrap();
    cluster.start_api_server().await.unwrap();
    // Over another connection, and perhaps before the watch is back.
    let fresh = Client::fixed(cluster.admin().unwrap(), Metrics::default());
    let events: Objects<Event> = Objects::namespaced(fresh, namespace.name());
    events.create(&event(&ours, "after", "Failed", "after")).await.unwrap();
    let told = fixture.told().await;
    assert_eq!((told.reason.as_str(), told.message.as_str()), ("Failed", "after (lower: kubelet, node-7)"));
    assert!(fixture.begun(&events, &ours).await.is_empty(), "nothing is told twice");
}
