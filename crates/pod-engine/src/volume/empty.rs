//! Empty directories, on disk and in memory. Blocks.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use vk_provider::{Error, Result};

use super::{place, system};

/// Who may use an empty directory: everybody in the pod.
const OPEN: u32 = 0o777;
/// What is noted where memory was wanted and could not be had.
const ON_DISK: &str = "disk";

/// An empty directory to be made.
#[derive(Clone, Debug)]
pub(super) struct Empty {
    /// Where.
    pub(super) path: PathBuf,
    /// What tells that it was made whole.
    pub(super) mark: PathBuf,
    pub(super) medium: Medium,
    /// The pod's `fsGroup`.
    pub(super) group: Option<u32>,
}

/// What a directory is on.
#[derive(Clone, Debug)]
pub(super) enum Medium {
    Disk,
    /// Memory, up to so many bytes. `needed`: where we may not mount, it cannot be had; else the disk must do.
    Memory {
        size: Option<u64>,
        needed: bool,
    },
    /// Huge pages of this size.
    HugePages(String),
}

impl Empty {
    /// Makes it where it is not there. What a container has put in since is left alone, with whatever modes it gave.
    pub(super) fn make(&self) -> Result<()> {
        let real = self.real()?;
        if self.is_whole(&real) {
            return Ok(());
        }
        directory(&real)?;
        let how = match &self.medium {
            Medium::Disk => Ok(""),
            Medium::HugePages(size) => system::mount_huge_pages(&real, size).map(|()| ""),
            Medium::Memory { size, needed } => match system::mount_memory(&real, *size) {
                Err(error) if !needed && error.kind() == io::ErrorKind::PermissionDenied => {
                    tracing::warn!(
                        path = %real.display(),
                        "files that should be in memory are on disk, because this process may not mount; \
                         give it CAP_SYS_ADMIN"
                    );
                    Ok(ON_DISK)
                }
                mounted => mounted.map(|()| ""),
            },
        };
        let how = how.map_err(|error| self.unmounted(&error))?;
        if let Some(group) = self.group {
            // As a kubelet, we go on where a file system has no groups.
            let given = vk_files::tree::set_fs_group(&real, group, true);
            if !matches!(given, Ok(0)) {
                tracing::warn!(path = %real.display(), group, "a volume could not be given to the pod's fsGroup");
            }
        }
        place::put_mark(&self.mark, how)
    }

    /// Whether it was made by us or by the process before us. Memory does not outlive the machine, though the mark does.
    fn is_whole(&self, real: &Path) -> bool {
        let Ok(how) = fs::read_to_string(&self.mark) else { return false };
        let is_mounted = |file_system: &str| {
            system::at(real).is_ok_and(|it| it.is_some_and(|it| it.file_system == file_system))
        };
        fs::symlink_metadata(real).is_ok_and(|found| found.is_dir())
            && match &self.medium {
                Medium::Disk => true,
                Medium::Memory { needed, .. } => (how == ON_DISK && !needed) || is_mounted("tmpfs"),
                Medium::HugePages(_) => is_mounted("hugetlbfs"),
            }
    }

    /// The path as the table of mounts has it.
    fn real(&self) -> Result<PathBuf> {
        let (Some(parent), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Err(Error::internal(format!("{} is no path of a volume", self.path.display())));
        };
        place::make(parent)?;
        let parent = parent.canonicalize().map_err(|error| place::failed("find", parent, &error))?;
        Ok(parent.join(name))
    }

    fn unmounted(&self, error: &io::Error) -> Error {
        let what = if matches!(self.medium, Medium::HugePages(_)) { "huge pages" } else { "memory" };
        let hint = if error.kind() == io::ErrorKind::PermissionDenied {
            "; a process that mounts needs CAP_SYS_ADMIN"
        } else {
            ""
        };
        Error::internal(format!(
            "mount {what} at {}: {}{hint}",
            self.path.display(),
            vk_provider::go_text::io_error(error)
        ))
    }
}

fn directory(real: &Path) -> Result<()> {
    match fs::create_dir(real) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(|error| place::failed("mkdir", real, &error))?,
    }
    let found = fs::symlink_metadata(real).map_err(|error| place::failed("lstat", real, &error))?;
    if !found.is_dir() {
        return Err(Error::internal(format!("{} is not a directory", real.display())));
    }
    if found.permissions().mode() & 0o777 == OPEN {
        return Ok(());
    }
    // Not by the creation, which the umask cuts.
    fs::set_permissions(real, fs::Permissions::from_mode(OPEN))
        .map_err(|error| place::failed("chmod", real, &error))
}
