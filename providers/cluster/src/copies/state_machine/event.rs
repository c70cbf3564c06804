//! The inputs of the state machine.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use vk_kube::Error;
use vk_provider::PodRef;

use super::super::{
    Kind,
    diff::{CopyKey, DesiredCopy, ObservedCopy},
};
use crate::dependencies::Dependencies;

/// An input of the state machine.
#[derive(Clone, Debug)]
pub enum Event {
    /// A deadline has passed.
    Tick,
    /// The dependencies of a pod, which replace earlier ones.
    PodAdded(PodRef, Dependencies),
    /// A pod was deleted or has ended.
    PodRemoved(PodRef),
    /// The desired copy of an upper object; `None` if the object does not exist.
    UpperRead(CopyKey, Option<Arc<DesiredCopy>>),
    /// An upper object with this UID exists but must not be copied. An existing copy of it stays.
    UpperSkipped(CopyKey, String),
    /// An upper object cannot be read.
    UpperUnreadable(CopyKey, Error),
    /// A copy of our upper cluster was observed.
    LowerSeen(CopyKey, ObservedCopy),
    /// A copy was deleted at this version, or lost our label.
    LowerDeleted(CopyKey, u64),
    /// A copy is missing from a new list.
    LowerMissing(CopyKey),
    /// All copies of a kind were listed, in one namespace or in all.
    Listed(Kind, Option<String>),
    /// A call finished.
    CallFinished(CopyKey, Result<CallOutcome, Error>),
    /// A lower namespace and its owner ConfigMap exist, or could not be created.
    NamespaceEnsured(String, Result<OwnerReference, Error>),
    /// What we have in a lower namespace was removed, or has to stay for now.
    NamespaceRetired(String, Result<(), Error>),
}

// === impl Event ===

impl Event {
    /// The event for an upper object that was read: its UID if it exists, and the desired copy if it may be copied. A claim that exists but
    /// must not be copied is not treated as deleted: its copy may hold data.
    pub fn upper_read(key: CopyKey, uid: Option<&str>, desired: Option<DesiredCopy>) -> Self {
        match (uid, desired) {
            (Some(uid), None) if key.kind == Kind::Claim => Self::UpperSkipped(key, uid.to_owned()),
            (_, desired) => Self::UpperRead(key, desired.map(Arc::new)),
        }
    }
}

/// The outcome of a successful call.
#[derive(Clone, Debug, PartialEq)]
pub enum CallOutcome {
    /// The object after the call, if it exists.
    Object(Option<Box<ObservedCopy>>),
    /// The object is being deleted.
    Deleting,
    /// Whether a lower pod uses the object.
    InUse(bool),
}
