//! What controllers do about pods that are evicted before they have run.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::Pod;

use crate::{names, pod_state};

/// What the controller of a pod does when the pod is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AfterEviction {
    /// It creates another one.
    Replaced,
    /// Its Job counts a failure, unless its policy says otherwise.
    Counted,
    /// Its DaemonSet creates another one for the same node.
    SameNode,
    /// There is no controller.
    Lost,
    /// Not known: a controller of this kind may count a failure, as workflows do.
    Unknown(String),
}

// === impl AfterEviction ===

impl AfterEviction {
    pub(crate) fn of(pod: &Pod) -> Self {
        let Some(owner) = pod_state::controller(pod) else { return Self::Lost };
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        match (group, owner.kind.as_str()) {
            ("apps" | "extensions", "ReplicaSet" | "StatefulSet") | ("", "ReplicationController") => {
                Self::Replaced
            }
            ("batch", "Job") => Self::Counted,
            ("apps" | "extensions", "DaemonSet") => Self::SameNode,
            _ if pod_state::annotation(pod, names::DESCHEDULE) == Some("true") => Self::Replaced,
            (_, kind) => Self::Unknown(kind.to_owned()),
        }
    }

    /// Why a pod should not be evicted; `None` if it may be.
    pub(crate) fn obstacle(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            Self::Replaced => return None,
            Self::Counted => "its Job would count an eviction as a failure".into(),
            Self::SameNode => "its DaemonSet would create another one for the same node".into(),
            Self::Lost => "it has no controller that would create another one".into(),
            Self::Unknown(kind) => format!(
                "its controller {kind} may count an eviction as a failure; the annotation {}: \"true\" permits it",
                names::DESCHEDULE
            )
            .into(),
        })
    }
}
