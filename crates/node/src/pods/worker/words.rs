//! What workers are told, and what they say.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use vk_kube::Error as ApiError;
use vk_provider::{
    EventKind,
    error::{Kind, Reaction},
    resolve::Reference,
};

use crate::pods::{
    admission::{Checks, Delay, Refused, Verdict},
    status::StatusPatch,
    telling::Word,
};

/// What a worker is told.
#[derive(Debug)]
pub enum Event {
    /// Time passed.
    Tick,
    /// The pod in the API server is like this.
    Desired(Arc<Pod>),
    /// The pod is not in the API server any more.
    Gone,
    /// The provider's listing is complete: it has the pod, with this status, or does not have it.
    Listed(Option<Box<PodStatus>>),
    /// The provider pushed the pod's status.
    Reported(Box<PodStatus>),
    /// The provider says that something changed.
    Hint,
    /// The provider publishes annotations.
    Annotations(BTreeMap<String, Option<String>>),
    /// The provider publishes labels.
    Labels(BTreeMap<String, Option<String>>),
    /// The node has decided about the pod.
    Judged(Verdict),
    /// The node has decided about another size of the pod.
    Sized(Result<(), Delay>),
    /// The node has more room than before.
    Room,
    /// An object that the pod needs is there now.
    Appeared,
    /// A lifecycle call was answered.
    Called(Call, Result<(), Refusal>),
    /// A look at the status was answered.
    Looked(Result<Box<PodStatus>, Refusal>),
    /// A write had to wait for its turn, which has come: what is to be written now?
    Turn,
    /// A write to the API server was answered, with the pod as it is now where the answer has it.
    Wrote(Write, Result<Option<Arc<Pod>>, ApiError>),
}

/// A provider's error, as a worker needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// Its kind.
    pub kind: Kind,
    /// For people.
    pub message: String,
}

/// A lifecycle call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `create_pod`.
    Create,
    /// `update_pod`.
    Update,
    /// `delete_pod`.
    Delete,
}

/// A write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// A strategic patch of the status.
    Status(Box<StatusPatch>),
    /// The removal of the pod, at once, under its UID.
    Remove,
}

/// What a worker wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Ask whether the node takes this pod, and answer with [`Event::Judged`].
    Admit {
        /// The pod.
        pod: Arc<Pod>,
        /// It was admitted before, by another process.
        before: bool,
    },
    /// Ask whether the node has room for another size, and answer with [`Event::Sized`].
    Resize(Arc<Pod>),
    /// The pod is there and claims what this one says.
    Claim(Arc<Pod>),
    /// The pod claims nothing any more.
    Release,
    /// Create or adopt this pod.
    Create(Arc<Pod>),
    /// Update to this pod.
    Update(Arc<Pod>),
    /// Stop the pod, with what is left of its grace.
    Delete {
        /// The pod as it was known last.
        last_known: Option<Arc<Pod>>,
        /// The grace left.
        grace: Duration,
    },
    /// Drop the lifecycle call under way: the pod shall end, and the call may hang.
    Cancel,
    /// Wait for an object that the pod needs, and tell by [`Event::Appeared`]. The wait before is over.
    Await(Reference),
    /// Ask for the status.
    Look,
    /// Write to the API server.
    Write(Write),
    /// Tell people, by an event on the pod.
    Announce(EventKind, Cow<'static, str>, String),
    /// Tell people what happened to a container, unless the provider does that itself.
    Tell(Word),
    /// All is done: the worker may be dropped.
    Forget,
}

/// Policies about pods.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// How often a provider that does not push is asked.
    pub poll: Option<Duration>,
    /// How long after the end of its grace a pod that does not stop is removed from the API server all the same.
    /// `None`: never; it is reported instead.
    pub force_after: Option<Duration>,
    /// Addresses of the node.
    pub host_ips: Vec<String>,
    /// How often the provider's pods are compared with the API server's.
    pub compare: Duration,
    /// What is checked before a pod is handed to the provider.
    pub checks: Checks,
    /// What becomes of pods of DaemonSets, where the node shall not run them.
    pub daemon_sets: Option<Refused>,
    /// What becomes of pods that the provider refuses.
    pub refused: Refused,
    /// Whether our identity may set labels of pods: a node's may not.
    pub may_label: bool,
    /// How many events a second are written at most, and twice as many in a burst.
    pub events_per_second: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            poll: None,
            force_after: None,
            host_ips: Vec::new(),
            compare: Duration::from_mins(1),
            checks: Checks::Off,
            daemon_sets: None,
            refused: Refused::Fail,
            may_label: true,
            events_per_second: 50,
        }
    }
}

impl Refusal {
    /// The least time to wait after a failure that only a change outside can end.
    pub(super) fn patience(&self) -> Option<Duration> {
        let slow = self.kind.reaction() == Reaction::RetrySlowly;
        self.kind.retry_after().or_else(|| slow.then_some(Duration::from_secs(10)))
    }

    /// What a container that waits because of it is shown with: a volume that cannot be made holds the container back, and a
    /// reference that leads nowhere is a fault of its configuration.
    pub(super) fn state(&self) -> &'static str {
        match &self.kind {
            Kind::Unresolved(reference) if reference.volume.is_some() => "ContainerCreating",
            Kind::Unresolved(_) => "CreateContainerConfigError",
            _ => "CreateContainerError",
        }
    }
}
