//! The watches that fill the mirrors.

use std::{
    collections::HashSet,
    hash::Hash,
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::{StreamExt as _, stream, stream::BoxStream};
use k8s_openapi::{
    api::{
        core::v1::{Container, Node, Pod},
        node::v1::RuntimeClass,
        scheduling::v1::PriorityClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use tokio::time::Instant;
use tracing::info;
use vk_kube::{
    Error, Kind, MetadataList, Objects, Selector, Slim, WatchEvent, access::AccessCheck, objects::Object,
};
use vk_supervisor::{Supervisor, task};

use super::{Inner, LowerCluster, Mirror, ObjectKey, snapshot, version_audit};
use crate::names::ORIGIN;

const SCHEDULING: &str = "scheduling.k8s.io";
const NODE: &str = "node.k8s.io";
/// How often a denied permission is checked again.
const ACCESS_CHECK_INTERVAL: Duration = Duration::from_mins(5);

/// The effect of a watch event on a mirror.
pub(super) enum MirrorChange<V, K = ObjectKey> {
    /// No visible change.
    None,
    /// An object was added or changed.
    Upserted,
    /// A list is complete. The values are the objects that are gone.
    Listed(Vec<(K, V)>),
    /// An object was deleted.
    Deleted,
}

/// A watch that fills a mirror.
pub(super) struct MirrorWatch<K> {
    pub(super) name: &'static str,
    pub(super) objects: Objects<K>,
    pub(super) selector: Selector,
    /// Removes unneeded fields before an object is kept.
    pub(super) trim: fn(&mut K),
    /// The permission without which the mirror stays empty; `None` if the mirror is required.
    pub(super) permission: Option<AccessCheck>,
    /// How often the watch is audited, and how the objects are found of which the mirror lags behind a list.
    pub(super) audit: Option<(Duration, LagFinder)>,
}

pub(super) type LagFinder = Box<dyn Fn(&Inner, &MetadataList) -> HashSet<ObjectKey> + Send + Sync>;

/// Starts all watches.
pub(super) fn start(lower: &LowerCluster) {
    let (client, supervisor) = (|| lower.0.client.clone(), &lower.0.supervisor);
    let scopes = lower.0.namespaces.scopes();
    lower.0.mirrors.write().ours.resize_with(scopes.len(), Mirror::default);
    for (number, scope) in scopes.into_iter().enumerate() {
        let pods: Objects<Slim<Pod>> = match scope {
            Some(namespace) => Objects::namespaced(client(), namespace),
            None => Objects::all(client()),
        };
        let ours = Selector { labels: Some(format!("{ORIGIN}={}", lower.0.origin)), fields: None };
        let mut watch = MirrorWatch::new("lower pods", pods, ours, None);
        let lagging: LagFinder =
            Box::new(move |inner, list| version_audit::lagging(&inner.mirrors.read().ours[number], list));
        watch.audit = Some((version_audit::PERIOD, lagging));
        watch.spawn(lower, supervisor, move |inner, change| handle_own_pod(inner, number, change));
    }
    let nodes: Objects<Slim<Node>> = Objects::all(client());
    let permission = Some(list_permission("", "nodes"));
    let mut watch = MirrorWatch::new("lower nodes", nodes, Selector::default(), permission);
    let lagging: LagFinder =
        Box::new(|inner, list| version_audit::lagging(&inner.mirrors.read().nodes, list));
    watch.audit = Some((version_audit::PERIOD, lagging));
    watch.spawn(lower, supervisor, handle_node);
    let classes: Objects<PriorityClass> = Objects::all(client());
    let permission = Some(list_permission(SCHEDULING, "priorityclasses"));
    MirrorWatch::new("priority classes", classes, Selector::default(), permission).spawn(
        lower,
        supervisor,
        handle_priority_class,
    );
    let classes: Objects<RuntimeClass> = Objects::all(client());
    let permission = Some(list_permission(NODE, "runtimeclasses"));
    MirrorWatch::new("runtime classes", classes, Selector::default(), permission).spawn(
        lower,
        supervisor,
        handle_runtime_class,
    );
    snapshot::start(lower);
}

/// The permission to list a resource in all namespaces. It is assumed to include watching.
pub(super) fn list_permission(group: &str, resource: &str) -> AccessCheck {
    let (group, resource) = (group.to_owned(), resource.to_owned());
    AccessCheck { verb: "list".to_owned(), group, resource, ..AccessCheck::default() }
}

// === impl MirrorWatch ===

impl<K: Object> MirrorWatch<K> {
    /// A watch that is not audited.
    pub(super) fn new(
        name: &'static str,
        objects: Objects<K>,
        selector: Selector,
        permission: Option<AccessCheck>,
    ) -> Self {
        Self { name, objects, selector, trim: |_| {}, permission, audit: None }
    }

    /// Spawns the watch, which ends with the lower cluster or the supervisor.
    pub(super) fn spawn(
        self,
        lower: &LowerCluster,
        supervisor: &Supervisor,
        take: impl Fn(&Inner, WatchEvent<K>) + Send + Sync + 'static,
    ) {
        let (inner, guard) = (Arc::downgrade(&lower.0), supervisor.clone());
        supervisor.spawn(self.name, task::Kind::Work, async move {
            tokio::select! {
                () = self.run(inner, take) => {}
                () = guard.stopping() => {}
            }
        });
    }

    async fn run(self, inner: Weak<Inner>, take: impl Fn(&Inner, WatchEvent<K>) + Send + Sync) {
        // Without permission, check rarely instead of failing every few seconds.
        while let Some(check) = &self.permission
            && matches!(check.allowed(self.objects.client()).await, Ok(false))
        {
            let Some(inner) = inner.upgrade() else { return };
            let message = format!("not allowed to list {}", check.resource);
            take(&inner, WatchEvent::Error(Error::new(Kind::Forbidden, message)));
            drop(inner);
            tokio::time::sleep(ACCESS_CHECK_INTERVAL).await;
        }
        let mut changes = self.open();
        let mut lists = match &self.audit {
            Some((period, _)) => {
                version_audit::version_lists(self.objects.clone(), self.selector.clone(), *period)
            }
            None => stream::pending().boxed(),
        };
        let lagging = |inner: &Inner, list: &MetadataList| match &self.audit {
            Some((_, lagging)) => lagging(inner, list),
            None => HashSet::new(),
        };
        // A list, and what the mirror lacked of it when it came.
        let mut suspects: Option<(MetadataList, HashSet<ObjectKey>)> = None;
        let mut recheck = pin!(tokio::time::sleep(Duration::ZERO));
        loop {
            tokio::select! {
                Some(change) = changes.next() => {
                    let Some(inner) = inner.upgrade() else { return };
                    take(&inner, change);
                }
                Some(list) = lists.next() => {
                    let Some(inner) = inner.upgrade() else { return };
                    let lagging = lagging(&inner, &list);
                    suspects = (!lagging.is_empty()).then_some((list, lagging));
                    recheck.as_mut().reset(Instant::now() + version_audit::LAG);
                }
                () = &mut recheck, if suspects.is_some() => {
                    let Some(inner) = inner.upgrade() else { return };
                    if let Some((list, before)) = suspects.take()
                        && let Some((namespace, name)) = lagging(&inner, &list).intersection(&before).next()
                    {
                        info!(watch = self.name, namespace, name, "the watch seems to have lost an event: listing everything again");
                        changes = self.open();
                    }
                }
            }
        }
    }

    fn open(&self) -> BoxStream<'static, WatchEvent<K>> {
        self.objects.watch_trimmed(&self.selector, self.trim).boxed()
    }
}

fn handle_own_pod(inner: &Inner, scope: usize, change: WatchEvent<Slim<Pod>>) {
    let (mut now, mut last) = (None, None);
    let mut guard = inner.mirrors.write();
    let mirrors = &mut *guard;
    let mut usage_changed = false;
    let change = match change {
        WatchEvent::Applied(Slim(mut pod)) => {
            let key = key(&pod.metadata);
            mirrors.references.set(&key, &pod);
            // Another pod of the same name, if the deletion of the first was not seen.
            let known = mirrors.ours[scope].get(&key).and_then(|known| known.metadata.uid.as_deref());
            if let Some(known) = known.filter(|known| Some(*known) != pod.metadata.uid.as_deref()) {
                usage_changed |= mirrors.snapshot.remove_pod(known);
            }
            usage_changed |= mirrors.snapshot.apply_pod(&pod);
            strip(&mut pod);
            let pod = Arc::new(pod);
            now = Some(Arc::clone(&pod));
            WatchEvent::Applied((key, pod))
        }
        // The last state.
        WatchEvent::Deleted(Slim(pod)) => {
            let key = key(&pod.metadata);
            mirrors.references.remove(&key);
            usage_changed |= mirrors.snapshot.remove_pod(pod.metadata.uid.as_deref().unwrap_or_default());
            let pod = Arc::new(pod);
            last = Some(Arc::clone(&pod));
            WatchEvent::Deleted((key, pod))
        }
        WatchEvent::Restarted => WatchEvent::Restarted,
        WatchEvent::Listed => WatchEvent::Listed,
        WatchEvent::Error(error) => WatchEvent::Error(error),
    };
    let change_kind = apply(&mut mirrors.ours[scope], change);
    if let MirrorChange::Listed(gone) = &change_kind {
        usage_changed = true;
        for (key, pod) in gone {
            mirrors.references.remove(key);
            mirrors.snapshot.remove_pod(pod.metadata.uid.as_deref().unwrap_or_default());
        }
    }
    drop(guard);
    match change_kind {
        MirrorChange::None => {}
        MirrorChange::Upserted => {
            if let Some(pod) = &now {
                inner.notify(|listener| listener.pod_changed(pod, false));
            }
        }
        MirrorChange::Deleted => {
            if let Some(pod) = &last {
                inner.notify(|listener| listener.pod_changed(pod, true));
            }
        }
        MirrorChange::Listed(gone) => {
            for (_, pod) in &gone {
                inner.notify(|listener| listener.pod_changed(pod, true));
            }
        }
    }
    if usage_changed {
        inner.notify(|listener| listener.capacity_changed());
    }
}

/// Drops the parts of a pod that are not needed. The upper pod has the containers' commands and environment. The parts that can change, and
/// the requests and claims, stay.
fn strip(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    let bare = |container: &mut Container| {
        *container = Container {
            name: std::mem::take(&mut container.name),
            image: container.image.take(),
            resources: container.resources.take(),
            restart_policy: container.restart_policy.take(),
            volume_mounts: container.volume_mounts.take(),
            ..Container::default()
        };
    };
    spec.containers.iter_mut().for_each(bare);
    spec.init_containers.iter_mut().flatten().for_each(bare);
    if let Some(volumes) = &mut spec.volumes {
        volumes.retain(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some());
    }
    spec.affinity = None;
    spec.topology_spread_constraints = None;
    spec.security_context = None;
}

fn handle_node(inner: &Inner, change: WatchEvent<Slim<Node>>) {
    let mut guard = inner.mirrors.write();
    let mirrors = &mut *guard;
    match &change {
        WatchEvent::Applied(Slim(node)) => mirrors.snapshot.apply_node(node),
        WatchEvent::Deleted(Slim(node)) => mirrors.snapshot.remove_node(&key(&node.metadata).1),
        _ => {}
    }
    let change = apply(&mut mirrors.nodes, change.map(mirrored_node));
    if let MirrorChange::Listed(gone) = &change {
        for ((_, name), _) in gone {
            mirrors.snapshot.remove_node(name);
        }
    }
    drop(guard);
    if !matches!(change, MirrorChange::None) {
        inner.notify(|listener| listener.capacity_changed());
    }
}

/// Replaces what is known about a node by what was read from the API server.
pub(super) fn replace_node(inner: &Inner, name: &str, found: Option<Slim<Node>>) {
    let gone = || {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        WatchEvent::Deleted(Slim(Node { metadata, ..Node::default() }))
    };
    handle_node(inner, found.map_or_else(gone, WatchEvent::Applied));
}

fn mirrored_node(Slim(mut node): Slim<Node>) -> (ObjectKey, Arc<Node>) {
    if let Some(status) = &mut node.status {
        // These make up most of a node and are not needed.
        (status.images, status.volumes_attached, status.volumes_in_use) = (None, None, None);
    }
    (key(&node.metadata), Arc::new(node))
}

fn handle_priority_class(inner: &Inner, change: WatchEvent<PriorityClass>) {
    let change = change.map(|class| (key(&class.metadata), ()));
    apply(&mut inner.mirrors.write().priority_classes, change);
}

fn handle_runtime_class(inner: &Inner, change: WatchEvent<RuntimeClass>) {
    let change = change.map(|class| (key(&class.metadata), ()));
    apply(&mut inner.mirrors.write().runtime_classes, change);
}

pub(super) fn apply<V: PartialEq, K: Clone + Eq + Hash>(
    mirror: &mut Mirror<V, K>,
    change: WatchEvent<(K, V)>,
) -> MirrorChange<V, K> {
    match change {
        WatchEvent::Restarted => {
            mirror.begin_listing();
            MirrorChange::None
        }
        WatchEvent::Applied((key, value)) => {
            let same = mirror.get(&key) == Some(&value);
            mirror.upsert(key, value);
            if same { MirrorChange::None } else { MirrorChange::Upserted }
        }
        WatchEvent::Deleted((key, _)) => {
            mirror.remove(&key).map_or(MirrorChange::None, |_| MirrorChange::Deleted)
        }
        WatchEvent::Listed => MirrorChange::Listed(mirror.finish_listing()),
        WatchEvent::Error(error) => {
            mirror.record_error(error);
            MirrorChange::None
        }
    }
}

pub(super) fn key(metadata: &ObjectMeta) -> ObjectKey {
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dependencies::dependencies;

    #[test]
    fn stripped_pods_keep_their_requests_and_claims() {
        let mut pod: Pod = serde_json::from_value(json!({"spec": {
            "nodeName": "n", "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "a", "image": "i", "resources": {"requests": {"cpu": "1"}}, "command": ["long"],
                "env": [{"name": "A", "value": "b"}], "volumeMounts": [{"name": "d", "mountPath": "/d"}]}],
            "initContainers": [{"name": "s", "image": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}],
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "e", "emptyDir": {}}]}}))
        .unwrap();
        let (requests, claims) = (vk_provider::requests::requests(&pod), dependencies(&pod).claims);
        strip(&mut pod);
        assert_eq!(vk_provider::requests::requests(&pod), requests);
        assert_eq!(dependencies(&pod).claims, claims);
        let kept = json!(pod);
        assert_eq!(kept["spec"]["containers"][0]["image"], "i");
        assert_eq!(kept["spec"]["tolerations"], json!([{"operator": "Exists"}]));
        assert!(!kept.to_string().contains("long"), "{kept}");
    }
}
