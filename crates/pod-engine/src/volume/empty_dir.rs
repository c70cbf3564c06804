//! Empty directories, on disk and in memory. Blocks.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use vk_provider::{Error, Result};

use super::{mount_table, pod_dirs};
use crate::text::io_error;

/// Mode of an empty directory: every container of the pod may use it.
const OPEN: u32 = 0o777;
/// Content of the marker if memory was not available.
const ON_DISK: &str = "disk";

/// An empty directory to create.
#[derive(Clone, Debug)]
pub(super) struct EmptyDir {
    /// Its path.
    pub(super) path: PathBuf,
    /// The marker file of a completed setup.
    pub(super) marker: PathBuf,
    pub(super) medium: Medium,
    /// The pod's `fsGroup`.
    pub(super) group: Option<u32>,
}

/// The medium of a directory.
#[derive(Clone, Debug)]
pub(super) enum Medium {
    Disk,
    /// Memory with this size limit. Unless it is `required`, the disk is used if this process may not mount.
    Memory {
        size: Option<u64>,
        required: bool,
    },
    /// Huge pages of this size.
    HugePages(String),
}

impl EmptyDir {
    /// Creates it if it does not exist. Existing content and modes are not changed.
    pub(super) fn create(&self) -> Result<()> {
        let real = self.real()?;
        if self.is_complete(&real) {
            return Ok(());
        }
        directory(&real)?;
        let how = match &self.medium {
            Medium::Disk => Ok(""),
            Medium::HugePages(size) => mount_table::mount_huge_pages(&real, size).map(|()| ""),
            Medium::Memory { size, required } => match mount_table::mount_memory(&real, *size) {
                Err(error) if !required && error.kind() == io::ErrorKind::PermissionDenied => {
                    tracing::warn!(
                        path = %real.display(),
                        "secret files are on disk instead of in memory because this process may not mount; \
                         give it CAP_SYS_ADMIN"
                    );
                    Ok(ON_DISK)
                }
                mounted => mounted.map(|()| ""),
            },
        };
        let how = how.map_err(|error| self.unmounted(&error))?;
        if let Some(group) = self.group {
            // As in a kubelet, a file system without groups is not an error.
            let given = vk_files::tree::set_fs_group(&real, group, true);
            if !matches!(given, Ok(0)) {
                tracing::warn!(path = %real.display(), group, "cannot change the group of a volume to the pod's fsGroup");
            }
        }
        pod_dirs::write_marker(&self.marker, how)
    }

    /// Whether it was set up by this or an earlier process. A memory mount does not survive a reboot, but the marker does.
    fn is_complete(&self, real: &Path) -> bool {
        let Ok(how) = fs::read_to_string(&self.marker) else { return false };
        let is_mounted = |file_system: &str| {
            mount_table::at(real).is_ok_and(|it| it.is_some_and(|it| it.file_system == file_system))
        };
        fs::symlink_metadata(real).is_ok_and(|found| found.is_dir())
            && match &self.medium {
                Medium::Disk => true,
                Medium::Memory { required, .. } => (how == ON_DISK && !required) || is_mounted("tmpfs"),
                Medium::HugePages(_) => is_mounted("hugetlbfs"),
            }
    }

    /// The path without symbolic links, as in the mount table.
    fn real(&self) -> Result<PathBuf> {
        let (Some(parent), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Err(Error::internal(format!("{} is not a path of a volume", self.path.display())));
        };
        pod_dirs::create(parent)?;
        let parent = parent.canonicalize().map_err(|error| pod_dirs::failed("find", parent, &error))?;
        Ok(parent.join(name))
    }

    fn unmounted(&self, error: &io::Error) -> Error {
        let what = if matches!(self.medium, Medium::HugePages(_)) { "huge pages" } else { "memory" };
        let hint = if error.kind() == io::ErrorKind::PermissionDenied {
            "; a process needs CAP_SYS_ADMIN to mount"
        } else {
            ""
        };
        Error::internal(format!("mount {what} at {}: {}{hint}", self.path.display(), io_error(error)))
    }
}

fn directory(real: &Path) -> Result<()> {
    match fs::create_dir(real) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(|error| pod_dirs::failed("mkdir", real, &error))?,
    }
    let found = fs::symlink_metadata(real).map_err(|error| pod_dirs::failed("lstat", real, &error))?;
    if !found.is_dir() {
        return Err(Error::internal(format!("{} is not a directory", real.display())));
    }
    if found.permissions().mode() & 0o777 == OPEN {
        return Ok(());
    }
    // Not at creation, where the umask applies.
    fs::set_permissions(real, fs::Permissions::from_mode(OPEN))
        .map_err(|error| pod_dirs::failed("chmod", real, &error))
}
