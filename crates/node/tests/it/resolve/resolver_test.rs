//! Test fixture: a namespace, a node, a resolver factory with the node's permissions, and pods.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt as _, stream::BoxStream};
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{ConfigMap, Node, Pod, Secret},
};
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use prometheus_client::metrics::gauge::Gauge;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::sync::watch;
use vk_kube::{Client, Metrics};
use vk_node::resolve::{Limits, PodResolver, ResolverFactory, ServiceCache, Sources};
use vk_provider::{Result, resolve::FileSet};
use vk_supervisor::{Clock, Supervisor};
use vk_testing::{ControlPlane, eventually};

use crate::harness::SOON;

/// The address of the node.
pub(super) const HOST_IP: &str = "192.0.2.7";

/// A node with its resolver factory, and a namespace for its pods.
pub(super) struct ResolverTest<'a> {
    pub(super) cluster: &'a ControlPlane,
    pub(super) namespace: String,
    pub(super) node: String,
    pub(super) factory: ResolverFactory,
    supervisor: Supervisor,
}

/// Parameters of the resolver factory.
pub(super) struct Setup {
    pub(super) limits: Limits,
    pub(super) clock: Clock,
}

impl Default for Setup {
    fn default() -> Self {
        Self { limits: Limits::default(), clock: Clock::system() }
    }
}

impl ResolverTest<'static> {
    pub(super) async fn new(prefix: &str) -> Self {
        Self::with(prefix, Setup::default()).await
    }

    pub(super) async fn with(prefix: &str, setup: Setup) -> Self {
        Self::on(ControlPlane::shared().await, prefix, setup).await
    }
}

impl<'a> ResolverTest<'a> {
    pub(super) async fn on(cluster: &'a ControlPlane, prefix: &str, setup: Setup) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let node = format!("test-{prefix}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let namespace = cluster.namespace(prefix).await.unwrap().name().to_owned();
        let nodes = Api::<Node>::all(cluster.admin().unwrap());
        let object: Node = serde_json::from_value(json!({"metadata": {"name": node}})).unwrap();
        nodes.create(&PostParams::default(), &object).await.unwrap();
        let allocatable = json!({"status": {"allocatable": {"cpu": "4", "memory": "8Gi"}}});
        let object =
            nodes.patch_status(&node, &PatchParams::default(), &Patch::Merge(allocatable)).await.unwrap();
        let supervisor = Supervisor::new();
        let client = Client::fixed(cluster.node_client(&node).unwrap(), Metrics::default());
        let sources = Sources {
            services: ServiceCache::new(client.clone(), &supervisor),
            client,
            node: node.clone(),
            ips: vec![HOST_IP.parse().unwrap()],
            observed_node: watch::Sender::new(Some(Arc::new(object))).subscribe(),
            clock: setup.clock,
            limits: setup.limits,
            watches: Gauge::default(),
        };
        let factory = ResolverFactory::new(sources, &supervisor);
        Self { cluster, namespace, node, factory, supervisor }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.cluster.admin().unwrap(), &self.namespace)
    }

    /// Creates or replaces an object as an administrator.
    pub(super) async fn put<K>(&self, object: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug,
        K: Serialize + DeserializeOwned,
    {
        let object: K = serde_json::from_value(object).unwrap();
        let name = object.meta().name.clone().unwrap();
        let api = self.api::<K>();
        match api.get_opt(&name).await.unwrap() {
            Some(_) => api.patch(&name, &PatchParams::default(), &Patch::Merge(object)).await.unwrap(),
            None => api.create(&PostParams::default(), &object).await.unwrap(),
        }
    }

    pub(super) async fn config_map(&self, name: &str, data: Value) -> ConfigMap {
        self.put(json!({"metadata": {"name": name}, "data": data})).await
    }

    pub(super) async fn secret(&self, name: &str, data: Value) -> Secret {
        self.put(json!({"metadata": {"name": name}, "stringData": data})).await
    }

    pub(super) async fn remove<K>(&self, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug,
        K: DeserializeOwned,
    {
        self.api::<K>().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Creates a pod that is bound to the node, and its resolver. `spec` is merged into the pod's spec.
    pub(super) async fn pod(&self, name: &str, spec: Value) -> (Arc<Pod>, PodResolver) {
        let mut whole = json!({
            "nodeName": self.node,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": [{"name": "main", "image": "example.com/app:1"}],
        });
        for (key, value) in spec.as_object().unwrap() {
            whole[key] = value.clone();
        }
        let pod: Pod =
            self.put(json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": whole})).await;
        let pod = Arc::new(pod);
        let resolver = self.factory.pod(&pod);
        (pod, resolver)
    }

    /// Waits until `count` objects are watched.
    pub(super) async fn wait_for_watches(&self, count: usize) {
        eventually("the watches of objects", SOON, || async {
            let now = self.factory.watched_objects();
            if now == count { Ok(()) } else { Err(format!("{now} are open")) }
        })
        .await;
    }
}

impl Drop for ResolverTest<'_> {
    fn drop(&mut self) {
        self.supervisor.stop();
    }
}

/// The next files of a volume.
pub(super) async fn next(volume: &mut BoxStream<'static, Result<FileSet>>) -> Result<FileSet> {
    let item = tokio::time::timeout(SOON, volume.next()).await.expect("files in time");
    item.expect("more files")
}

/// Files as text.
pub(super) fn texts(set: &FileSet) -> Vec<(&str, &str)> {
    set.files
        .iter()
        .map(|(path, file)| (path.as_str(), std::str::from_utf8(&file.content).unwrap()))
        .collect()
}

/// Checks that no more files arrive for half a second.
pub(super) async fn no_more(volume: &mut BoxStream<'static, Result<FileSet>>) {
    let more = tokio::time::timeout(Duration::from_millis(500), volume.next()).await;
    assert!(more.is_err(), "{more:?}");
}
