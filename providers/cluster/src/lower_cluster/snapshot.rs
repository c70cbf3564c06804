//! What fits into the lower cluster: a snapshot of its nodes and of what all pods use of them.
//!
//! The watches of nodes and of our own pods fill it, too. Of pods of others nothing else is kept, because there may be hundreds of
//! thousands of them.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use k8s_openapi::{
    Metadata,
    api::{
        core::v1::{PersistentVolume, Pod, ResourceQuota},
        resource::v1::DeviceClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use tracing::{debug, error};
use vk_fit::{Snapshot, Uid};
use vk_kube::{Client, Objects, Selector, Slim, WatchEvent, access::AccessCheck};
use vk_supervisor::task;

use super::{
    Inner, LowerCluster, Mirror, Mirrors, ObjectKey,
    watches::{MirrorChange, MirrorWatch, apply, key, list_permission},
};
use crate::names::ORIGIN;

/// How often the snapshot is computed anew and compared.
const REPAIR_INTERVAL: Duration = Duration::from_mins(1);
/// How often the DeviceClasses are listed. They hardly ever change, and old clusters have none.
const DEVICE_CLASS_INTERVAL: Duration = Duration::from_mins(5);
/// Pods that use something of a node.
const ON_NODES: &str = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed";

// === impl LowerCluster ===

impl LowerCluster {
    /// Calls `answer` with the snapshot, or returns why it is not complete.
    pub(crate) fn with_snapshot<T>(&self, answer: impl FnOnce(&Snapshot) -> T) -> Result<T, &'static str> {
        let mirrors = self.0.mirrors.read();
        if mirrors.nodes.is_forbidden() {
            return Err("the lower nodes cannot be read");
        }
        if mirrors.foreign.is_forbidden() {
            return Err("the pods of others in the lower cluster cannot be read");
        }
        let quotas = || mirrors.quotas.iter().all(|quotas| quotas.is_synced() || quotas.is_forbidden());
        if !mirrors.nodes.is_synced() || !mirrors.foreign.is_synced() || !quotas() {
            return Err("the lower cluster is not listed yet");
        }
        Ok(answer(&mirrors.snapshot))
    }
}

/// Starts the watches that only the snapshot needs.
pub(super) fn start(lower: &LowerCluster) {
    let (client, supervisor) = (|| lower.0.client.clone(), &lower.0.supervisor);
    // Our own pods are watched anyway.
    let labels = Some(format!("{ORIGIN}!={}", lower.0.origin));
    let others = Selector { labels, fields: Some(ON_NODES.to_owned()) };
    let pods: Objects<Slim<Pod>> = Objects::all(client());
    let permission = Some(list_permission("", "pods"));
    MirrorWatch::new("foreign pods", pods, others, permission).spawn(lower, supervisor, handle_foreign_pod);
    let volumes: Objects<PersistentVolume> = Objects::all(client());
    let permission = Some(list_permission("", "persistentvolumes"));
    let watch = MirrorWatch::new("lower volumes", volumes, Selector::default(), permission);
    watch.spawn(lower, supervisor, handle_volume);
    let scopes = lower.0.namespaces.scopes();
    lower.0.mirrors.write().quotas.resize_with(scopes.len(), Mirror::default);
    for (number, scope) in scopes.into_iter().enumerate() {
        let permission = AccessCheck {
            namespace: scope.clone().unwrap_or_default(),
            ..list_permission("", "resourcequotas")
        };
        let quotas: Objects<ResourceQuota> = match scope {
            Some(namespace) => Objects::namespaced(client(), namespace),
            None => Objects::all(client()),
        };
        let watch = MirrorWatch::new("lower quotas", quotas, Selector::default(), Some(permission));
        watch.spawn(lower, supervisor, move |inner, change| handle_quota(inner, number, change));
    }
    let inner = Arc::downgrade(&lower.0);
    spawn(lower, "snapshot of the lower cluster", repair_regularly(inner.clone()));
    spawn(lower, "lower device classes", follow_device_classes(lower.client().clone(), inner));
}

