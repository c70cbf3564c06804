//! Files of containers in memory, for `kubectl cp`.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use vk_provider::ContainerRef;

/// The maximum size of the files of one container.
const DISK: usize = 512 << 20;
/// Directories of every container.
const FOLDERS: [&str; 4] = ["/", "/tmp", "/root", "/var/tmp"];

/// The files of all containers, by pod and container.
#[derive(Debug, Default)]
pub(crate) struct ContainerDisks(Mutex<HashMap<Arc<str>, HashMap<String, ContainerFiles>>>);

/// The files of one container. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct ContainerFiles(Arc<Mutex<BTreeMap<String, Bytes>>>);

/// The disk is full.
#[derive(Debug)]
pub(super) struct DiskFull;

// === impl ContainerDisks ===

impl ContainerDisks {
    pub(super) fn of(&self, container: &ContainerRef) -> ContainerFiles {
        let mut disks = self.0.lock();
        let of_pod = disks.entry(Arc::clone(&container.pod.uid)).or_default();
        of_pod.entry(container.container.clone()).or_default().clone()
    }

    /// Removes the files of a pod.
    pub(crate) fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

// === impl ContainerFiles ===

impl ContainerFiles {
    pub(super) fn read(&self, path: &str) -> Option<Bytes> {
        self.0.lock().get(&clean(path)).cloned()
    }

    pub(super) fn write(&self, path: &str, content: Bytes) -> Result<(), DiskFull> {
        let (mut files, path) = (self.0.lock(), clean(path));
        let others: usize = files.iter().filter(|(name, _)| **name != path).map(|(_, file)| file.len()).sum();
        if others + content.len() > DISK {
            return Err(DiskFull);
        }
        files.insert(path, content);
        Ok(())
    }

    pub(super) fn is_folder(&self, path: &str) -> bool {
        let path = clean(path);
        FOLDERS.contains(&path.as_str()) || !self.below(&path).is_empty()
    }

    /// The files in a directory and its subdirectories.
    pub(super) fn below(&self, path: &str) -> Vec<(String, Bytes)> {
        let folder = format!("{}/", clean(path).trim_end_matches('/'));
        let files = self.0.lock();
        files
            .iter()
            .filter(|(name, _)| name.starts_with(&folder))
            .map(|(name, file)| (name.clone(), file.clone()))
            .collect()
    }
}

/// Normalises a path. Relative paths start at the root directory.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_absolute_and_stay_inside() {
        for (path, expected) in
            [("a", "/a"), ("/a/./b/", "/a/b"), ("/../../x", "/x"), ("/a/../b", "/b"), ("", "/"), ("/", "/")]
        {
            assert_eq!(clean(path), expected, "{path}");
        }
    }

    #[test]
    fn the_size_is_limited_and_a_rewritten_file_counts_once() {
        let files = ContainerFiles::default();
        let half = Bytes::from(vec![0; DISK / 2 + 1]);
        files.write("/a", half.clone()).unwrap();
        files.write("/a", half.clone()).unwrap();
        assert!(files.write("/b", half).is_err());
        assert!(files.is_folder("/") && !files.is_folder("/a"));
    }
}
