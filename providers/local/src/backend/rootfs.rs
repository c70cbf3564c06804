//! Mounts: root filesystems of containers, and the `/dev/shm` of a pod.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
        fsconfig_set_string, fsmount, fsopen, mount, move_mount, unmount,
    },
};

/// The size that containerd gives to the `/dev/shm` of a pod.
const SHARED_MEMORY: &str = "mode=1777,size=65536k";

/// Mounts an overlay of the layers (lowest first) with `upper_and_work` as its upper and work directory; read-only without
/// them.
pub(super) fn overlay(
    layers: &[PathBuf],
    upper_and_work: Option<(&Path, &Path)>,
    target: &Path,
    no_devices: bool,
) -> io::Result<()> {
    match overlay_by_fsconfig(layers, upper_and_work, target, no_devices) {
        // Kernels before 6.5 do not know `lowerdir+`.
        Err(Errno::INVAL | Errno::NOSYS) => overlay_by_mount(layers, upper_and_work, target, no_devices),
        outcome => outcome.map_err(io::Error::from),
    }
}

fn overlay_by_fsconfig(
    layers: &[PathBuf],
    upper_and_work: Option<(&Path, &Path)>,
    target: &Path,
    no_devices: bool,
) -> rustix::io::Result<()> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "source", "overlay")?;
    // The uppermost layer comes first.
    for layer in layers.iter().rev() {
        fsconfig_set_string(context.as_fd(), "lowerdir+", layer.as_path())?;
    }
    if let Some((upper, work)) = upper_and_work {
        fsconfig_set_string(context.as_fd(), "upperdir", upper)?;
        fsconfig_set_string(context.as_fd(), "workdir", work)?;
    }
    fsconfig_create(context.as_fd())?;
    let attributes = if no_devices { MountAttrFlags::MOUNT_ATTR_NODEV } else { MountAttrFlags::empty() };
    let mounted = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    move_mount(mounted.as_fd(), "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

fn overlay_by_mount(
    layers: &[PathBuf],
    upper_and_work: Option<(&Path, &Path)>,
    target: &Path,
    no_devices: bool,
) -> io::Result<()> {
    // By file descriptors: mount options are limited to one page, and the paths are long.
    let open = |path: &Path| {
        rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    };
    let handles = layers.iter().rev().map(|layer| open(layer)).collect::<Result<Vec<OwnedFd>, _>>()?;
    let names = handles.iter().map(|handle| format!("/proc/self/fd/{}", handle.as_raw_fd()));
    let mut options = format!("lowerdir={}", names.collect::<Vec<_>>().join(":"));
    if let Some((upper, work)) = upper_and_work {
        options = format!("{options},upperdir={},workdir={}", upper.display(), work.display());
    }
    let flags = if no_devices { MountFlags::NODEV } else { MountFlags::empty() };
    let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
    mount("overlay", target, "overlay", flags, options.as_c_str()).map_err(io::Error::from)
}

/// Mounts the `/dev/shm` that the containers of a pod share.
pub(super) fn mount_shm(target: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let options = std::ffi::CString::new(SHARED_MEMORY).map_err(io::Error::other)?;
    mount("shm", target, "tmpfs", flags, options.as_c_str()).map_err(io::Error::from)
}

/// Unmounts everything at or below a path, lazily.
pub(super) fn unmount_below(directory: &Path) -> io::Result<()> {
    // Newest first, because mounts may be stacked.
    for target in mounts_below(directory)?.iter().rev() {
        match unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(error) => {
                let error = io::Error::from(error);
                return Err(io::Error::new(error.kind(), format!("unmount {}: {error}", target.display())));
            }
        }
    }
    Ok(())
}

/// Mount points at or below a path, in mount order.
pub(super) fn mounts_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let directory = fs::canonicalize(directory).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(directory.to_owned()),
        _ => Err(error),
    })?;
    let table = fs::read("/proc/self/mountinfo")?;
    let targets = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let field = line.split(|byte| *byte == b' ').nth(4)?;
        Some(PathBuf::from(std::ffi::OsString::from_vec(unescape(field))))
    });
    Ok(targets.filter(|target| target.starts_with(&directory)).collect())
}

/// Decodes the octal escapes of mountinfo, such as `\040` for a space.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                plain.push(byte);
                rest = &after[3..];
            }
            _ => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_in_mount_points_are_decoded() {
        assert_eq!(unescape(b"/a\\040b\\134c"), b"/a b\\c");
        assert_eq!(unescape(b"/plain\\"), b"/plain\\");
    }

    #[test]
    fn only_mounts_at_or_below_the_path_are_found() {
        assert!(mounts_below(Path::new("/proc")).unwrap().iter().any(|path| path == Path::new("/proc")));
        assert!(mounts_below(Path::new("/nowhere")).unwrap().is_empty());
    }
}
