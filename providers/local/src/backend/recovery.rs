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
    Inner, blocking,
    container_store::{LocalContainer, LocalSandbox},
    record::{ContainerRecord, DRAFT, RECORD, STOPPED, SandboxRecord},
    rootfs,
};
use crate::{files, namespace, shim};

/// The kernel's id of the current boot.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

struct RecordsOnDisk {
    sandboxes: Vec<(PathBuf, SandboxRecord)>,
    containers: Vec<(PathBuf, ContainerRecord)>,
    /// Sandbox directories without a record, each with its draft if there is one.
    drafts: Vec<(PathBuf, Option<SandboxRecord>)>,
    /// Container directories without a record.
    incomplete: Vec<PathBuf>,
}

impl Inner {
    /// Reads the records, and removes directories without one.
    pub(super) async fn recover(self: &Arc<Self>) -> Result<()> {
        let directory = self.directory.clone();
        let found = blocking("read records", move || {
            find(&directory).map_err(|error| {
                Error::internal(format!("open provider local: read records: {error}")).caused_by(error)
            })
        })
        .await?;
        let mut orphans = Vec::new();
        {
            let mut store = self.store.lock();
            for (path, record) in found.sandboxes {
                let stopped = path.join(STOPPED).exists();
                let entry = LocalSandbox::new(record, path, stopped);
                store.sandboxes.insert(entry.record.id.clone(), Arc::new(entry));
            }
            for (path, record) in found.containers {
                if !store.sandboxes.contains_key(&record.sandbox) {
                    orphans.push(record.id.clone());
                }
                store.containers.insert(record.id.clone(), Arc::new(LocalContainer::new(record, path)));
            }
        }
        for id in orphans {
            log_failed_removal(&id, self.remove_container(&id).await);
        }
        for path in found.incomplete {
            let outcome = blocking("remove leftovers", {
                let path = path.clone();
                move || remove_directory(&path)
            });
            log_failed_removal(&path.display().to_string(), outcome.await);
        }
        for (path, draft) in found.drafts {
            let outcome = self.remove_draft(&path, draft).await;
            log_failed_removal(&path.display().to_string(), outcome);
        }
        if let Some(network) = &self.settings.network {
            let live: BTreeSet<String> = self.store.lock().sandboxes.keys().cloned().collect();
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
        kill_pause_process(path);
        namespace::unpin(path)
            .await
            .map_err(|error| Error::internal(format!("remove namespaces: {error}")))?;
        if let Some(cgroup) = draft.and_then(|draft| draft.cgroup)
            && !self.store.lock().shares_cgroup("", &cgroup)
        {
            self.remove_cgroup(&cgroup).await?;
        }
        let path = path.to_owned();
        blocking("remove leftovers", move || remove_directory(&path)).await
    }
}

/// Logs a failed removal. The next start tries again; this start goes on.
fn log_failed_removal(what: &str, outcome: Result<()>) {
    if let Err(error) = outcome {
        tracing::warn!(error = error.report(), what, "removing the remains of a previous process failed");
    }
}

/// Kills the pause process of a sandbox; the kernel then kills all processes in its PID namespace.
pub(super) fn kill_pause_process(sandbox: &Path) {
    if let Some(pid) = shim::pause_process_pid(sandbox).and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Unmounts everything below a directory of the backend and removes it.
pub(super) fn remove_directory(path: &Path) -> Result<()> {
    let failed = |error: String| Error::internal(format!("remove {}: {error}", path.display()));
    rootfs::unmount_below(path).map_err(|error| failed(error.to_string()))?;
    vk_files::tree::remove(path).map_err(|error| failed(error.to_string()))
}

fn find(directory: &Path) -> io::Result<RecordsOnDisk> {
    let mut found =
        RecordsOnDisk { sandboxes: vec![], containers: vec![], drafts: vec![], incomplete: vec![] };
    for path in entries(&directory.join("sandboxes"))? {
        match files::read_json::<SandboxRecord>(&path.join(RECORD)) {
            Ok(Some(record)) => found.sandboxes.push((path, record)),
            Err(error) if has_namespaces(&path) => return Err(unreadable(&path, &error)),
            Ok(None) | Err(_) => {
                let draft = files::read_json(&path.join(DRAFT)).unwrap_or_default();
                found.drafts.push((path, draft));
            }
        }
    }
    for path in entries(&directory.join("containers"))? {
        match files::read_json::<ContainerRecord>(&path.join(RECORD)) {
            Ok(Some(record)) => found.containers.push((path, record)),
            Err(error) if may_run(&path) => return Err(unreadable(&path, &error)),
            Ok(None) | Err(_) => found.incomplete.push(path),
        }
    }
    Ok(found)
}

/// Whether a namespace is mounted in the sandbox. If the record was truncated by a power loss, none is.
fn has_namespaces(path: &Path) -> bool {
    let kinds = [namespace::Kind::Net, namespace::Kind::Ipc, namespace::Kind::Uts];
    kinds.into_iter().any(|kind| namespace::is_pinned(path, kind))
}

/// Whether a container runs, or may run. A state file that was truncated by a power loss, with no mounts left, means
/// that it does not run.
fn may_run(path: &Path) -> bool {
    let shim = shim::Shim::at(path);
    match shim.state() {
        Ok(shim::State::Created | shim::State::Exited(_)) => false,
        Ok(shim::State::Running { .. } | shim::State::Lost { .. }) => true,
        Err(error) if error.raw_os_error().is_some() => true,
        Err(_) => {
            shim.is_alive().unwrap_or(true)
                || rootfs::mounts_below(path).map_or(true, |mounts| !mounts.is_empty())
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
