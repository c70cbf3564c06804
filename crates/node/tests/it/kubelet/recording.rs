//! The result of a case: recorded from the kubelet, or from our resolver in the same form.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::file_contents::Contents;

/// The result of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Recording {
    /// The API server's error, if it rejected an object or the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<String>,
    /// Results of the containers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) containers: BTreeMap<String, Container>,
    /// Warning events of the pod.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) warnings: BTreeSet<Warning>,
}

/// The result of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Container {
    /// Why it is waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) waiting: Option<Waiting>,
    /// Why the runtime could not start it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) broken: Option<String>,
    /// What it was started with; absent if it does not run the probe image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) started: Option<Started>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Waiting {
    pub(super) reason: String,
    pub(super) message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Warning {
    pub(super) reason: String,
    pub(super) message: String,
}

/// Environment, command line and volumes that a container saw.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Started {
    /// Without variables of the image and the runtime.
    pub(super) env: BTreeMap<String, String>,
    /// Command and arguments.
    pub(super) command: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) volumes: BTreeMap<String, Volume>,
}

/// A volume as a container sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Volume {
    /// Files by their path, through all links.
    pub(super) files: BTreeMap<String, File>,
    /// Links at the top of the volume. The kubelet's directories are named by time: `..{time}`.
    pub(super) links: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// Permission bits, in octal.
    pub(super) mode: String,
    /// `UID:GID`.
    pub(super) owner: String,
    pub(super) contents: Contents,
}

/// The node on which the recordings were made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    pub(super) kubelet: String,
    pub(super) runtime: String,
    pub(super) addresses: Vec<std::net::IpAddr>,
    pub(super) allocatable: BTreeMap<String, String>,
}

/// Values that differ between runs, with their placeholders in recordings.
#[derive(Clone, Debug, Default)]
pub(super) struct Placeholders(Vec<(String, &'static str)>);

// === impl Recording ===

impl Recording {
    pub(super) fn load(case: &str) -> Self {
        read(&file(case))
    }

    #[cfg(feature = "e2e")]
    pub(super) fn save(&self, case: &str) {
        write(&file(case), self);
    }
}

impl Node {
    pub(super) fn load() -> Self {
        read(&folder().join("node.json"))
    }

    #[cfg(feature = "e2e")]
    pub(super) fn save(&self) {
        write(&folder().join("node.json"), self);
    }
}

/// The names of the recorded cases.
pub(super) fn names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder().join("pods"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

/// Removes all recordings of pods, so that none is left of a case that is gone.
#[cfg(feature = "e2e")]
pub(super) fn remove_all() {
    for name in names() {
        std::fs::remove_file(file(&name)).unwrap();
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/kubelet/recorded")
}

fn file(case: &str) -> PathBuf {
    folder().join("pods").join(format!("{case}.json"))
}

fn read<T: serde::de::DeserializeOwned>(file: &Path) -> T {
    let text = std::fs::read(file).unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

#[cfg(feature = "e2e")]
fn write<T: Serialize>(file: &Path, value: &T) {
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, format!("{}\n", serde_json::to_string_pretty(value).unwrap())).unwrap();
}

// === impl Placeholders ===

impl Placeholders {
    /// Adds a placeholder for `text`.
    pub(super) fn learn(&mut self, text: impl Into<String>, word: &'static str) {
        self.0.push((text.into(), word));
    }

    /// Replaces values that differ between runs by their placeholders.
    pub(super) fn replace(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }
}
