//! Where the directories of pods are.
//!
//! ```text
//! <root>/pods/<uid>/volumes/kubernetes.io~<kind>/<name>                the volumes
//! <root>/pods/<uid>/plugins/kubernetes.io~<kind>/<name>/ready          what is made whole, and is not made again
//! <root>/pods/<uid>/volume-subpaths/<volume>/<container>/<number>      what a container mounts of a volume
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

use super::system;

/// What only we and our group may look into.
const CLOSED: u32 = 0o750;

/// What goes with the end of a pod, and not only when the pod is forgotten.
const VOLUMES: &str = "volumes";
const PLUGINS: &str = "plugins";
const SUB_PATHS: &str = "volume-subpaths";

/// Where the directories of pods are. It knows nothing but the path: everything else is found on the disk, also by the process that
/// comes after this one.
#[derive(Clone, Debug)]
pub struct Place(Arc<Path>);

impl Place {
    /// Below this directory, which is made when it is needed.
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

    /// Writes the pod's `/etc/hosts` and tells where it is. Into the same file each time: containers have it mounted.
    pub fn write_hosts(&self, uid: &str, content: &str) -> Result<PathBuf> {
        let path = self.checked(uid)?.join("etc-hosts");
        self.make_pod(uid)?;
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
                .custom_flags(flags(OFlags::NOFOLLOW))
                .open(&path)?;
            file.write_all(content.as_bytes())?;
            file.set_permissions(fs::Permissions::from_mode(0o644))
        };
        write().map_err(|error| failed("write", &path, &error))?;
        Ok(path)
    }

    /// Makes an empty file for the termination message of one start of a container, which everybody may write, and tells where
    /// it is.
    pub fn message_file(&self, uid: &str, container: &str) -> Result<PathBuf> {
        if !system::is_name(container) {
            return Err(Error::invalid(format!("container {container:?}: this cannot be a name")));
        }
        let directory = self.checked(uid)?.join("containers").join(container);
        self.make_pod(uid)?;
        make(&directory)?;
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

    /// Unmounts what is mounted in a pod's directory, and removes it with everything in it. What was mounted there from elsewhere
    /// stays as it is. For a pod of which nothing runs; may be called again and again, also after a crash in the middle.
    pub async fn tear_down(&self, uid: &str) -> Result<()> {
        let path = self.checked(uid)?;
        let done = tokio::task::spawn_blocking(move || tear_down(&path)).await;
        done.map_err(|error| Error::internal("tear down volumes").caused_by(error))?
    }

    /// The same for the volumes alone: for a pod that has ended, of which people still ask how. What its containers said at their end
    /// stays until [`tear_down`](Self::tear_down).
    pub async fn tear_down_volumes(&self, uid: &str) -> Result<()> {
        let path = self.checked(uid)?;
        let done = tokio::task::spawn_blocking(move || tear_down_volumes(&path)).await;
        done.map_err(|error| Error::internal("tear down volumes").caused_by(error))?
    }

    /// The directory of a volume.
    pub(super) fn volume(&self, uid: &str, kind: &str, name: &str) -> PathBuf {
        self.pod(uid).join(VOLUMES).join(kind).join(name)
    }

    /// What tells that a volume was made whole.
    pub(super) fn mark(&self, uid: &str, kind: &str, name: &str) -> PathBuf {
        self.pod(uid).join(PLUGINS).join(kind).join(name).join("ready")
    }

    /// Where a part of a volume is mounted for a container.
    pub(super) fn sub_path(&self, uid: &str, volume: &str, container: &str, number: usize) -> PathBuf {
        self.pod(uid).join(SUB_PATHS).join(volume).join(container).join(number.to_string())
    }

    /// Makes the directory of a pod, where it is not there, and tells where it is without links.
    pub(super) fn make_pod(&self, uid: &str) -> Result<()> {
        let path = self.checked(uid)?;
        make(&path.join(VOLUMES))?;
        make(&path.join(PLUGINS))
    }

    /// A UID becomes part of a path, which is removed some day.
    fn checked(&self, uid: &str) -> Result<PathBuf> {
        if system::is_name(uid) {
            return Ok(self.pod(uid));
        }
        Err(Error::invalid(format!("pod with the UID {uid:?}: this cannot be a UID")))
    }
}

/// Makes a directory of ours, and those above it.
pub(super) fn make(path: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(CLOSED)
        .create(path)
        .map_err(|error| failed("create directory", path, &error))
}

/// Notes that a volume was made whole, and how.
pub(super) fn put_mark(path: &Path, how: &str) -> Result<()> {
    path.parent().map_or(Ok(()), make)?;
    fs::write(path, how).map_err(|error| failed("write", path, &error))
}

fn tear_down(path: &Path) -> Result<()> {
    unmounted(path)?.map_or(Ok(()), |real| remove(&real))
}

fn tear_down_volumes(path: &Path) -> Result<()> {
    let Some(real) = unmounted(path)? else { return Ok(()) };
    if !fs::symlink_metadata(&real).is_ok_and(|metadata| metadata.is_dir()) {
        return remove(&real);
    }
    for part in [VOLUMES, PLUGINS, SUB_PATHS] {
        remove(&real.join(part))?;
    }
    // Gone now, unless something is in it that stays.
    let _ = fs::remove_dir(&real);
    Ok(())
}

/// Unmounts what is mounted in a pod's directory, and tells where that is without links.
fn unmounted(path: &Path) -> Result<Option<PathBuf>> {
    // The table of mounts knows no links; and one in the place of the pod's own directory is not to be followed.
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    let real = match parent.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        real => real.map_err(|error| failed("find", parent, &error))?.join(name),
    };
    system::unmount_below(&real).map_err(|error| failed("unmount volumes below", &real, &error))?;
    Ok(Some(real))
}

fn remove(path: &Path) -> Result<()> {
    vk_files::tree::remove(path)
        .map_err(|error| Error::internal("remove the directory of a pod").caused_by(error))
}

pub(super) fn failed(operation: &str, path: &Path, error: &io::Error) -> Error {
    Error::internal(format!("{operation} {}: {}", path.display(), vk_provider::go_text::io_error(error)))
}

pub(super) fn flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

#[cfg(test)]
mod tests;
