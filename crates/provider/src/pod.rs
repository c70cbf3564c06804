//! Pods as the contract sees them: by UID, always.

use std::{fmt, sync::Arc, time::Duration};

use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde::{Deserialize, Serialize};

use crate::resolve::Resolver;

/// A pod's condition by which a provider says, with the status `True`, that something of the pod runs that its container statuses do not
/// show: a container that the backend has added. Until it says so no more, the pod has not ended, whatever its containers show. What it is
/// belongs into the message.
pub const STILL_RUNNING: &str = "virtual-kubelet.io/StillRunning";

/// The identity of one pod. Two pods of the same namespace and name are different pods when their UIDs differ, and a
/// provider must keep them apart: the older one is often still stopping when the newer one starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodRef {
    /// Namespace of the pod.
    pub namespace: Arc<str>,
    /// Name of the pod.
    pub name: Arc<str>,
    /// UID of the pod: what identifies it. Namespace and name are for people.
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
    /// Which pod it is, as recorded in the backend when it was created.
    pub pod: PodRef,
    /// Name of the virtual node for which it was created, as recorded in the backend: the ownership mark. Without a
    /// mark (`None`), or with another node's, the core never removes it.
    pub node: Option<String>,
    /// Its status now.
    pub status: PodStatus,
}

/// A pod that the provider is to run, with the means to look up what it refers to.
#[derive(Clone)]
pub struct PodBundle {
    /// The pod as the API server has it. Immutable: a change arrives as a new bundle.
    pub pod: Arc<Pod>,
    /// Answers what the pod refers to: environment, files, tokens, credentials. Lazy: what is not asked for is not
    /// read from the API server.
    pub resolver: Arc<dyn Resolver>,
}

/// How a provider tells that its pods changed.
pub enum Changes {
    /// The provider pushes. The stream may repeat and may coalesce; when it ends, the core polls and says so on the node.
    Push(BoxStream<'static, PodChange>),
    /// The provider cannot tell: the core asks [`Provider::pod_status`](crate::Provider::pod_status) about this often,
    /// more often while something is under way.
    Poll(Duration),
}

/// One item of [`Changes::Push`].
#[derive(Clone, Debug, PartialEq)]
pub enum PodChange {
    /// Something about this pod changed: ask for its status.
    Refresh(PodRef),
    /// This is the pod's status now.
    Status(PodRef, Box<PodStatus>),
    /// Something worth telling happened: it becomes an event on the pod.
    Event(PodEvent),
    /// The provider publishes these annotations on the pod; a `None` value takes one back that it published before.
    Annotations(PodRef, std::collections::BTreeMap<String, Option<String>>),
    /// The same for labels. A node identity may not set them: then they are left out, with an event that says so.
    Labels(PodRef, std::collections::BTreeMap<String, Option<String>>),
}

/// Something that happened to a pod, for its users to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    /// The pod.
    pub pod: PodRef,
    /// The container it concerns, if it concerns one.
    pub container: Option<String>,
    /// Normal or Warning.
    pub kind: EventKind,
    /// A short CamelCase reason for programs, such as `Pulled`.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

/// The two types that Kubernetes events have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// As expected.
    Normal,
    /// Somebody should look.
    Warning,
}

// === impl PodRef ===

impl PodRef {
    /// A reference from its three parts.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>, uid: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into(), uid: uid.into() }
    }

    /// The identity of a pod that the API server stored; `None` when namespace, name or UID is missing, which only a
    /// pod that was never stored can show.
    pub fn of(pod: &Pod) -> Option<Self> {
        let meta = &pod.metadata;
        Some(Self::new(meta.namespace.as_deref()?, meta.name.as_deref()?, meta.uid.as_deref()?))
    }

    /// One of the pod's containers.
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
    /// The pod's identity; `None` only for a pod that never was in the API server.
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