/// Spawns a task that ends with the supervisor.
fn spawn(lower: &LowerCluster, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
    let (supervisor, guard) = (&lower.0.supervisor, lower.0.supervisor.clone());
    supervisor.spawn(name, task::Kind::Work, async move {
        tokio::select! {
            () = work => {}
            () = guard.stopping() => {}
        }
    });
}

fn handle_foreign_pod(inner: &Inner, change: WatchEvent<Slim<Pod>>) {
    let mut guard = inner.mirrors.write();
    let Mirrors { foreign, snapshot, .. } = &mut *guard;
    let uid = |Slim(pod): &Slim<Pod>| Uid::from(pod.metadata.uid.as_deref().unwrap_or_default());
    let mut changed = match &change {
        WatchEvent::Applied(Slim(pod)) => snapshot.apply_pod(pod),
        WatchEvent::Deleted(pod) => snapshot.remove(&uid(pod)),
        _ => false,
    };
    if let MirrorChange::Listed(gone) = apply(foreign, change.map(|pod| (uid(&pod), ()))) {
        changed = true;
        for (uid, ()) in &gone {
            snapshot.remove(uid);
        }
    }
    drop(guard);
    if changed {
        inner.notify(|listener| listener.capacity_changed());
    }
}

fn handle_volume(inner: &Inner, change: WatchEvent<PersistentVolume>) {
    let Mirrors { volumes, snapshot, .. } = &mut *inner.mirrors.write();
    let remove = |snapshot: &mut Snapshot, (_, name): &ObjectKey| snapshot.remove_volume(name);
    feed(volumes, snapshot, change, Snapshot::apply_volume, remove);
}

fn handle_quota(inner: &Inner, scope: usize, change: WatchEvent<ResourceQuota>) {
    let Mirrors { quotas, snapshot, .. } = &mut *inner.mirrors.write();
    let remove =
        |snapshot: &mut Snapshot, (namespace, name): &ObjectKey| snapshot.remove_quota(namespace, name);
    feed(&mut quotas[scope], snapshot, change, Snapshot::apply_quota, remove);
}

/// Applies a change to a mirror of names and to the snapshot.
fn feed<K: Metadata<Ty = ObjectMeta>>(
    mirror: &mut Mirror<()>,
    snapshot: &mut Snapshot,
    change: WatchEvent<K>,
    add: impl Fn(&mut Snapshot, &K),
    remove: impl Fn(&mut Snapshot, &ObjectKey),
) {
    match &change {
        WatchEvent::Applied(object) => add(snapshot, object),
        WatchEvent::Deleted(object) => remove(snapshot, &key(object.metadata())),
        _ => {}
    }
    if let MirrorChange::Listed(gone) = apply(mirror, change.map(|object| (key(object.metadata()), ()))) {
        for (key, ()) in &gone {
            remove(snapshot, key);
        }
    }
}

/// Finds and repairs what a bug has made of the snapshot.
async fn repair_regularly(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(REPAIR_INTERVAL).await;
        let Some(inner) = inner.upgrade() else { return };
        let differences = inner.mirrors.write().snapshot.repair();
        if differences > 0 {
            inner.client.metrics().count_snapshot_repairs(differences);
            error!(
                differences,
                "the snapshot of the lower cluster was wrong and is repaired: please report this as a bug"
            );
            inner.notify(|listener| listener.capacity_changed());
        }
    }
}

/// Lists the extended resources that DeviceClasses provide. Without permission, and in clusters that have no DeviceClasses, there are none.
async fn follow_device_classes(client: Client, inner: Weak<Inner>) {
    let classes: Objects<DeviceClass> = Objects::all(client);
    loop {
        match classes.list(&Selector::default()).await {
            Ok(list) => {
                let Some(inner) = inner.upgrade() else { return };
                let resources =
                    list.objects.into_iter().filter_map(|class| class.spec?.extended_resource_name);
                inner.mirrors.write().snapshot.set_device_class_resources(resources.collect());
            }
            Err(error) => debug!(%error, "cannot list the device classes of the lower cluster"),
        }
        tokio::time::sleep(DEVICE_CLASS_INTERVAL).await;
    }
}
