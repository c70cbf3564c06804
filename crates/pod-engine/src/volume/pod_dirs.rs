//! The directories of pods.
//!
//! ```text
//! <root>/pods/<uid>/volumes/kubernetes.io~<kind>/<name>                volumes
//! <root>/pods/<uid>/plugins/kubernetes.io~<kind>/<name>/ready          marker of a completed setup
//! <root>/pods/<uid>/volume-subpaths/<volume>/<container>/<number>      sub path mounts of containers
//! <root>/pods/<uid>/containers/<container>/<random>                    termination messages
//! <root>/pods/<uid>/etc-hosts
//! ```

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::OFlags;
use vk_provider::{Error, Result};

use super::mount_table;
use crate::text::io_error;

/// Mode of our directories.
const DIR_MODE: u32 = 0o750;

/// Directories that are removed when a pod terminates, before the pod is deleted.
const VOLUMES: &str = "volumes";
const PLUGINS: &str = "plugins";
const SUB_PATHS: &str = "volume-subpaths";

/// The directories of pods. It has no state except the root path.
#[derive(Clone, Debug)]
pub struct PodDirs(Arc<Path>);

impl PodDirs {
    /// The directories below this root, which is created when needed.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into().into())
    }

    /// The directory of a pod.
    pub fn pod(&self, uid: &str) -> PathBuf {
        self.0.join("pods").join(uid)
    }

    /// The UIDs of all pods that have a directory.
    pub fn pods(&self) -> Result<Vec<String>> {
        let directory = self.0.join("pods");
        let failed = |error| failed("list", &directory, &error);
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut pods = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir())
                && let Ok(uid) = entry.file_name().into_string()
            {
                pods.push(uid);
            }
        }
        pods.sort();
        Ok(pods)
    }

    /// Writes the pod's `/etc/hosts` and returns its path. It is written in place, because containers have it mounted.
    pub fn write_hosts(&self, uid: &str, content: &str) -> Result<PathBuf> {
        let path = self.checked(uid)?.join("etc-hosts");
        self.create_pod(uid)?;
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_file())
            && fs::read(&path).is_ok_and(|found| found == content.as_bytes())
        {
            return Ok(path);
        }
        let write = || {
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .custom_flags(open_flags(OFlags::NOFOLLOW))
                .open(&path)?;
            file.write_all(content.as_bytes())?;
            file.set_permissions(fs::Permissions::from_mode(0o644))
        };
        write().map_err(|error| failed("write", &path, &error))?;
        Ok(path)
    }

    /// Creates an empty, world-writable file for the termination message of one container instance. Returns its path.
    pub fn create_message_file(&self, uid: &str, container: &str) -> Result<PathBuf> {
        if !mount_table::is_name(container) {
            return Err(Error::invalid(format!("container {container:?}: invalid name")));
        }
        let directory = self.checked(uid)?.join("containers").join(container);
        self.create_pod(uid)?;
        create(&directory)?;
        loop {
            let path = directory.join(format!("{:08x}", rand::random::<u32>()));
            let created = fs::OpenOptions::new().write(true).create_new(true).open(&path);
            let file = match created {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file.map_err(|error| failed("create", &path, &error))?,
            };
            file.set_permissions(fs::Permissions::from_mode(0o666))
                .map_err(|error| failed("change mode of", &path, &error))?;
            return Ok(path);
        }
    }

    /// Unmounts everything in a pod's directory and removes it. The sources of mounts are not changed. Nothing of the pod may run. It can be
    /// repeated, also after a crash.
    pub async fn tear_down(&self, uid: &str) -> Result<()> {
        let path = self.checked(uid)?;
        let done = tokio::task::spawn_blocking(move || tear_down(&path)).await;
        done.map_err(|error| Error::internal("tear down volumes").caused_by(error))?
    }

    /// Removes only the volumes of a terminated pod. Termination messages stay until [`tear_down`](Self::tear_down). Blocks.
    pub(super) fn tear_down_volumes(&self, uid: &str) -> Result<()> {
        tear_down_volumes(&self.checked(uid)?)
    }

    /// The directory of a volume.
    pub(super) fn volume(&self, uid: &str, kind: &str, name: &str) -> PathBuf {
        self.pod(uid).join(VOLUMES).join(kind).join(name)
    }

    /// The marker file of a completed setup.
    pub(super) fn marker(&self, uid: &str, kind: &str, name: &str) -> PathBuf {
        self.pod(uid).join(PLUGINS).join(kind).join(name).join("ready")
    }

    /// The mount point of a sub path.
    pub(super) fn sub_path(&self, uid: &str, volume: &str, container: &str, number: usize) -> PathBuf {
        self.pod(uid).join(SUB_PATHS).join(volume).join(container).join(number.to_string())
    }

    /// Creates the directory of a pod.
    pub(super) fn create_pod(&self, uid: &str) -> Result<()> {
        let path = self.checked(uid)?;
        create(&path.join(VOLUMES))?;
        create(&path.join(PLUGINS))
    }

    /// The directory of a pod, if its UID is a valid file name.
    fn checked(&self, uid: &str) -> Result<PathBuf> {
        if mount_table::is_name(uid) {
            return Ok(self.pod(uid));
        }
        Err(Error::invalid(format!("pod with the UID {uid:?}: invalid UID")))
    }
}

/// Creates a directory and its parents.
pub(super) fn create(path: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(DIR_MODE)
        .create(path)
        .map_err(|error| failed("create directory", path, &error))
}

/// Writes a marker file.
pub(super) fn write_marker(path: &Path, how: &str) -> Result<()> {
    path.parent().map_or(Ok(()), create)?;
    fs::write(path, how).map_err(|error| failed("write", path, &error))
}

fn tear_down(path: &Path) -> Result<()> {
    unmount_all(path)?.map_or(Ok(()), |real| remove(&real))
}

fn tear_down_volumes(path: &Path) -> Result<()> {
    let Some(real) = unmount_all(path)? else { return Ok(()) };
    if !fs::symlink_metadata(&real).is_ok_and(|metadata| metadata.is_dir()) {
        return remove(&real);
    }
    for part in [VOLUMES, PLUGINS, SUB_PATHS] {
        remove(&real.join(part))?;
    }
    // This fails if something else is left in it.
    let _ = fs::remove_dir(&real);
    Ok(())
}

/// Unmounts everything in a pod's directory. Returns its path without symbolic links.
fn unmount_all(path: &Path) -> Result<Option<PathBuf>> {
    // The mount table has no symbolic links, and one in place of the pod's directory must not be followed.
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    let real = match parent.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        real => real.map_err(|error| failed("find", parent, &error))?.join(name),
    };
    mount_table::unmount_below(&real).map_err(|error| failed("unmount volumes below", &real, &error))?;
    Ok(Some(real))
}

fn remove(path: &Path) -> Result<()> {
    vk_files::tree::remove(path)
        .map_err(|error| Error::internal("remove the directory of a pod").caused_by(error))
}

pub(super) fn failed(operation: &str, path: &Path, error: &io::Error) -> Error {
    Error::internal(format!("{operation} {}: {}", path.display(), io_error(error)))
}

pub(super) fn open_flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

#[cfg(test)]
mod tests;
