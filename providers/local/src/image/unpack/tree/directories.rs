//! The directories of a layer that is being unpacked, of which something is left to do at its end.

use std::collections::{BTreeMap, BTreeSet};

use crate::image::{Error, Result};

/// What an entry costs in addition to its path.
const ENTRY_BYTES: usize = 64;

/// The directories of a layer. An archive decides how many there are and how long their paths, so their memory is
/// limited.
pub(super) struct Directories {
    /// Directories that have had no entry yet.
    implied: BTreeSet<Vec<u8>>,
    /// Modification times, to be set at the end.
    times: BTreeMap<Vec<u8>, (i64, u32)>,
    bytes: usize,
    max_bytes: usize,
}

impl Directories {
    /// The root, which has had no entry yet.
    pub(super) fn new(max_bytes: usize) -> Result<Self> {
        let mut directories = Self { implied: BTreeSet::new(), times: BTreeMap::new(), bytes: 0, max_bytes };
        directories.add_implied(b"")?;
        Ok(directories)
    }

    /// A directory was created because something is in it.
    pub(super) fn add_implied(&mut self, path: &[u8]) -> Result<()> {
        if self.implied.insert(path.to_vec()) {
            self.add_bytes(path)?;
        }
        Ok(())
    }

    /// A directory has an entry.
    pub(super) fn add_entry(&mut self, path: Vec<u8>, mtime: (i64, u32)) -> Result<()> {
        if self.implied.remove(&path) {
            self.bytes -= path.len() + ENTRY_BYTES;
        }
        if !self.times.contains_key(&path) {
            self.add_bytes(&path)?;
        }
        self.times.insert(path, mtime);
        Ok(())
    }

    /// The modification times, parents first.
    pub(super) fn times(&self) -> impl Iterator<Item = (&Vec<u8>, &(i64, u32))> {
        self.times.iter()
    }

    /// The directories without an entry, parents first.
    pub(super) fn into_implied(self) -> Vec<Vec<u8>> {
        self.implied.into_iter().collect()
    }

    fn add_bytes(&mut self, path: &[u8]) -> Result<()> {
        self.bytes += path.len() + ENTRY_BYTES;
        if self.bytes <= self.max_bytes {
            return Ok(());
        }
        Err(Error::corrupt(format!(
            "the paths of the layer's directories need more than the maximum of {} bytes of memory",
            self.max_bytes
        )))
    }
}
