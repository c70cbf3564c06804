//! The sandboxes and containers of this node, in memory. Records never change; only container states are read again.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use vk_provider::Result;

use super::{
    error,
    record::{ContainerRecord, SandboxRecord},
};
use crate::shim::{ContainerExit, ContainerProcess, Shim};

/// A sandbox of this node.
#[derive(Debug)]
pub(super) struct LocalSandbox {
    pub(super) record: SandboxRecord,
    pub(super) directory: PathBuf,
    stopped: AtomicBool,
}

impl LocalSandbox {
    pub(super) fn new(record: SandboxRecord, directory: PathBuf, stopped: bool) -> Self {
        Self { record, directory, stopped: AtomicBool::new(stopped) }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(super) fn set_stopped(&self) {
        self.stopped.store(true, Ordering::Release);
    }
}

/// A container of this node.
#[derive(Debug)]
pub(super) struct LocalContainer {
    pub(super) record: ContainerRecord,
    pub(super) shim: Shim,
    /// What to execute, until it was started. Only this process knows it: no file has it.
    pub(super) process: Mutex<Option<ContainerProcess>>,
    /// How the container exited, once it has.
    pub(super) ended: Mutex<Option<ContainerExit>>,
    /// Held while a container whose shim is gone is cleaned up.
    pub(super) cleanup: tokio::sync::Mutex<()>,
    /// Held during a start, and by operations that must exclude one.
    pub(super) start: tokio::sync::Mutex<()>,
    /// Whether it was logged that the container's state is unknown.
    unknown_reported: AtomicBool,
}

impl LocalContainer {
    /// A container that was found on disk.
    pub(super) fn new(record: ContainerRecord, directory: PathBuf) -> Self {
        let shim = Shim::at(directory);
        Self {
            record,
            shim,
            process: Mutex::default(),
            ended: Mutex::default(),
            cleanup: tokio::sync::Mutex::default(),
            start: tokio::sync::Mutex::default(),
            unknown_reported: AtomicBool::new(false),
        }
    }

    /// A container that was just created.
    pub(super) fn created(record: ContainerRecord, process: ContainerProcess, directory: PathBuf) -> Self {
        Self { process: Mutex::new(Some(process)), ..Self::new(record, directory) }
    }

    /// Marks the state as unknown; returns whether it was not marked before.
    pub(super) fn mark_unknown(&self) -> bool {
        !self.unknown_reported.swap(true, Ordering::AcqRel)
    }
}

/// All sandboxes and containers of this node.
#[derive(Debug, Default)]
pub(super) struct ContainerStore {
    pub(super) sandboxes: BTreeMap<String, Arc<LocalSandbox>>,
    pub(super) containers: BTreeMap<String, Arc<LocalContainer>>,
}

impl ContainerStore {
    pub(super) fn sandbox(&self, id: &str) -> Result<Arc<LocalSandbox>> {
        self.sandboxes.get(id).cloned().ok_or_else(|| error::no_sandbox(id))
    }

    pub(super) fn container(&self, id: &str) -> Result<Arc<LocalContainer>> {
        self.containers.get(id).cloned().ok_or_else(|| error::no_container(id))
    }

    pub(super) fn containers_in(&self, sandbox: &str) -> Vec<Arc<LocalContainer>> {
        self.containers.values().filter(|one| one.record.sandbox == sandbox).cloned().collect()
    }

    pub(super) fn sandbox_ids(&self) -> Vec<String> {
        self.sandboxes.keys().cloned().collect()
    }

    pub(super) fn container_ids(&self) -> Vec<String> {
        self.containers.keys().cloned().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// Whether another sandbox (of the same pod) uses the same cgroup.
    pub(super) fn shares_cgroup(&self, id: &str, cgroup: &str) -> bool {
        let others = self.sandboxes.values().filter(|other| other.record.id != id);
        others.into_iter().any(|other| other.record.cgroup.as_deref() == Some(cgroup))
    }
}

/// Whether the labels include all of `wanted`.
pub(super) fn matches_labels(labels: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}
