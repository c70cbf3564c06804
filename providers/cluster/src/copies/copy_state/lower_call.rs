//! The calls on the lower object of a copy.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::super::diff::{DesiredCopy, ObservedCopy};
use crate::lower_cluster::ObjectUse;

/// A call on a lower object.
#[derive(Clone, Debug, PartialEq)]
pub enum LowerCall {
    /// Creates the object, with this owner reference if there is one.
    Create(Arc<DesiredCopy>, Option<OwnerReference>),
    /// Patches this version of the object to the desired state.
    Patch(Box<ObservedCopy>, Arc<DesiredCopy>),
    /// Deletes the object.
    Delete(Deletion),
    /// Reads the object.
    Read,
    /// Checks whether a lower pod of our upper cluster, on any of its virtual nodes, uses the object.
    CheckUse(UseCheck),
}

/// The deletion of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// The UID of the copy.
    pub uid: String,
    /// The version that nobody uses: it is not deleted if it was changed or a pod that uses it has appeared. `None` to delete the copy in
    /// any case.
    pub unused_version: Option<u64>,
}

/// A question about the use of a copy. The answer counts only for the version that it was asked about: a later one may be the work of
/// another virtual node, which needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UseCheck {
    /// The UID of the copy.
    pub uid: String,
    /// Its resource version.
    pub version: u64,
    /// Which pods count: all that refer to the copy, or only those that cannot run without it.
    pub by: ObjectUse,
}

// === impl Deletion ===

impl Deletion {
    /// Deletes a copy even if pods use it.
    pub(super) fn in_any_case(found: &ObservedCopy) -> Self {
        Self { uid: found.uid.clone(), unused_version: None }
    }
}
