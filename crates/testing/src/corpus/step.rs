//! Steps of a case.

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

/// One step.
#[derive(Clone, Debug)]
pub enum Step {
    /// Wait for a checkpoint.
    Reach(Checkpoint),
    /// Perform an action.
    Do(Action),
}

/// A state to wait for and to observe.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Its name.
    pub reach: String,
    /// Time limit in seconds.
    #[serde(default = "default_deadline")]
    pub within: u64,
    /// Predicate on the status, see [`holds`](super::holds).
    #[serde(default)]
    pub status: Value,
    /// Reasons of events that must exist.
    #[serde(default)]
    pub events: Vec<String>,
    /// Reasons of events that may or may not exist, depending on timing.
    #[serde(default)]
    pub maybe: Vec<String>,
    /// Whether the pod must be deleted.
    #[serde(default)]
    pub gone: bool,
    /// Whether the state is transient: the observation depends on timing and is not compared.
    #[serde(default)]
    pub passing: bool,
}

/// An action.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Action {
    /// Delete the pod, with this grace period in seconds; by default the pod's own.
    Delete {
        /// Seconds.
        grace: Option<u32>,
    },
    /// Run a command in a container; it must succeed.
    Exec {
        /// The container.
        container: String,
        /// The command.
        command: Vec<String>,
    },
    /// Add ephemeral containers.
    Ephemeral(Vec<Value>),
    /// Change a container's image.
    Image {
        /// The container.
        container: String,
        /// The new image.
        image: String,
    },
    /// Create an object.
    Create(Value),
    /// Change an object: a merge patch, with its kind and name in it.
    Patch(Value),
}

fn default_deadline() -> u64 {
    // Test machines can be busy.
    120
}

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        match value.get_mut("do").map(Value::take) {
            Some(action) => serde_json::from_value(action).map(Self::Do),
            None => serde_json::from_value(value).map(Self::Reach),
        }
        .map_err(D::Error::custom)
    }
}
