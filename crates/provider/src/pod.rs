//! Identity, desired state and changes of pods.

use std::{fmt, sync::Arc, time::Duration};

use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde::{Deserialize, Serialize};

use crate::resolve::Resolver;

/// A pod condition with which a provider reports (status `True`) that something of the pod runs that its container statuses do not
/// show, such as a container that the backend added. The pod does not count as ended while the condition is reported, whatever its
/// containers show. The message should say what still runs.
pub const STILL_RUNNING: &str = "virtual-kubelet.io/StillRunning";

/// The identity of one pod. Two pods with the same namespace and name but different UIDs are different pods, and a
/// provider must keep them apart: the older one is often still stopping when the newer one starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodRef {
    /// Namespace of the pod.
    pub namespace: Arc<str>,
    /// Name of the pod.
    pub name: Arc<str>,
    /// UID of the pod. It alone identifies the pod; namespace and name are for messages.
    pub uid: Arc<str>,
}

/// One container of a pod: regular, init or ephemeral.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContainerRef {
    /// The pod.
    pub pod: PodRef,
    /// The container's name in the pod's spec.
    pub container: String,
}

/// A pod that the backend has, as [`Provider::pods`](crate::Provider::pods) reports it.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedPod {
    /// Its identity, as recorded in the backend when it was created.
    pub pod: PodRef,
    /// Name of the virtual node for which it was created, as recorded in the backend: the ownership mark. The core never
    /// removes a pod without a mark (`None`) or with the mark of another node.
    pub node: Option<String>,
    /// Its current status.
    pub status: PodStatus,
}

/// A pod to run, with a resolver for the objects that it refers to.
#[derive(Clone)]
pub struct PodBundle {
    /// The pod as stored in the API server. A change arrives as a new bundle.
    pub pod: Arc<Pod>,
    /// Resolves environment, files, tokens and credentials. Lazy: objects are read from the API server only when asked for.
    pub resolver: Arc<dyn Resolver>,
}

/// How a provider reports changes of its pods.
pub enum Changes {
    /// The provider pushes changes. The stream may repeat or coalesce them; when it ends, the core polls instead and records
    /// an event on the node.
    Push(BoxStream<'static, PodChange>),
    /// The provider cannot push: the core calls [`Provider::pod_status`](crate::Provider::pod_status) at about this interval,
    /// and more often while a pod starts or stops.
    Poll(Duration),
}

/// One item of [`Changes::Push`].
#[derive(Clone, Debug, PartialEq)]
pub enum PodChange {
    /// The pod changed: read its status.
    Refresh(PodRef),
    /// The pod's current status.
    Status(PodRef, Box<PodStatus>),
    /// Becomes an event on the pod.
    Event(PodEvent),
    /// Sets these annotations on the pod; `None` removes one that the provider set before.
    Annotations(PodRef, std::collections::BTreeMap<String, Option<String>>),
    /// Sets or removes labels in the same way. With a node identity, which may not set labels, they are skipped with an event.
    Labels(PodRef, std::collections::BTreeMap<String, Option<String>>),
}

/// An event on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    /// The pod.
    pub pod: PodRef,
    /// The container, if the event is about one.
    pub container: Option<String>,
    /// Normal or Warning.
    pub kind: EventKind,
    /// A short machine-readable CamelCase reason, such as `Pulled`.
    pub reason: String,
    /// A human-readable message.
    pub message: String,
}

/// The type of a Kubernetes event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Nothing is wrong.
    Normal,
    /// Something is wrong.
    Warning,
}

/// Whether a pod has ended for good: its phase is `Succeeded` or `Failed`, which a pod never leaves.
pub fn is_terminal(pod: &Pod) -> bool {
    is_terminal_phase(pod.status.as_ref().and_then(|status| status.phase.as_deref()))
}

/// Whether a phase is one that a pod never leaves.
pub fn is_terminal_phase(phase: Option<&str>) -> bool {
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether another pod of the same name may be created when this one is gone, or has failed. Two of them must not run: they would write to
/// the same volumes, and both believe to be the member that the name stands for. Only pods without a controller, and those of
/// controllers that give every pod a new name, are known to be safe.
pub fn may_get_successor_of_same_name(pod: &Pod) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let Some(owner) = owners.find(|owner| owner.controller == Some(true)) else { return false };
    // Others have kinds of the same name.
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    !matches!(
        (group, owner.kind.as_str()),
        ("apps" | "extensions", "ReplicaSet" | "DaemonSet")
            | ("", "ReplicationController")
            | ("batch", "Job")
    )
}

/// The pod as a kubelet names it in messages: `NAME_NAMESPACE(UID)`.
pub fn full_name(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    format!("{}_{}({})", text(&meta.name), text(&meta.namespace), text(&meta.uid))
}

// === impl PodRef ===

impl PodRef {
    /// Creates a reference from its parts.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>, uid: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into(), uid: uid.into() }
    }

    /// The identity of a stored pod; `None` if namespace, name or UID is missing, as in a pod that was never stored.
    pub fn of(pod: &Pod) -> Option<Self> {
        let meta = &pod.metadata;
        Some(Self::new(meta.namespace.as_deref()?, meta.name.as_deref()?, meta.uid.as_deref()?))
    }

    /// A container of the pod.
    pub fn container(&self, name: impl Into<String>) -> ContainerRef {
        ContainerRef { pod: self.clone(), container: name.into() }
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} (uid {})", self.namespace, self.name, self.uid)
    }
}

impl fmt::Display for ContainerRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "container {} of pod {}", self.container, self.pod)
    }
}

// === impl PodBundle ===

impl PodBundle {
    /// The pod's identity; `None` only for a pod that was never stored in the API server.
    pub fn reference(&self) -> Option<PodRef> {
        PodRef::of(&self.pod)
    }
}

impl fmt::Debug for PodBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodBundle").field("pod", &self.reference()).finish_non_exhaustive()
    }
}

// === impl Changes ===

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Push(_) => f.write_str("Push(..)"),
            Self::Poll(period) => f.debug_tuple("Poll").field(period).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_controllers_that_name_pods_anew_are_known_to_create_none_of_the_same_name() {
        let of = |api: &str, kind: &str| -> Pod {
            let owner = json!({"apiVersion": api, "kind": kind, "name": "o", "uid": "u", "controller": true});
            serde_json::from_value(json!({"metadata": {"ownerReferences": [owner]}})).unwrap()
        };
        for (api, kind) in [
            ("apps/v1", "StatefulSet"),
            ("core.strimzi.io/v1beta2", "StrimziPodSet"),
            ("postgresql.cnpg.io/v1", "Cluster"),
            ("batch.volcano.sh/v1alpha1", "Job"),
        ] {
            assert!(may_get_successor_of_same_name(&of(api, kind)), "{api} {kind}");
        }
        for (api, kind) in [
            ("apps/v1", "ReplicaSet"),
            ("v1", "ReplicationController"),
            ("batch/v1", "Job"),
            ("apps/v1", "DaemonSet"),
        ] {
            assert!(!may_get_successor_of_same_name(&of(api, kind)), "{api} {kind}");
        }
        assert!(!may_get_successor_of_same_name(&Pod::default()), "nobody creates it again");
    }
}
