//! A short hash of what can change in a running pod, kept with the group: a new process sees what has changed meanwhile.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};

use super::base32;

/// The bytes of a digest that are kept: enough that two specs of one pod differ.
const BYTES: usize = 5;

/// Hashes of the mutable parts of a pod's spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecHash {
    images: String,
    resources: String,
    deadline: String,
    ephemeral: String,
}

/// What differs between two specs of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecChange {
    /// An image.
    pub images: bool,
    /// Resources of a container or of the pod.
    pub resources: bool,
    /// `activeDeadlineSeconds`.
    pub deadline: bool,
    /// Ephemeral containers.
    pub ephemeral: bool,
}

// === impl SpecHash ===

impl SpecHash {
    /// The hashes of a pod.
    pub fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else {
            let none = hash(&Value::Null);
            return Self {
                images: none.clone(),
                resources: none.clone(),
                deadline: none.clone(),
                ephemeral: none,
            };
        };
        let containers = || spec.init_containers.iter().flatten().chain(&spec.containers);
        let collect = |part: fn(&Container) -> Value| -> Value { containers().map(part).collect() };
        let ephemeral: Value =
            spec.ephemeral_containers.iter().flatten().map(|one| json!(one.name)).collect();
        Self {
            images: hash(&collect(|one| json!([one.name, one.image]))),
            resources: hash(&json!([collect(|one| json!([one.name, one.resources])), spec.resources])),
            deadline: hash(&json!(spec.active_deadline_seconds)),
            ephemeral: hash(&ephemeral),
        }
    }

    /// Reads what `Display` wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-').map(str::to_owned);
        let hash = Self {
            images: parts.next()?,
            resources: parts.next()?,
            deadline: parts.next()?,
            ephemeral: parts.next()?,
        };
        parts.next().is_none().then_some(hash)
    }

    /// The hashes after an update of a running group, which changes images and resources and nothing else.
    #[must_use]
    pub fn updated_to(&self, desired: &Self) -> Self {
        let Self { images, resources, .. } = desired.clone();
        Self { images, resources, ..self.clone() }
    }

    /// What differs.
    pub fn changes(&self, other: &Self) -> SpecChange {
        SpecChange {
            images: self.images != other.images,
            resources: self.resources != other.resources,
            deadline: self.deadline != other.deadline,
            ephemeral: self.ephemeral != other.ephemeral,
        }
    }
}

impl fmt::Display for SpecHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { images, resources, deadline, ephemeral } = self;
        write!(f, "{images}-{resources}-{deadline}-{ephemeral}")
    }
}

// === impl SpecChange ===

impl SpecChange {
    /// Whether nothing differs.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// The fields that differ.
    pub fn fields(self) -> Vec<&'static str> {
        let all = [
            (self.images, "spec.containers[*].image"),
            (self.resources, "spec.containers[*].resources"),
            (self.deadline, "spec.activeDeadlineSeconds"),
            (self.ephemeral, "spec.ephemeralContainers"),
        ];
        all.into_iter().filter_map(|(differs, field)| differs.then_some(field)).collect()
    }
}

fn hash(value: &Value) -> String {
    base32(&digest(&SHA256, value.to_string().as_bytes()).as_ref()[..BYTES])
}
