//! Requests to the simulator and their replies. Both are sent over the socket if the pods are in another process.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde::{Deserialize, Serialize};
use vk_provider::{PodRef, duration};

use super::{Cidr, UsageCounter};
use crate::lifecycle::Lifecycle;

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// Starts a pod, or adopts it under its UID.
    Create(Box<DesiredPod>),
    /// Applies a changed spec to a pod.
    Update(Box<DesiredPod>),
    /// Begins to stop a pod.
    Delete {
        /// The pod.
        pod: PodRef,
        /// The grace period.
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
    /// Removes a pod as if the backend had lost it.
    Vanish(PodRef),
    /// Ends a running container.
    Finish {
        /// The pod.
        pod: PodRef,
        /// The container's name.
        container: String,
        /// Its exit code.
        exit_code: i32,
    },
    /// Reads how often each UID was created.
    Journal,
    /// Does nothing; tests the connection.
    Ping,
}

/// The desired state of a pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DesiredPod {
    /// The node for which it runs: the ownership mark.
    pub node: Arc<str>,
    /// The node's address.
    pub host_ip: IpAddr,
    /// The range of its address.
    pub pod_cidr: Cidr,
    /// Its lifecycle.
    pub life: Arc<Lifecycle>,
    /// The pod as stored in the API server.
    pub pod: Arc<Pod>,
}

/// The reply to a [`Request`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reply {
    /// Success without a value.
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
    /// Usage counters of the containers that have run, by name.
    #[serde(default)]
    pub meters: BTreeMap<String, UsageCounter>,
}

/// A pod that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedPod {
    /// The node for which it runs.
    pub node: Arc<str>,
    /// The pod, which may no longer exist.
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
