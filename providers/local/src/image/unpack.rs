//! Unpacks layers into directories, treating archives as untrusted input.
//!
//! Nothing outside of the layer's directory is ever touched. Every path is resolved name by name from open directories
//! (`tree`). Names with `..`, links that leave the root, device nodes and everything beyond the [`Limits`] are errors.
//! A leading `/` means the layer's root, as in containerd, and so does an absolute link within a path.

mod stream;
mod tape;
mod tree;

use std::{cell::Cell, io::BufReader, io::Read, path::Path};

use serde::{Deserialize, Serialize};

use self::{stream::Measured, tree::Tree};
pub(crate) use self::{
    stream::{CHUNK, decoded, sane},
    tape::{Kind as EntryKind, Tape},
    tree::{OPAQUE, OPAQUE_MARK, WHITEOUT, adopt, is_whiteout, remove_at},
};
use super::{Digest, Error, Result};

/// Size limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a layer, unpacked.
    pub layer_bytes: u64,
    /// Entries of a layer.
    pub layer_entries: u64,
    /// Maximum compression ratio of a layer...
    pub ratio: u64,
    /// ...that is larger than this.
    pub ratio_from: u64,
    /// Layers of an image. The kernel mounts at most 500.
    pub layers: usize,
    /// Bytes of a manifest, an index or a config.
    pub document_bytes: u64,
    /// Bytes of an archive to import, decompressed.
    pub archive_bytes: u64,
}

/// How layers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// In overlayfs format, with owners. Needs root.
    Overlay,
    /// As plain files of this user, with whiteouts as in the archive.
    Plain,
}

/// What a layer must match; `None` is not checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected {
    /// The digest of its compressed form.
    pub digest: Option<Digest>,
    /// The size of its compressed form.
    pub size: Option<u64>,
    /// The digest of its content.
    pub diff: Option<Digest>,
}

/// An unpacked layer.
#[derive(Clone, Debug)]
pub struct Unpacked {
    /// The digest of its content.
    pub diff: Digest,
    /// The digest of its compressed form.
    pub digest: Digest,
    /// Bytes read.
    pub read: u64,
    /// Its disk usage.
    pub usage: Usage,
    /// Directories without an entry: their attributes come from the layers below.
    pub(crate) implied: Vec<Vec<u8>>,
}

/// Disk usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes.
    pub bytes: u64,
    /// Files, directories and everything else.
    pub inodes: u64,
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        const GIB: u64 = 1024 * 1024 * 1024;
        Self {
            layer_bytes: 64 * GIB,
            layer_entries: 4_000_000,
            ratio: 200,
            ratio_from: GIB,
            layers: 500,
            document_bytes: 4 * 1024 * 1024,
            archive_bytes: 256 * GIB,
        }
    }
}

/// Unpacks a layer into an empty directory and verifies it, in one pass. Blocks.
///
/// After an error the directory contains a part of the layer; the caller must remove it.
pub fn layer<R: Read>(
    source: R,
    into: &Path,
    form: Form,
    expected: &Expected,
    limits: &Limits,
) -> Result<Unpacked> {
    let (compressed, content) = (Cell::new(0), Cell::new(0));
    let most = expected.size.unwrap_or(u64::MAX);
    let mut source = Measured::new(source, &compressed, |read| {
        if read > most {
            return Err(Error::corrupt(format!("the layer is larger than the {most} bytes in the manifest")));
        }
        Ok(())
    });
    let mut tree = Tree::open(into, form)?;
    let decoder = decoded(&mut source).map_err(|error| Error::io("read", error))?;
    let decoder = Measured::new(decoder, &content, |bytes| sane(bytes, compressed.get(), limits));
    let mut tape = Tape::new(BufReader::with_capacity(CHUNK, decoder), limits.layer_entries);
    while let Some(entry) = tape.next()? {
        tree.apply(&entry, &mut tape)?;
    }
    let diff = tape.into_inner().into_inner().finish().map_err(|error| Error::io("read", error))?;
    let digest = source.finish().map_err(|error| Error::io("read", error))?;
    let same = |what: &str, said: Option<Digest>, is: Digest| match said {
        Some(said) if said != is => Err(Error::corrupt(format!("{what} is {is}, but should be {said}"))),
        _ => Ok(()),
    };
    if expected.size.is_some_and(|size| size != compressed.get()) {
        let read = compressed.get();
        return Err(Error::corrupt(format!("the layer has {read} bytes, but {most} in the manifest")));
    }
    same("the digest of the layer", expected.digest, digest)?;
    same("the diff id of the layer's content", expected.diff, diff)?;
    let (usage, implied) = tree.finish()?;
    Ok(Unpacked { diff, digest, read: compressed.get(), usage, implied })
}

#[cfg(test)]
mod tests;
