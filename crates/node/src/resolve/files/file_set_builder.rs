//! Builds file sets and validates every path.

use std::collections::BTreeMap;

use bytes::Bytes;
use vk_provider::{
    Error, Result,
    resolve::{File, FileSet, Origin},
};

/// The kernel's limits.
const MAX_NAME: usize = 255;
const MAX_PATH: usize = 4096;

/// Files by normalised path. A later file replaces an earlier one.
#[derive(Default)]
pub(super) struct FileSetBuilder(BTreeMap<String, File>);

/// A file without a specific owner.
pub(super) fn file(content: impl AsRef<[u8]>, mode: i32, origin: Origin) -> File {
    // Volumes only support permission bits; the API server rejects others.
    let mode = mode.cast_unsigned() & 0o777;
    File { content: Bytes::copy_from_slice(content.as_ref()), mode, owner: None, origin }
}

impl FileSetBuilder {
    /// Adds a file. The error describes the invalid path.
    pub(super) fn add(&mut self, path: &str, file: File) -> Result<(), String> {
        self.0.insert(normalise(path)?, file);
        Ok(())
    }

    pub(super) fn extend(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    /// Returns the set, or an error if a path is both a file and a directory.
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
        Ok(FileSet { files: self.0, expires: None })
    }
}

/// Validates a path and removes `.` and double slashes. Rules and messages are those of the kubelet's atomic writer.
fn normalise(path: &str) -> Result<String, String> {
    if path.is_empty() {
        return Err("invalid path: must not be empty: \"\"".to_owned());
    }
    if path.starts_with('/') {
        return Err(format!("invalid path: must be relative path: {path}"));
    }
    if path.len() > MAX_PATH {
        return Err(format!("invalid path: must be less than or equal to {MAX_PATH} characters"));
    }
    for name in path.split('/') {
        if name == ".." {
            return Err(format!("invalid path: must not contain '..': {path}"));
        }
        if name.len() > MAX_NAME {
            return Err(format!(
                "invalid path: filenames must be less than or equal to {MAX_NAME} characters"
            ));
        }
    }
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
    // These names are reserved for the atomic writer's directories and link.
    if names.first().is_some_and(|name| name.starts_with("..")) {
        return Err(format!("invalid path: must not start with '..': {path}"));
    }
    if names.is_empty() {
        return Err(format!("invalid path: must name a file: {path}"));
    }
    if path.contains('\0') {
        return Err("invalid path: must not contain a NUL byte".to_owned());
    }
    Ok(names.join("/"))
}

#[cfg(test)]
mod tests;
