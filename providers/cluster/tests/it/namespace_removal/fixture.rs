//! A virtual node in a scripted cluster with one namespace.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use vk_provider::PodEvent;
use vk_provider_cluster::{
    copies::{Copier, CopierOptions, KeptMetadata},
    lower_cluster::{LowerCluster, LowerClusterOptions},
    names::{NODE, NamespaceMapping, ORIGIN, ORIGIN_NAMESPACE, OwnerId},
    owner_config_map,
};
use vk_supervisor::{Clock, Supervisor};

use crate::{
    fake_api_server::{FakeApiServer, RecordedRequest, ScriptedAnswer},
    scripted_cluster::{ScriptedCluster, owner},
};

pub(super) const NAMESPACE: &str = "/api/v1/namespaces/web";
pub(super) const RETIRING: &str = "multicluster.virtual-kubelet.io/retiring";

pub(super) fn owner_map(owner: &OwnerId) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "web", "resourceVersion": "7",
        "name": owner_config_map::name(owner), "uid": format!("of-{}", owner.node),
        "labels": {ORIGIN: owner.origin, NODE: owner.node}}})
}

pub(super) fn list(kind: &str, items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": format!("{kind}List"), "metadata": {"resourceVersion": "9"}, "items": items})
}

/// A cluster with a namespace that was created for our upper cluster, and these owner ConfigMaps in it.
pub(super) fn cluster_with(maps: &[Value]) -> ScriptedCluster {
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

/// The path of the owner ConfigMap of our node.
pub(super) fn own_map() -> String {
    format!("{NAMESPACE}/configmaps/{}", owner_config_map::name(&owner()))
}

/// The mark that a patch sets; `None` if it removes it.
pub(super) fn mark(request: &RecordedRequest) -> Option<String> {
    let patch: Value = serde_json::from_slice(&request.body).unwrap();
    patch["metadata"]["annotations"][RETIRING].as_str().map(str::to_owned)
}

/// The copier of our virtual node with a scripted cluster.
pub(super) struct CopierFixture {
    pub(super) server: FakeApiServer,
    pub(super) cluster: Arc<Mutex<ScriptedCluster>>,
    pub(super) copier: Copier,
    supervisor: Supervisor,
    _events: mpsc::Receiver<PodEvent>,
}

impl CopierFixture {
    pub(super) async fn start(cluster: ScriptedCluster, namespace_retention: Duration) -> Self {
        Self::start_with(cluster, namespace_retention, |_, _| None).await
    }

    /// With a script that may answer instead of the cluster.
    pub(super) async fn start_with(
        cluster: ScriptedCluster,
        namespace_retention: Duration,
        script: impl Fn(&RecordedRequest, &mut ScriptedCluster) -> Option<ScriptedAnswer> + Send + Sync + 'static,
    ) -> Self {
        let cluster = Arc::new(Mutex::new(cluster));
        let shared = Arc::clone(&cluster);
        let server = FakeApiServer::start(move |request| {
            let mut cluster = shared.lock();
            script(request, &mut cluster).unwrap_or_else(|| cluster.answer_and_store(request))
        })
        .await;
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
                autoscales: false,
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

    /// The values of the marks that our node has set, `None` where it has removed them.
    pub(super) fn marks(&self) -> Vec<Option<String>> {
        let asked = self.server.asked().into_iter().filter(|request| request.method == Method::PATCH);
        asked.filter(|request| request.path == own_map()).map(|request| mark(&request)).collect()
    }

    /// The paths of the objects that were deleted.
    pub(super) fn deletions(&self) -> Vec<String> {
        let asked = self.server.asked().into_iter().filter(|request| request.method == Method::DELETE);
        asked.map(|request| request.path).collect()
    }
}

impl Drop for CopierFixture {
    fn drop(&mut self) {
        self.supervisor.stop();
    }
}
