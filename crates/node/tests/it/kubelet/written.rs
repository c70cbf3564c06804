//! A file set as a container sees it, once it is written.

use std::{
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use vk_files::AtomicWriter;
use vk_provider::resolve::FileSet;
use vk_supervisor::Clock;

use super::{
    contents::Contents,
    recording::{File, Volume, Words},
};

/// Writes a set for a group, as a provider on a file system does, and looks at what is there. Only root can give files away:
/// for others what it would have become is `recorded`'s word, and only files, their contents and modes are ours.
pub(super) fn volume(
    set: &FileSet,
    group: Option<u32>,
    recorded: &Volume,
    words: &Words,
) -> Result<Volume, String> {
    let mut ours = Volume::default();
    if is_root() {
        let place = tempfile::tempdir().unwrap();
        let writer = AtomicWriter::open(place.path())
            .and_then(|writer| writer.group(group).write(set, Clock::system().now()));
        writer.map_err(|error| error.to_string())?;
        look(place.path(), "", words, &mut ours);
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
        // A container that may not read a file could not tell what is in it.
        if file.contents == Contents::Unreadable
            && let Some(ours) = ours.files.get_mut(path)
        {
            ours.contents = Contents::Unreadable;
        }
    }
    Ok(ours)
}

/// Everything below a folder of the volume, through links, but for what is behind names with two dots.
fn look(volume: &Path, below: &str, words: &Words, found: &mut Volume) {
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
            look(volume, &path, words, found);
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
