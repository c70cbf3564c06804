//! The node's decisions about its pods, with the newest known version of the Node.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::{Node, Pod};
use tracing::warn;
use vk_kube::Error as ApiError;

use super::{AdmissionVerdict, Checks, RejectionPolicy, ResizeDelay, ResourceLedger};

/// The ledger of a node, the Node itself, and the pods that wait for room.
#[derive(Debug, Default)]
pub(crate) struct NodeAdmission {
    ledger: ResourceLedger,
    node: Option<Arc<Node>>,
    /// Pods whose resize is deferred.
    waiting: BTreeSet<Arc<str>>,
    /// Resources were released since the waiting pods were last told.
    freed: bool,
}

// === impl NodeAdmission ===

impl NodeAdmission {
    /// Nothing is claimed yet, and the Node is not known.
    pub(crate) fn new(checks: Checks, daemon_sets: Option<RejectionPolicy>) -> Self {
        Self { ledger: ResourceLedger::new(checks, daemon_sets), ..Self::default() }
    }

    /// A new version of the Node: there may be more room than before.
    pub(crate) fn set_node(&mut self, node: Option<Arc<Node>>) {
        self.node = node;
        self.freed = true;
    }

    /// Decides whether the node takes a pod. `None`: the Node may have changed meanwhile and must be read first.
    pub(crate) fn admit(
        &mut self,
        uid: &Arc<str>,
        pod: &Pod,
        admitted_before: bool,
    ) -> Option<AdmissionVerdict> {
        if admitted_before {
            // At once, also while the Node is unknown: a pod that comes later must not get its room.
            return Some(self.ledger.readmit(uid, pod));
        }
        let verdict = self.ledger.admit(uid, pod, self.node.as_ref()?);
        (!verdict.may_be_outdated()).then_some(verdict)
    }

    /// Decides with the Node that was just read.
    pub(crate) fn admit_with(
        &mut self,
        uid: &Arc<str>,
        pod: &Pod,
        admitted_before: bool,
        node: Result<Box<Node>, ApiError>,
    ) -> AdmissionVerdict {
        if admitted_before {
            return self.ledger.readmit(uid, pod);
        }
        match (node, &self.node) {
            (Ok(node), _) => self.ledger.admit(uid, pod, &node),
            (Err(error), Some(known)) => {
                warn!(%error, "cannot read the Node: deciding by its last known version");
                self.ledger.admit(uid, pod, known)
            }
            (Err(error), None) => {
                warn!(%error, "cannot read the Node: the pod is admitted without a check");
                self.ledger.claim(uid, pod);
                AdmissionVerdict::Admitted
            }
        }
    }

    /// Decides whether the node has room for other resources of a pod. One for which it has none waits for room.
    pub(crate) fn resize(&mut self, uid: &Arc<str>, pod: &Pod) -> Result<(), ResizeDelay> {
        let answer = match &self.node {
            Some(node) => self.ledger.resize(uid, pod, node),
            None => Err(ResizeDelay { infeasible: false, message: "the Node is not known yet".to_owned() }),
        };
        if answer.is_err() {
            self.waiting.insert(Arc::clone(uid));
        }
        answer
    }

    /// Books what a pod claims, whether there is room or not: the provider has it.
    pub(crate) fn claim(&mut self, uid: &Arc<str>, pod: &Pod) {
        self.ledger.claim(uid, pod);
    }

    /// The pod needs nothing any more.
    pub(crate) fn release(&mut self, uid: &Arc<str>) {
        self.waiting.remove(uid);
        self.freed |= self.ledger.release(uid);
    }

    /// The pods that wait for room, if there may be more room than before. They wait no longer.
    pub(crate) fn take_waiting(&mut self) -> BTreeSet<Arc<str>> {
        if std::mem::take(&mut self.freed) { std::mem::take(&mut self.waiting) } else { BTreeSet::new() }
    }
}
