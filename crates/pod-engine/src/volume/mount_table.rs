//! The kernel's mount table, and mounting and unmounting.

use std::{
    ffi::{CString, OsString},
    fs, io,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    mount::{MountFlags, UnmountFlags},
};

/// All mounts, in the order of the kernel: a mount over another one comes after it.
pub(super) fn mounts() -> io::Result<Vec<MountEntry>> {
    fs::read("/proc/self/mountinfo").map(|table| parse(&table))
}

/// An entry of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountEntry {
    pub(super) point: PathBuf,
    pub(super) file_system: String,
}

fn parse(table: &[u8]) -> Vec<MountEntry> {
    let lines = table.split(|byte| *byte == b'\n');
    lines
        .filter_map(|line| {
            let mut words = line.split(|byte| *byte == b' ');
            let point = plain(words.nth(4)?);
            // Optional fields come before the dash.
            let file_system = words.skip_while(|word| *word != b"-").nth(1)?;
            Some(MountEntry { point, file_system: String::from_utf8_lossy(file_system).into_owned() })
        })
        .collect()
}

/// Decodes escapes such as `\040`.
fn plain(escaped: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some((first, behind)) = rest.split_first() {
        let code = behind.get(..3).filter(|_| *first == b'\\').and_then(|digits| {
            let digits = str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &behind[3..] } else { behind };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// The topmost mount at a path. The path must not contain symbolic links.
pub(super) fn at(path: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rfind(|mounted| mounted.point == path))
}

/// Unmounts everything at and below a path, innermost first. The path must not contain symbolic links.
pub fn unmount_below(path: &Path) -> io::Result<()> {
    // Mounts below the unmounted ones may appear, so the table is read again.
    for _ in 0..16 {
        let mut below: Vec<MountEntry> =
            mounts()?.into_iter().filter(|mounted| mounted.point.starts_with(path)).collect();
        if below.is_empty() {
            return Ok(());
        }
        below.reverse();
        below.sort_by_key(|mounted| std::cmp::Reverse(mounted.point.components().count()));
        for mounted in below {
            unmount(&mounted.point)?;
        }
    }
    Err(io::Error::other(format!("mounts keep appearing below {}", path.display())))
}

/// Unmounts a path. A busy mount is detached: it disappears when it is no longer used.
pub(super) fn unmount(point: &Path) -> io::Result<()> {
    let answer = match rustix::mount::unmount(point, UnmountFlags::NOFOLLOW) {
        Err(Errno::BUSY) => rustix::mount::unmount(point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH),
        answer => answer,
    };
    match answer {
        // Not a mount point, or it does not exist.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Mounts a tmpfs unless one is mounted already. `size` is in bytes; the default is half of the memory.
pub(super) fn mount_memory(path: &Path, size: Option<u64>) -> io::Result<()> {
    if at(path)?.is_some_and(|mounted| mounted.file_system == "tmpfs") {
        return Ok(());
    }
    let size = size.map(|size| format!("size={size}"));
    // Without swap, because it may contain secrets. Older kernels do not support that.
    let kept = size.iter().map(String::as_str).chain(["noswap"]).collect::<Vec<_>>().join(",");
    match mount("tmpfs", path, &kept) {
        Err(Errno::INVAL) => Ok(mount("tmpfs", path, size.as_deref().unwrap_or_default())?),
        answer => Ok(answer?),
    }
}

/// Mounts huge pages of this size unless they are mounted already.
pub(super) fn mount_huge_pages(path: &Path, page_size: &str) -> io::Result<()> {
    if at(path)?.is_some_and(|mounted| mounted.file_system == "hugetlbfs") {
        return Ok(());
    }
    Ok(mount("hugetlbfs", path, &format!("pagesize={page_size}"))?)
}

fn mount(file_system: &str, path: &Path, options: &str) -> Result<(), Errno> {
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(file_system, path, file_system, MountFlags::empty(), options.as_c_str())
}

/// Whether a name is a valid file name.
pub(super) fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    !matches!(bytes, b"" | b"." | b"..")
        && !bytes.iter().any(|byte| matches!(byte, b'/' | b'\0'))
        && std::ffi::OsStr::from_bytes(bytes).len() <= 255
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_mounts_is_read_with_blanks_and_optional_fields() {
        let table = b"36 35 98:0 /mnt1 /mnt/with\\040blank rw,noatime master:1 - ext3 /dev/root rw\n\
            37 36 0:24 / /run/a\\134b rw - tmpfs tmpfs rw,size=1k\n\
            38 36 0:25 / /plain rw shared:2 master:3 unbindable - hugetlbfs nodev rw\n\nrubbish\n";
        let found: Vec<(String, String)> = parse(table)
            .into_iter()
            .map(|mounted| (mounted.point.to_str().expect("text").to_owned(), mounted.file_system))
            .collect();
        let wanted = [("/mnt/with blank", "ext3"), ("/run/a\\b", "tmpfs"), ("/plain", "hugetlbfs")];
        assert_eq!(found, wanted.map(|(point, kind)| (point.to_owned(), kind.to_owned())));
    }

    #[test]
    fn the_machines_own_mounts_are_found() {
        assert!(mounts().expect("a table").iter().any(|mounted| mounted.point == Path::new("/proc")));
        assert_eq!(at(Path::new("/nowhere")).expect("a table"), None);
        unmount_below(Path::new("/nowhere")).expect("nothing to do");
    }

    #[test]
    fn names_stay_where_they_are() {
        for name in ["", ".", "..", "a/b", "/", "a\0", &"x".repeat(256)] {
            assert!(!is_name(name), "{name:?}");
        }
        for name in ["a", "...", "a.b-c_d", "0b6c1b7a-5a7e-4c58-8d8f-1c3a3b0d9a10"] {
            assert!(is_name(name), "{name:?}");
        }
    }
}
