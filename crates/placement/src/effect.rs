//! What the state machines ask their driver to do, and what comes back.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use vk_kube::{Error, Kind, event::Severity};
use vk_provider::{
    PodRef,
    placement::{FitAnswer, FitQuery},
};

use crate::{avoid, fit_answers::QueryId};

/// The id of a call to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CallId(pub(crate) u64);

/// Gives out ids of calls.
#[derive(Debug, Default)]
pub(crate) struct CallIds(u64);

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Effect {
    /// Ask a node whether pods fit.
    Ask(QueryId, Arc<Node>, Box<FitQuery>),
    /// Call the API server.
    Call(CallId, ApiCall),
    /// Record an event of a pod.
    RecordEvent(PodRef, Severity, &'static str, String),
    /// Count an outcome.
    Count(Outcome),
}

/// A call to the API server. Each has the UID of its object as precondition, and most have its version: a pod that has changed may be on its
/// way to another node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ApiCall {
    /// Keep room for a pod on a node, and say so.
    Nominate { pod: PodRef, version: String, node: Arc<str> },
    /// Remove our gate. `pin` adds a node selector on this host name to a pod that has none, and `trial_until` postpones the end of the trial.
    Ungate { pod: PodRef, version: String, pin: Option<String>, trial_until: Option<Timestamp> },
    /// Say why the pod waits, and clear a nomination that is left. `is_first`: it did not say so before.
    ReportWaiting { pod: PodRef, version: String, reason: &'static str, message: Arc<str>, is_first: bool },
    /// Read whether all these claims are bound.
    ReadClaims { namespace: String, names: Vec<String> },
    /// Put a pod on trial.
    StartTrial { pod: PodRef, version: String, node: Arc<str>, until: Timestamp },
    /// Postpone the end of the trial of a pod that is not bound yet.
    ExtendTrial { pod: PodRef, version: String, until: Timestamp },
    /// Let the node end the trial of a pod, which is not nominated any more.
    EndTrial { pod: PodRef, version: String },
    /// Remove all that is left of a trial: no node has taken notice of it, or that node will not remove it.
    RemoveTrial { pod: PodRef, version: String, former: Option<FormerNode> },
    /// Say that a node has taken a pod after a trial.
    ReportPlaced { pod: PodRef, node: Arc<str> },
    /// Evict this version of the pod: a newer one may be bound or run.
    Evict { pod: PodRef, version: String },
    /// Write these keys of the avoid table.
    WriteAvoidTable(avoid::Changes),
    /// Read whether a Job ignores the disruption of its pods.
    ReadJob { namespace: String, name: String, uid: String },
}

/// A node that will not remove what is left of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FormerNode {
    /// It does not exist.
    Gone(Arc<str>),
    /// It takes no pods on trial any more.
    WithoutTrials(Arc<str>),
}

/// Something to count.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// A pod has lost its gate, after it had waited this long.
    Placed { method: Method, waited: Duration },
    /// A pod for which a node was chosen was not bound in time.
    NotBound,
    /// A pod was evicted, or would be.
    Evicted { dry_run: bool },
    /// An eviction was refused.
    EvictionRefused,
    /// A trial has ended.
    Trial(TrialOutcome),
}

/// How the node of a pod was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// The node had said that the pod fits.
    Fits,
    /// The node could not tell.
    Unknown,
    /// The scheduler of its backend has placed the pod.
    Trial,
}

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrialOutcome {
    /// The scheduler of the backend has placed the pod.
    Accepted,
    /// The node does not take the pod.
    Refused,
    /// The scheduler of the backend has not placed the pod in time, or nothing was heard of it.
    NotScheduled,
    /// The node has not confirmed in time that nothing of the pod is left.
    NotConfirmed,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Input {
    /// A node was added or changed.
    Node(Box<Node>),
    /// A node was deleted.
    NodeGone(String),
    /// A full list of the nodes is complete; it had these.
    NodesListed(Vec<Arc<str>>),
    /// A pod was added or changed.
    Pod(Arc<Pod>),
    /// A pod was deleted.
    PodGone(Arc<Pod>),
    /// A pod with the label of a group has succeeded.
    PodSucceeded(Arc<Pod>),
    /// A pod that had succeeded was deleted.
    SucceededPodGone(Arc<str>),
    /// A full list of the pods of groups that have succeeded is complete; it had these.
    SucceededPodsListed(Vec<Arc<str>>),
    /// A full list of the pods begins.
    PodsRestarted,
    /// A full list of the pods is complete.
    PodsListed,
    /// A question was answered, or has failed for this reason.
    FitAnswered(QueryId, Result<FitAnswer, String>),
    /// A call was answered.
    Answered(CallId, Result<Answer, Error>),
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It took effect.
    Done,
    /// The pod was changed, and has this version now.
    Patched(String),
    /// Whether all claims are bound.
    ClaimsBound(bool),
    /// The Job ignores the disruption of its pods.
    JobIgnoresDisruption(bool),
}

// === impl CallIds ===

impl CallIds {
    /// The next id.
    pub(crate) fn next(&mut self) -> CallId {
        self.0 += 1;
        CallId(self.0)
    }
}

/// Whether the object of a call does not exist any more.
pub(crate) fn is_gone(error: &Error) -> bool {
    matches!(error.kind, Kind::NotFound | Kind::Replaced)
}

/// Whether a call that failed may have taken effect all the same.
pub(crate) fn may_have_happened(error: &Error) -> bool {
    matches!(error.kind, Kind::Server | Kind::Timeout | Kind::Unreachable | Kind::Fenced)
}

/// Whether a call would be refused again.
pub(crate) fn is_refused(error: &Error) -> bool {
    matches!(error.kind, Kind::Invalid | Kind::Forbidden | Kind::AlreadyExists | Kind::MethodNotAllowed)
}
