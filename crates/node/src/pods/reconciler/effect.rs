//! What the reconciler wants done, and the answers.

use std::{borrow::Cow, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use vk_kube::Error as ApiError;
use vk_provider::{EventKind, ObservedPod, PodRef, resolve::Reference};

use crate::pods::{status::StatusPatch, trial::TrialPatch, worker::ProviderFailure};

/// Identifies an effect that will be answered. Ids are never used twice in a process, so an answer is never matched with a
/// later effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EffectId(u64);

/// Hands out ids.
#[derive(Debug, Default)]
pub(crate) struct EffectIds(u64);

/// A lifecycle call of the provider, with its arguments.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ProviderCall {
    /// Create or adopt this pod.
    Create(Arc<Pod>),
    /// Update to this pod.
    Update(Arc<Pod>),
    /// Stop the pod.
    Delete {
        /// The pod as it was last in the API server.
        last_known: Option<Arc<Pod>>,
        /// What is left of the grace period.
        grace: Duration,
    },
}

/// A write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PodWrite {
    /// A strategic patch of the status.
    Status(Arc<StatusPatch>),
    /// A strategic patch of a pod on trial.
    Trial(Arc<TrialPatch>),
    /// The removal of the pod, at once, under its UID.
    Remove,
}

/// An event on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodEventRecord {
    pub(crate) pod: PodRef,
    /// The container, as a field path in the pod.
    pub(crate) field_path: Option<String>,
    /// Normal or Warning.
    pub(crate) kind: EventKind,
    /// For programs.
    pub(crate) reason: Cow<'static, str>,
    /// For people.
    pub(crate) message: String,
}

/// What the reconciler wants done. Effects with an id are answered by a [`Completion`] with this id, unless they are
/// cancelled.
#[derive(Debug)]
pub(crate) enum PodEffect {
    /// Make a lifecycle call.
    CallProvider { id: EffectId, pod: PodRef, call: ProviderCall },
    /// Read the status of a pod from the provider.
    ReadStatus { id: EffectId, pod: PodRef },
    /// List the provider's pods.
    ListProviderPods { id: EffectId },
    /// Write to the API server. The reconciler has counted a write permit for it.
    Write { id: EffectId, pod: PodRef, write: PodWrite },
    /// Pods wait for a write permit: answer with [`Input::WritePermit`](super::Input::WritePermit) as soon as there is one.
    AcquireWritePermit,
    /// Read the Node from the API server.
    ReadNode {
        id: EffectId,
        /// The pod that waits for it.
        pod: PodRef,
    },
    /// Read a pod by its name from the API server itself, not from a cache.
    ReadPod { id: EffectId, pod: PodRef },
    /// Wait until an object that the pod needs exists.
    AwaitReference { id: EffectId, pod: PodRef, reference: Reference },
    /// Cancel a lifecycle call or a wait. It may have taken effect, and its answer may still come.
    Cancel(EffectId),
    /// Nothing of the pod runs, and nothing will: its references need not be resolved any more.
    CloseResolver(Arc<str>),
    /// The newest version of a pod, for those who read pods from this process.
    PublishPod(Arc<Pod>),
    /// Record an event on a pod.
    RecordEvent(PodEventRecord),
}

/// The answer to an effect.
#[derive(Debug)]
pub(crate) struct Completion {
    /// The id of the effect.
    pub(crate) id: EffectId,
    /// The UID of the pod concerned, if it is one.
    pub(crate) uid: Option<Arc<str>>,
    /// The result.
    pub(crate) result: EffectResult,
}

/// The result of an effect.
#[derive(Debug)]
pub(crate) enum EffectResult {
    /// Of [`PodEffect::CallProvider`].
    Call(Result<(), ProviderFailure>),
    /// Of [`PodEffect::ReadStatus`].
    Status(Result<Box<PodStatus>, ProviderFailure>),
    /// Of [`PodEffect::ListProviderPods`].
    ProviderPods(Result<Vec<ObservedPod>, ProviderFailure>),
    /// Of [`PodEffect::Write`], with the pod as it is now where the answer has it.
    Write(Result<Option<Arc<Pod>>, ApiError>),
    /// Of [`PodEffect::ReadNode`].
    Node(Result<Box<Node>, ApiError>),
    /// Of [`PodEffect::ReadPod`]: what the API server has under the pod's name.
    Pod(Result<Option<Box<Pod>>, ApiError>),
    /// Of [`PodEffect::AwaitReference`].
    ReferenceAvailable,
}

// === impl EffectIds ===

impl EffectIds {
    /// A new id.
    pub(crate) fn allocate(&mut self) -> EffectId {
        self.0 += 1;
        EffectId(self.0)
    }
}
