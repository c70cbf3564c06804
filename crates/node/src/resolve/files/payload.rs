//! Files on their way into a set: the only door, and it looks at every path.

use std::collections::BTreeMap;

use bytes::Bytes;
use vk_provider::{
    Error, Result,
    resolve::{File, FileSet},
};

/// The kernel's limits.
const LONGEST_NAME: usize = 255;
const LONGEST_PATH: usize = 4096;

/// Files by clean path. A later one takes the place of an earlier one.
#[derive(Default)]
pub(super) struct Payload(BTreeMap<String, File>);

/// A file that belongs to nobody in particular.
pub(super) fn file(content: impl AsRef<[u8]>, mode: i32) -> File {
    // More than the permissions no volume can give; the API server refuses it.
    let mode = mode.cast_unsigned() & 0o777;
    File { content: Bytes::copy_from_slice(content.as_ref()), mode, owner: None }
}

impl Payload {
    /// Adds a file; the error says what is wrong with its path.
    pub(super) fn add(&mut self, path: &str, file: File) -> Result<(), String> {
        self.0.insert(clean(path)?, file);
        Ok(())
    }

    pub(super) fn extend(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    /// All files as a set, in which nothing is a file and a directory at once.
    pub(super) fn finish(self) -> Result<FileSet> {
        for path in self.0.keys() {
            let above = path.match_indices('/').map(|(end, _)| &path[..end]);
            for above in above {
                if self.0.contains_key(above) {
                    let why =
                        format!("invalid path: {above} cannot be both a file and the directory of {path}");
                    return Err(Error::invalid(why));
                }
            }
        }
        Ok(FileSet { files: self.0 })
    }
}

/// The path without `.` and doubled slashes. The rules, and their words, are those of the kubelet's writer.
fn clean(path: &str) -> Result<String, String> {
    if path.is_empty() {
        return Err("invalid path: must not be empty: \"\"".to_owned());
    }
    if path.starts_with('/') {
        return Err(format!("invalid path: must be relative path: {path}"));
    }
    if path.len() > LONGEST_PATH {
        return Err(format!("invalid path: must be less than or equal to {LONGEST_PATH} characters"));
    }
    for name in path.split('/') {
        if name == ".." {
            return Err(format!("invalid path: must not contain '..': {path}"));
        }
        if name.len() > LONGEST_NAME {
            return Err(format!(
                "invalid path: filenames must be less than or equal to {LONGEST_NAME} characters"
            ));
        }
    }
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
    // These names are the writer's own: the directories and the link that it swaps.
    if names.first().is_some_and(|name| name.starts_with("..")) {
        return Err(format!("invalid path: must not start with '..': {path}"));
    }
    if names.is_empty() {
        return Err(format!("invalid path: must name a file: {path}"));
    }
    if path.contains('\0') {
        return Err("invalid path: must not contain a zero byte".to_owned());
    }
    Ok(names.join("/"))
}

#[cfg(test)]
mod tests;
