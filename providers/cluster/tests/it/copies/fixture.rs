//! A copier between two real API servers.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use serde_json::Value;
use tokio::sync::{OnceCell, mpsc};
use vk_kube::{Client, Kind, Metrics, Objects, objects::Object};
use vk_provider::{PodEvent, PodRef};
use vk_provider_cluster::{
    copies::{Copier, CopierOptions, KeptMetadata},
    dependencies::Dependencies,
    lower_cluster::{LowerCluster, LowerClusterOptions},
    names::{NamespaceMapping, OwnerId},
};
use vk_supervisor::{Clock, Supervisor};
use vk_testing::{
    ControlPlane,
    control_plane::{self, Options},
    eventually,
};

pub(super) const SOON: Duration = Duration::from_mins(1);
/// Long enough to be noticed, and short enough to wait for.
const GRACE: Duration = Duration::from_secs(3);

static LOWER: OnceCell<ControlPlane> = OnceCell::const_new();

/// An upper namespace, both clusters, and a copier between them.
pub(super) struct CopierFixture {
    pub(super) above: control_plane::Namespace,
    pub(super) namespace: String,
    pub(super) upper: Client,
    /// The client that the copier reads with.
    reader: Client,
    pub(super) lower: Client,
    pub(super) owner: OwnerId,
    retention: Duration,
    pub(super) copier: Copier,
    supervisor: Supervisor,
    pub(super) events: mpsc::Receiver<PodEvent>,
}

fn begin(
    reader: &Client,
    lower: &Client,
    owner: &OwnerId,
    namespace_retention: Duration,
) -> (Copier, Supervisor, mpsc::Receiver<PodEvent>) {
    let (sender, events) = mpsc::channel(16);
    let supervisor = Supervisor::new();
    let lower_cluster = LowerCluster::start(LowerClusterOptions {
        client: lower.clone(),
        origin: owner.origin.clone(),
        cluster: None,
        namespaces: NamespaceMapping::Suffix("-below".to_owned()),
        autoscales: false,
        supervisor: supervisor.clone(),
    });
    let copier = Copier::new(CopierOptions {
        upper: reader.clone(),
        claims: None,
        upper_watches: None,
        lower: lower.clone(),
        lower_cluster,
        owner: owner.clone(),
        namespaces: NamespaceMapping::Suffix("-below".to_owned()),
        storage_classes: BTreeMap::new(),
        metadata: KeptMetadata { labels: ["team".to_owned()].into(), ..KeptMetadata::default() },
        supervisor: supervisor.clone(),
        events: sender,
        grace: GRACE,
        namespace_retention,
        clock: Clock::system(),
    });
    (copier, supervisor, events)
}

impl CopierFixture {
    pub(super) async fn new() -> Self {
        let upper = ControlPlane::shared().await;
        Self::reading(Client::fixed(upper.admin().unwrap(), Metrics::default())).await
    }

    /// With a client of few permissions for the upper cluster.
    pub(super) async fn reading(reader: Client) -> Self {
        Self::with(reader, Duration::from_hours(1)).await
    }

    /// With lower namespaces that go this long after their last use.
    pub(super) async fn retaining(retention: Duration) -> Self {
        let upper = ControlPlane::shared().await;
        Self::with(Client::fixed(upper.admin().unwrap(), Metrics::default()), retention).await
    }

    async fn with(reader: Client, retention: Duration) -> Self {
        let upper = ControlPlane::shared().await;
        let lower =
            LOWER.get_or_init(|| async { ControlPlane::start(Options::default()).await.unwrap() }).await;
        let above = upper.namespace("reflect").await.unwrap();
        let [upper, lower] = [upper, lower].map(|it| Client::fixed(it.admin().unwrap(), Metrics::default()));
        // Each test is an upper cluster of its own.
        let owner = OwnerId { origin: above.name().to_owned(), node: "vk".to_owned() };
        let (copier, supervisor, events) = begin(&reader, &lower, &owner, retention);
        let namespace = format!("{}-below", above.name());
        Self { above, namespace, upper, reader, lower, owner, retention, copier, supervisor, events }
    }

    pub(super) async fn restart(&mut self) {
        assert!(self.supervisor.shut_down(Duration::from_secs(10)).await);
        (self.copier, self.supervisor, self.events) =
            begin(&self.reader, &self.lower, &self.owner, self.retention);
    }

    pub(super) fn pod(&self, name: &str) -> PodRef {
        PodRef::new(self.above.name(), name, format!("uid-of-{name}"))
    }

    pub(super) fn maps(&self) -> ObjectPair<ConfigMap> {
        ObjectPair::new(
            Objects::namespaced(self.upper.clone(), self.above.name()),
            Objects::namespaced(self.lower.clone(), &self.namespace),
        )
    }

    pub(super) fn secrets(&self) -> ObjectPair<Secret> {
        ObjectPair::new(
            Objects::namespaced(self.upper.clone(), self.above.name()),
            Objects::namespaced(self.lower.clone(), &self.namespace),
        )
    }

    pub(super) fn claims(&self) -> ObjectPair<PersistentVolumeClaim> {
        ObjectPair::new(
            Objects::namespaced(self.upper.clone(), self.above.name()),
            Objects::namespaced(self.lower.clone(), &self.namespace),
        )
    }
}

/// Objects of one kind in both clusters.
pub(super) struct ObjectPair<K> {
    pub(super) above: Objects<K>,
    pub(super) below: Objects<K>,
}

impl<K: Object> ObjectPair<K> {
    fn new(above: Objects<K>, below: Objects<K>) -> Self {
        Self { above, below }
    }

    pub(super) async fn create(&self, object: Value) {
        self.above.create(&serde_json::from_value(object).unwrap()).await.unwrap();
    }

    pub(super) async fn delete(objects: &Objects<K>, name: &str) {
        let object = serde_json::to_value(objects.get(name).await.unwrap()).unwrap();
        objects.delete(name, object["metadata"]["uid"].as_str().unwrap()).await.unwrap();
    }

    pub(super) async fn copy(&self, name: &str) -> Value {
        serde_json::to_value(self.below.get(name).await.unwrap()).unwrap()
    }

    pub(super) async fn becomes(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(what, SOON, || async {
            let copy = match self.below.get(name).await {
                Ok(copy) => serde_json::to_value(copy).unwrap(),
                Err(error) => return Err(error.to_string()),
            };
            if holds(&copy) { Ok(copy) } else { Err(copy.to_string()) }
        })
        .await
    }

    pub(super) async fn goes(&self, name: &str) {
        eventually(&format!("{name} is gone"), SOON, || async {
            match self.below.get(name).await {
                Err(error) if error.kind == Kind::NotFound => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
}

pub(super) fn needs(config_maps: &[&str], secrets: &[&str]) -> Dependencies {
    let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Dependencies { config_maps: all(config_maps), secrets: all(secrets), ..Dependencies::default() }
}
