//! Image names, pulls and garbage collection.
//!
//! One [`Puller`] serves all pods. It applies the pull policy, tries the pod's credentials, shares a pull between all pods that wait for it,
//! and backs off after failures. A pod may use an image that another pod pulled with credentials only if its own credentials fit too: the
//! credentials of each pull are recorded as hashes, by the runtime itself (`local`) or by the engine.

mod access;
mod garbage_collection;
mod name;
mod pull_backoff;
mod pull_permits;
mod pull_records;
mod puller;

use vk_provider::EventKind;

pub use self::{
    access::{Access, ImageAccess, credentials_hash},
    garbage_collection::{
        DiskUsage, GcThresholds, ImageInventory, ImagesInUse, RemovalPlan, plan_removal, shortfall_message,
    },
    name::normalize,
    puller::{ImageRequest, Puller},
};
use crate::{backend::Image, status::FailureReason};

/// A local image that a container can be started from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedImage {
    /// The reference by which the runtime starts it.
    pub image_ref: String,
    /// The runtime's description of it.
    pub image: Image,
}

/// The pull policy of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// For each container.
    Always,
    /// If it is not present.
    IfNotPresent,
    /// Never: it must be present.
    Never,
}

impl Policy {
    /// The policy of the spec, else the default of the API server: `Always` for the tag `latest`.
    pub fn of(policy: Option<&str>, image: &str) -> Self {
        match policy {
            Some("Always") => Self::Always,
            Some("Never") => Self::Never,
            Some("IfNotPresent") => Self::IfNotPresent,
            _ if normalize(image).is_ok_and(|image| image.ends_with(":latest")) => Self::Always,
            _ => Self::IfNotPresent,
        }
    }
}

/// The event of a container that cannot be started because of its image. As in a kubelet it contains the reason, and only for an image that
/// cannot be inspected the message.
pub fn failed_event(failure: &FailureReason) -> (EventKind, &'static str, String) {
    let detail =
        if failure.reason == "CreateContainerConfigError" { &failure.message } else { &failure.reason };
    (EventKind::Warning, "Failed", format!("Error: {detail}"))
}
