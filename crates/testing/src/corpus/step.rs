//! What happens to a pod, one thing after the other.

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

/// One thing.
#[derive(Clone, Debug)]
pub enum Step {
    /// Wait for something.
    Reach(Checkpoint),
    /// Do something.
    Do(Action),
}

/// A state to wait for and to look at.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Its name.
    pub reach: String,
    /// For how long, in seconds.
    #[serde(default = "default_deadline")]
    pub within: u64,
    /// What the status must hold, see [`holds`](super::holds).
    #[serde(default)]
    pub status: Value,
    /// What people must have been told: reasons of events.
    #[serde(default)]
    pub events: Vec<String>,
    /// What people may have been told or not, as it depends on the moment: reasons of events.
    #[serde(default)]
    pub maybe: Vec<String>,
    /// Whether the pod must be gone.
    #[serde(default)]
    pub gone: bool,
    /// Whether the pod does not stay as it is: what there is to see then depends on the moment, and is not compared.
    #[serde(default)]
    pub passing: bool,
}

/// Something to do.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Action {
    /// Delete the pod, with this grace in seconds; without one, the pod's own.
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
    // Test machines can be busy with many things at once.
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
