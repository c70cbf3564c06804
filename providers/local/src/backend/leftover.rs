//! Recovery after a restart: reads the records of running containers and removes what the previous process left
//! incomplete.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use vk_provider::{Error, Result};

use super::{
    Inner, blocking, container,
    record::{self, ContainerRecord, DRAFT, RECORD, STOPPED, SandboxRecord},
    registry::{KnownContainer, KnownSandbox},
    rootfs,
};
use crate::{namespace, shim};

/// The kernel's id of the current boot.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

struct Found {
    sandboxes: Vec<(PathBuf, SandboxRecord)>,
    containers: Vec<(PathBuf, ContainerRecord)>,
    /// Sandbox directories without a record, each with its draft if there is one.
    drafts: Vec<(PathBuf, Option<SandboxRecord>)>,
    /// Container directories without a record.
    halves: Vec<PathBuf>,
}

impl Inner {
    /// Reads the records, and removes directories without one.
    pub(super) async fn adopt(self: &Arc<Self>) -> Result<()> {
        let directory = self.directory.clone();
        let found = blocking("read records", move || {
            find(&directory).map_err(|error| {
                Error::internal(format!("open provider local: read records: {error}")).caused_by(error)
            })
        })
        .await?;
        let mut homeless = Vec::new();
        {
            let mut registry = self.registry.lock();
            for (path, record) in found.sandboxes {
                let stopped = path.join(STOPPED).exists();
                let known = KnownSandbox::new(record, path, stopped);
                registry.sandboxes.insert(known.record.id.clone(), Arc::new(known));
            }
            for (path, record) in found.containers {
                if !registry.sandboxes.contains_key(&record.sandbox) {
                    homeless.push(record.id.clone());
                }
                registry.containers.insert(record.id.clone(), Arc::new(KnownContainer::new(record, path)));
            }
        }
        for id in homeless {
            tolerate(&id, self.remove_container(&id).await);
        }
        for path in found.halves {
            let outcome = blocking("remove leftovers", {
                let path = path.clone();
                move || bury(&path)
            });
            tolerate(&path.display().to_string(), outcome.await);
        }
        for (path, draft) in found.drafts {
            let outcome = self.remove_draft(&path, draft).await;
            tolerate(&path.display().to_string(), outcome);
        }
        if let Some(network) = &self.settings.network {
            let live: BTreeSet<String> = self.registry.lock().sandboxes.keys().cloned().collect();
            match network.reconcile(&live).await {
                Ok(freed) if !freed.is_empty() => {
                    tracing::info!(?freed, "removed the networks of deleted pods");
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "removing the networks of deleted pods failed"),
            }
        }
        Ok(())
    }

    async fn remove_draft(&self, path: &Path, draft: Option<SandboxRecord>) -> Result<()> {
        end_pause(path);
        namespace::unpin(path)
            .await
            .map_err(|error| Error::internal(format!("remove namespaces: {error}")))?;
        if let Some(cgroup) = draft.and_then(|draft| draft.cgroup)
            && !self.registry.lock().shares_cgroup("", &cgroup)
        {
            self.remove_cgroup(&cgroup).await?;
        }
        let path = path.to_owned();
        blocking("remove leftovers", move || bury(&path)).await
    }
}

/// Logs a failed removal. The next start tries again; this start goes on.
fn tolerate(what: &str, outcome: Result<()>) {
    if let Err(error) = outcome {
        tracing::warn!(error = error.report(), what, "removing the remains of a previous process failed");
    }
}

/// Kills the pause process of a sandbox; the kernel then kills all processes in its PID namespace.
pub(super) fn end_pause(sandbox: &Path) {
    if let Some(pid) = shim::paused(sandbox).and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Unmounts everything below a directory of the backend and removes it.
pub(super) fn bury(path: &Path) -> Result<()> {
    let told = |error: String| Error::internal(format!("remove {}: {error}", path.display()));
    rootfs::release(path).map_err(|error| told(error.to_string()))?;
    vk_files::tree::remove(path).map_err(|error| told(error.to_string()))
}

fn find(directory: &Path) -> io::Result<Found> {
    let mut found = Found { sandboxes: vec![], containers: vec![], drafts: vec![], halves: vec![] };
    for path in entries(&directory.join("sandboxes"))? {
        match record::read::<SandboxRecord>(&path.join(RECORD)) {
            Ok(Some(record)) => found.sandboxes.push((path, record)),
            Err(error) if holds(&path) => return Err(unreadable(&path, &error)),
            Ok(None) | Err(_) => {
                let draft = record::read(&path.join(DRAFT)).unwrap_or_default();
                found.drafts.push((path, draft));
            }
        }
    }
    for path in entries(&directory.join("containers"))? {
        match record::read::<ContainerRecord>(&path.join(RECORD)) {
            Ok(Some(record)) => found.containers.push((path, record)),
            Err(error) if runs(&path) => return Err(unreadable(&path, &error)),
            Ok(None) | Err(_) => found.halves.push(path),
        }
    }
    Ok(found)
}

/// Whether a namespace is mounted in the sandbox. If the record was truncated by a power loss, none is.
fn holds(path: &Path) -> bool {
    let kinds = [namespace::Kind::Net, namespace::Kind::Ipc, namespace::Kind::Uts];
    kinds.into_iter().any(|kind| namespace::pinned(path, kind))
}

/// Whether a container runs, or may run. A state file that was truncated by a power loss, with no mounts left, means
/// that it does not run.
fn runs(path: &Path) -> bool {
    match shim::Shim::at(path).state() {
        Ok(shim::State::Created | shim::State::Exited(_)) => false,
        Ok(shim::State::Running { .. } | shim::State::Lost { .. }) => true,
        Err(error) if error.raw_os_error().is_some() => true,
        Err(_) => {
            container::locked(path).unwrap_or(true)
                || rootfs::mounted_below(path).map_or(true, |mounts| !mounts.is_empty())
        }
    }
}

/// The error for an unreadable record of something that is alive, which must not be removed.
fn unreadable(path: &Path, error: &io::Error) -> io::Error {
    io::Error::other(format!(
        "{} cannot be read ({error}): it was written by another version, or damaged; stop what runs there and remove the directory",
        path.join(RECORD).display()
    ))
}

fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
    paths.sort();
    Ok(paths)
}
