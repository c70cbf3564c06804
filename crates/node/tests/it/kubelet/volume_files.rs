//! The files of a volume as a container sees them.

use std::{
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use vk_files::AtomicWriter;
use vk_provider::resolve::FileSet;
use vk_supervisor::Clock;

use super::{
    file_contents::Contents,
    recording::{File, Placeholders, Volume},
};

/// Writes a file set with a group, as a provider does, and reads it back. Only root can change owners; for others the owners
/// are taken from `recorded`, and only files, contents and modes are compared.
pub(super) fn volume(
    set: &FileSet,
    group: Option<u32>,
    recorded: &Volume,
    words: &Placeholders,
) -> Result<Volume, String> {
    let mut ours = Volume::default();
    if is_root() {
        let place = tempfile::tempdir().unwrap();
        let writer = AtomicWriter::open(place.path())
            .and_then(|writer| writer.group(group).write(set, Clock::system().now()));
        writer.map_err(|error| error.to_string())?;
        read_directory(place.path(), "", words, &mut ours);
    } else {
        for (path, file) in &set.files {
            let mode = if group.is_some() { file.mode | 0o440 } else { file.mode };
            let owner = recorded.files.get(path).map(|file| file.owner.clone()).unwrap_or_default();
            let contents = Contents::new(&file.content, words);
            ours.files.insert(path.clone(), File { mode: format!("{mode:o}"), owner, contents });
        }
        ours.links.clone_from(&recorded.links);
    }
    for (path, file) in &recorded.files {
        // A container cannot report the contents of a file that it may not read.
        if file.contents == Contents::Unreadable
            && let Some(ours) = ours.files.get_mut(path)
        {
            ours.contents = Contents::Unreadable;
        }
    }
    Ok(ours)
}

/// Reads everything below a directory of the volume, following links, except names that start with two dots.
fn read_directory(volume: &Path, below: &str, words: &Placeholders, found: &mut Volume) {
    for entry in std::fs::read_dir(volume.join(below)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        let full = volume.join(&path);
        if below.is_empty() && full.is_symlink() {
            let target = std::fs::read_link(&full).unwrap().to_str().unwrap().to_owned();
            let target = if name == "..data" { "..{time}".to_owned() } else { target };
            found.links.insert(name.clone(), target);
        }
        if name.starts_with("..") {
            continue;
        }
        let status = std::fs::metadata(&full).unwrap();
        if status.is_dir() {
            read_directory(volume, &path, words, found);
        } else {
            let mode = format!("{:o}", status.permissions().mode() & 0o7777);
            let owner = format!("{}:{}", status.uid(), status.gid());
            let contents = Contents::new(&std::fs::read(&full).unwrap(), words);
            found.files.insert(path, File { mode, owner, contents });
        }
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|status| status.uid() == 0)
}
