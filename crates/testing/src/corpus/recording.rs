//! Recorded observations of a case.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The recording of one case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// The version of the kubelet.
    pub kubelet: String,
    /// The version of the container runtime.
    pub runtime: String,
    /// One observation per checkpoint, in order.
    pub moments: Vec<Observation>,
}

/// The state at a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// The checkpoint's name.
    pub name: String,
    /// The time, in RFC 3339.
    pub now: String,
    /// Whether the pod was deleted; the other fields then have its last state.
    #[serde(default)]
    pub gone: bool,
    /// Whether the state is transient.
    #[serde(default)]
    pub passing: bool,
    /// The pod in the API server.
    pub pod: Value,
    /// The state in the container runtime.
    #[serde(default)]
    pub snapshot: Value,
    /// Messages of events so far, by reason.
    pub events: BTreeMap<String, BTreeSet<String>>,
    /// Logs so far, by container; of long ones only size and digest.
    pub logs: BTreeMap<String, String>,
}

// === impl Recording ===

impl Recording {
    /// Reads the recording of a case.
    pub fn load(folder: &Path, case: &str) -> Self {
        let file = folder.join(format!("{case}.json"));
        let text = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    }

    /// Writes the recording of a case.
    pub fn save(&self, folder: &Path, case: &str) {
        crate::host::make_folder(folder);
        let text = serde_json::to_string_pretty(self).expect("strings and numbers");
        crate::host::write(&folder.join(format!("{case}.json")), format!("{text}\n"));
    }

    /// The names of files in a folder, without their extension.
    pub fn names(folder: &Path, ending: &str) -> Vec<String> {
        let entries =
            std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> =
            names.filter_map(|name| name.strip_suffix(ending).map(str::to_owned)).collect();
        names.sort();
        names
    }
}

// === impl Observation ===

impl Observation {
    /// Whether the status is of the containers that the runtime had, each in the state that it had.
    pub(super) fn is_consistent(&self) -> bool {
        let status = &self.pod["status"];
        ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"]
            .into_iter()
            .flat_map(|list| status[list].as_array().into_iter().flatten())
            .all(|container| self.agrees(container))
    }

    fn agrees(&self, container: &Value) -> bool {
        // The newest is the first.
        let mut there = self.snapshot["containers"].as_array().into_iter().flatten();
        let there = there.find(|there| there["name"] == container["name"]);
        let id = container["containerID"].as_str().and_then(|id| id.split_once("://")).map(|(_, id)| id);
        let Some(there) = there else { return self.gone || id.is_none() };
        let runs = there["state"] == "Running";
        id == there["id"].as_str() && runs == container["state"].get("running").is_some()
    }
}
