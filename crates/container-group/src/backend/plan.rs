//! From a pod to a request.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use vk_provider::{
    Error,
    resolve::{Claim, ContainerInputs, FileSet, PullCredentials},
};

pub use vk_provider::inventory::{Price, Size};

use super::Owner;

/// A pod with everything that it refers to: the input of [`GroupBackend::translate`](super::GroupBackend::translate).
#[derive(Clone, Debug)]
pub struct ResolvedPod {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Environment, command and arguments by container name, init containers included. Addresses are not known yet: values that depend on
    /// them are marked as deferred.
    pub containers: BTreeMap<String, ContainerInputs>,
    /// The files of configMap, secret, downwardAPI and projected volumes, by volume name.
    pub files: BTreeMap<String, FileSet>,
    /// Claims with their volumes, by volume name.
    pub claims: BTreeMap<String, Claim>,
    /// Registry credentials by image, best match first. An image that is pulled anonymously is not listed.
    pub credentials: BTreeMap<String, Vec<PullCredentials>>,
}

/// A pod that can run, as a request to the cloud.
#[derive(Clone, Debug)]
pub struct Plan<R> {
    /// The cloud's request.
    pub request: R,
    /// Where it may run, in the order of preference; empty if the cloud chooses. After [`Class::OutOfStock`](super::Class::OutOfStock) the
    /// next one is tried.
    pub placements: Vec<Placement>,
    /// The size that the group will have.
    pub size: Option<Size>,
    /// The grace period that the group is created with, if the cloud has one.
    pub grace: Option<Duration>,
    /// What is not done as the pod asks for it: one warning event.
    pub warnings: Vec<Warning>,
}

/// A place and size to try.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement {
    /// The zone or subnet.
    pub zone: Option<String>,
    /// The instance type or size.
    pub size: Option<String>,
}

/// Everything that a create needs.
#[derive(Debug)]
pub struct Creation<'a, R> {
    /// The translated pod.
    pub plan: &'a Plan<R>,
    /// Whose group it becomes.
    pub owner: &'a Owner,
    /// The name of the group.
    pub name: &'a str,
    /// The tags of the group, those of the user included.
    pub tags: &'a [(String, String)],
    /// The idempotency token: the same for a repeated call, another for another attempt.
    pub token: &'a str,
    /// The place to try; `None` if the plan has none.
    pub placement: Option<&'a Placement>,
}

/// Everything that a change of a running group needs.
#[derive(Debug)]
pub struct Update<'a, R> {
    /// The translated pod.
    pub plan: &'a Plan<R>,
    /// All tags that the group has afterwards, so that a later process sees what it was updated to; empty for a group of another
    /// provider, which keeps its own.
    pub tags: &'a [(String, String)],
}

/// Why a pod cannot run on this cloud: all reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejection {
    /// The reasons.
    pub errors: Vec<FieldError>,
}

/// A field of a pod that this cloud cannot honour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Its path, such as `spec.containers[web].securityContext.seLinuxOptions`.
    pub field: String,
    /// What is wrong, and what to write instead.
    pub message: String,
}

/// A field of a pod that is ignored or emulated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Its path.
    pub field: String,
    /// What happens instead.
    pub message: String,
}

// === impl Plan ===

impl<R> Plan<R> {
    /// A plan without wishes or warnings.
    pub fn new(request: R) -> Self {
        Self { request, placements: Vec::new(), size: None, grace: None, warnings: Vec::new() }
    }
}

// === impl Rejection ===

impl Rejection {
    /// Adds a reason.
    pub fn push(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.errors.push(FieldError { field: field.into(), message: message.into() });
    }

    /// The plan, unless there is a reason against it.
    pub fn or<T>(self, plan: T) -> Result<T, Self> {
        if self.errors.is_empty() { Ok(plan) } else { Err(self) }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, FieldError { field, message }) in self.errors.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{field}: {message}")?;
        }
        Ok(())
    }
}

impl From<Rejection> for Error {
    fn from(rejection: Rejection) -> Self {
        Self::invalid(format!("the pod cannot run on this cloud: {rejection}"))
    }
}

// === Display ===

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.zone.as_deref().unwrap_or("any zone"))?;
        self.size.iter().try_for_each(|size| write!(f, ", {size}"))
    }
}
