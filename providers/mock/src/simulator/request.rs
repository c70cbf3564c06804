//! What can be asked of the world, and what it answers. Both travel over the socket when the pods live elsewhere.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde::{Deserialize, Serialize};
use vk_provider::{PodRef, duration};

use super::{Cidr, UsageCounter};
use crate::lifecycle::Lifecycle;

/// Something to be done with the pods.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// Starts a pod, or adopts it under its UID.
    Create(Box<DesiredPod>),
    /// Brings a pod to a changed spec.
    Update(Box<DesiredPod>),
    /// Begins to stop a pod.
    Delete {
        /// The pod.
        pod: PodRef,
        /// How long it may take.
        #[serde(with = "duration")]
        grace: Duration,
    },
    /// Reads the status of a pod.
    Status(PodRef),
    /// Reads the pods of a node.
    List {
        /// The node's name.
        node: Arc<str>,
    },
    /// Loses a pod.
    Vanish(PodRef),
    /// Ends a running container.
    Finish {
        /// The pod.
        pod: PodRef,
        /// The container's name.
        container: String,
        /// The code it ends with.
        exit_code: i32,
    },
    /// Reads how often a pod was created under each UID.
    Journal,
    /// Does nothing, to see that somebody is there.
    Ping,
}

/// A pod as it is wanted.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DesiredPod {
    /// The node for which it runs: the ownership mark.
    pub node: Arc<str>,
    /// The node's address.
    pub host_ip: IpAddr,
    /// The range that its address comes from.
    pub pod_cidr: Cidr,
    /// How it lives.
    pub life: Arc<Lifecycle>,
    /// The pod as the API server has it.
    pub pod: Arc<Pod>,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reply {
    /// It is done.
    Done,
    /// The status of the pod.
    Status(Box<PodStatus>),
    /// The pods of the node.
    Pods(Vec<ListedPod>),
    /// Creations by UID.
    Journal(BTreeMap<Arc<str>, u32>),
}

/// A pod in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListedPod {
    /// The pod.
    pub pod: PodRef,
    /// The node for which it runs.
    pub node: Arc<str>,
    /// Its status now.
    pub status: PodStatus,
    /// What its containers use, by name; none of those that never ran.
    #[serde(default)]
    pub meters: BTreeMap<String, UsageCounter>,
}

/// A pod that changed since it was last looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The node for which it runs.
    pub node: Arc<str>,
    /// The pod; it may be gone.
    pub pod: PodRef,
}

// === impl Request ===

impl Request {
    /// [`Request::Create`].
    pub fn create(desired: DesiredPod) -> Self {
        Self::Create(Box::new(desired))
    }

    /// [`Request::Update`].
    pub fn update(desired: DesiredPod) -> Self {
        Self::Update(Box::new(desired))
    }
}
