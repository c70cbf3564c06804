//! The events that a worker handles.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use vk_kube::Error as ApiError;
use vk_provider::error::{Kind, Reaction};

use crate::pods::{reconciler::effect::EffectId, status::MetadataChanges};

/// Something that happened to one pod.
#[derive(Debug)]
pub(crate) enum Event {
    /// Time passed.
    Tick,
    /// The API server has this version of the pod.
    Applied(Arc<Pod>),
    /// The pod is not in the API server any more.
    Gone,
    /// The pod is none of this node's any more, as of this version: its trial here is over.
    Released(Option<u64>),
    /// The provider's pods were listed: it has the pod, with this status, or does not have it.
    Listed {
        /// When the list was requested.
        requested_at: Duration,
        /// The pod's status.
        status: Option<Box<PodStatus>>,
    },
    /// The last list of the provider's pods, made before the pod had a worker, has it with this status.
    Adopted(Box<PodStatus>),
    /// The provider pushed the pod's status.
    StatusReported(Box<PodStatus>),
    /// The provider says that something changed.
    StatusChanged,
    /// The provider publishes annotations.
    Annotations(MetadataChanges),
    /// The provider publishes labels.
    Labels(MetadataChanges),
    /// The Node was read for a decision about the pod.
    NodeRead(EffectId, Result<Box<Node>, ApiError>),
    /// The node has more room than before.
    RoomFreed,
    /// An object that the pod needs exists now.
    ReferenceAvailable(EffectId),
    /// A lifecycle call was answered.
    CallCompleted(EffectId, Result<(), ProviderFailure>),
    /// A read of the status was answered.
    StatusRead(EffectId, Result<Box<PodStatus>, ProviderFailure>),
    /// The pod has a write permit.
    WritePermit,
    /// A write to the API server was answered, with the pod as it is now where the answer has it.
    WriteCompleted(EffectId, Result<Option<Arc<Pod>>, ApiError>),
}

/// A provider's error.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProviderFailure {
    /// Its kind.
    pub(crate) kind: Kind,
    /// For people.
    pub(crate) message: String,
}

// === impl ProviderFailure ===

impl ProviderFailure {
    /// The least delay after a failure that only a change outside can end.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let slow = self.kind.reaction() == Reaction::RetrySlowly;
        self.kind.retry_after().or_else(|| slow.then_some(Duration::from_secs(10)))
    }

    /// What the provider calls the reason why the pod does not start, if it names one.
    pub(super) fn block_reason(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Blocked(reason) => Some(reason),
            _ => None,
        }
    }

    /// The waiting reason of a container that does not start because of it: a volume that cannot be mounted delays the
    /// container, and a reference that leads nowhere is a fault of its configuration.
    pub(super) fn container_reason(&self) -> &'static str {
        match &self.kind {
            Kind::Blocked(reason) => reason,
            Kind::Unresolved(reference) if reference.volume.is_some() => "ContainerCreating",
            Kind::Unresolved(_) => "CreateContainerConfigError",
            _ => "CreateContainerError",
        }
    }
}

impl From<vk_provider::Error> for ProviderFailure {
    fn from(error: vk_provider::Error) -> Self {
        Self { message: error.report(), kind: error.kind().clone() }
    }
}
