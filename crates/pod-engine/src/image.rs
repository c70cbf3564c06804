//! Images: their names, and how they come onto the machine.
//!
//! One [`Puller`] serves all pods. It decides by the pull policy whether there is anything to do, tries the pod's credentials, lets
//! the same pull serve everybody who waits for it, and waits longer after each failure. An image that was pulled with one pod's
//! credentials is no gift to other pods: who pulled what with which credentials is written down, and a pod whose
//! credentials are others has to show that they fit.

mod backoff;
mod collection;
mod name;
mod puller;
mod records;

use vk_provider::EventKind;

pub use self::{
    collection::{Census, Collection, Disk, Limits, Used, collection, shortfall},
    name::normalise,
    puller::{Puller, Wanted},
};
use crate::{backend::Image, status::Trouble};

/// An image that can be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The name under which the runtime starts it.
    pub image_ref: String,
    /// What the runtime knows about it.
    pub image: Image,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Each time that a container is created.
    Always,
    /// When it is not there.
    IfNotPresent,
    /// Never: it must be there.
    Never,
}

impl Policy {
    /// The policy that is written, and else the one that an API server fills in: `latest` may change at any time.
    pub fn of(policy: Option<&str>, image: &str) -> Self {
        match policy {
            Some("Always") => Self::Always,
            Some("Never") => Self::Never,
            Some("IfNotPresent") => Self::IfNotPresent,
            _ if normalise(image).is_ok_and(|image| image.ends_with(":latest")) => Self::Always,
            _ => Self::IfNotPresent,
        }
    }
}

/// The event of a container that cannot be started for want of its image: a kubelet says the reason there, and the message only in
/// the status; about an image that is there and cannot be looked at, the message.
pub fn failed_event(trouble: &Trouble) -> (EventKind, &'static str, String) {
    let said =
        if trouble.reason == "CreateContainerConfigError" { &trouble.message } else { &trouble.reason };
    (EventKind::Warning, "Failed", format!("Error: {said}"))
}
