//! The watches that fill the mirrors.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::{
    api::{
        core::v1::{Container, Node, Pod},
        node::v1::RuntimeClass,
        scheduling::v1::PriorityClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use vk_kube::{Error, Kind, Objects, Selector, Slim, WatchEvent, access::AccessCheck, objects::Object};
use vk_supervisor::{Supervisor, task};

use super::{Inner, LowerCluster, Mirror, ObjectKey};
use crate::{
    names::{NamespaceMapping, ORIGIN, OwnerId},
    node::PodRequests,
};

const SCHEDULING: &str = "scheduling.k8s.io";
const NODE: &str = "node.k8s.io";
/// How often a denied permission is checked again.
const ACCESS_CHECK_INTERVAL: Duration = Duration::from_mins(5);

/// The effect of a watch event on a mirror.
enum MirrorChange<V> {
    /// No visible change.
    None,
    /// An object was added or changed.
    Upserted,
    /// A list is complete. The values are the objects that are gone.
    Listed(Vec<V>),
    /// An object was deleted.
    Deleted,
}

/// Starts all watches.
pub(super) fn start(lower: &LowerCluster, namespaces: &NamespaceMapping, supervisor: &Supervisor) {
    let client = || lower.0.client.clone();
    let scopes = namespaces.scopes();
    lower.0.mirrors.write().ours.resize_with(scopes.len(), Mirror::default);
    let ours = Selector { labels: Some(format!("{ORIGIN}={}", lower.0.origin)), fields: None };
    for (number, scope) in scopes.into_iter().enumerate() {
        let pods: Objects<Slim<Pod>> = match scope {
            Some(namespace) => Objects::namespaced(client(), namespace),
            None => Objects::all(client()),
        };
        let take = move |inner: &Inner, change: WatchEvent<Slim<Pod>>| handle_own_pod(inner, number, change);
        spawn_watch(lower, supervisor, "lower pods", &pods, &ours, None, take);
    }
    // Excludes our own pods, which the watches above report.
    let others = Selector { labels: Some(format!("{ORIGIN}!={}", lower.0.origin)), fields: None };
    let pods: Objects<Slim<Pod>> = Objects::all(client());
    spawn_watch(
        lower,
        supervisor,
        "foreign pods",
        &pods,
        &others,
        Some(list_permission("", "pods")),
        handle_foreign_pod,
    );
    let nodes: Objects<Slim<Node>> = Objects::all(client());
    spawn_watch(
        lower,
        supervisor,
        "lower nodes",
        &nodes,
        &Selector::default(),
        Some(list_permission("", "nodes")),
        handle_node,
    );
    let classes: Objects<PriorityClass> = Objects::all(client());
    spawn_watch(
        lower,
        supervisor,
        "priority classes",
        &classes,
        &Selector::default(),
        Some(list_permission(SCHEDULING, "priorityclasses")),
        handle_priority_class,
    );
    let classes: Objects<RuntimeClass> = Objects::all(client());
    spawn_watch(
        lower,
        supervisor,
        "runtime classes",
        &classes,
        &Selector::default(),
        Some(list_permission(NODE, "runtimeclasses")),
        handle_runtime_class,
    );
}

/// The permission to list a resource in all namespaces. It is assumed to include watching.
fn list_permission(group: &str, resource: &str) -> AccessCheck {
    let (group, resource) = (group.to_owned(), resource.to_owned());
    AccessCheck { verb: "list".to_owned(), group, resource, ..AccessCheck::default() }
}

/// Spawns a watch that fills a mirror. With an access check, the mirror is optional.
fn spawn_watch<K: Object>(
    lower: &LowerCluster,
    supervisor: &Supervisor,
    name: &str,
    objects: &Objects<K>,
    selector: &Selector,
    access_check: Option<AccessCheck>,
    take: impl Fn(&Inner, WatchEvent<K>) + Send + Sync + 'static,
) {
    let (changes, inner) = (objects.watch(selector), Arc::downgrade(&lower.0));
    let guard = supervisor.clone();
    let client = lower.0.client.clone();
    supervisor.spawn(name, task::Kind::Work, async move {
        let mut changes = pin!(changes);
        let work = async {
            // Without permission, check rarely instead of failing every few seconds.
            while let Some(check) = &access_check
                && matches!(check.allowed(&client).await, Ok(false))
            {
                let Some(inner) = inner.upgrade() else { return };
                let message = format!("not allowed to list {}", check.resource);
                take(&inner, WatchEvent::Error(Error::new(Kind::Forbidden, message)));
                drop(inner);
                tokio::time::sleep(ACCESS_CHECK_INTERVAL).await;
            }
            while let Some(change) = changes.next().await {
                let Some(inner) = inner.upgrade() else { break };
                take(&inner, change);
            }
        };
        tokio::select! {
            () = work => {}
            () = guard.stopping() => {}
        }
    });
}

fn handle_own_pod(inner: &Inner, scope: usize, change: WatchEvent<Slim<Pod>>) {
    let (mut now, mut last) = (None, None);
    let change = match change {
        WatchEvent::Applied(Slim(mut pod)) => {
            strip(&mut pod);
            let pod = Arc::new(pod);
            now = Some(Arc::clone(&pod));
            WatchEvent::Applied((key(&pod.metadata), pod))
        }
        // The last state.
        WatchEvent::Deleted(Slim(pod)) => {
            let pod = Arc::new(pod);
            last = Some(Arc::clone(&pod));
            WatchEvent::Deleted((key(&pod.metadata), pod))
        }
        WatchEvent::Restarted => WatchEvent::Restarted,
        WatchEvent::Listed => WatchEvent::Listed,
        WatchEvent::Error(error) => WatchEvent::Error(error),
    };
    let change_kind = apply(&mut inner.mirrors.write().ours[scope], change);
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
            for pod in &gone {
                inner.notify(|listener| listener.pod_changed(pod, true));
            }
            inner.notify(|listener| listener.capacity_changed());
        }
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

fn handle_foreign_pod(inner: &Inner, change: WatchEvent<Slim<Pod>>) {
    let no_node = OwnerId { origin: inner.origin.clone(), node: String::new() };
    let change = change.map(|Slim(pod)| (key(&pod.metadata), PodRequests::of(&pod, &no_node)));
    update_capacity(inner, |inner| apply(&mut inner.mirrors.write().foreign, change));
}

fn handle_node(inner: &Inner, change: WatchEvent<Slim<Node>>) {
    let change = change.map(|Slim(mut node)| {
        if let Some(status) = &mut node.status {
            // These make up most of a node and are not needed.
            (status.images, status.volumes_attached, status.volumes_in_use) = (None, None, None);
        }
        (key(&node.metadata), Arc::new(node))
    });
    update_capacity(inner, |inner| apply(&mut inner.mirrors.write().nodes, change));
}

fn handle_priority_class(inner: &Inner, change: WatchEvent<PriorityClass>) {
    let change = change.map(|class| (key(&class.metadata), ()));
    apply(&mut inner.mirrors.write().priority_classes, change);
}

fn handle_runtime_class(inner: &Inner, change: WatchEvent<RuntimeClass>) {
    let change = change.map(|class| (key(&class.metadata), ()));
    apply(&mut inner.mirrors.write().runtime_classes, change);
}

/// Applies a change that the resources of virtual nodes depend on.
fn update_capacity<V>(inner: &Inner, change: impl FnOnce(&Inner) -> MirrorChange<V>) {
    if !matches!(change(inner), MirrorChange::None) {
        inner.notify(|listener| listener.capacity_changed());
    }
}

fn apply<V: PartialEq>(mirror: &mut Mirror<V>, change: WatchEvent<(ObjectKey, V)>) -> MirrorChange<V> {
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

fn key(metadata: &ObjectMeta) -> ObjectKey {
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
