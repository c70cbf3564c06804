//! Unpacks layers into directories, treating archives as untrusted input.
//!
//! Nothing outside of the layer's directory is ever touched. Every path is resolved name by name from open directories
//! (`tree`). Names with `..`, links that leave the root, device nodes and everything beyond the [`ImageLimits`] are errors.
//! A leading `/` means the layer's root, as in containerd, and so does an absolute link within a path.

mod decompress;
mod tar_reader;
mod tree;

use std::{cell::Cell, io::BufReader, io::Read, path::Path};

use serde::{Deserialize, Serialize};

use self::{decompress::HashingReader, tree::LayerTree};
pub(crate) use self::{
    decompress::{CHUNK, check_limits, decompress},
    tar_reader::{EntryKind, TarReader},
    tree::{OPAQUE, OPAQUE_MARKER, WHITEOUT, inherit_attributes, is_whiteout, remove_at},
};
use super::{Digest, Error, Result};

/// Size limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Bytes of a layer, unpacked.
    pub layer_bytes: u64,
    /// Entries of a layer.
    pub layer_entries: u64,
    /// Bytes of memory for the paths of a layer's directories while it is unpacked.
    pub directory_bytes: usize,
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
pub enum LayerFormat {
    /// In overlayfs format, with owners. Needs root.
    Overlay,
    /// As plain files of this user, with whiteouts as in the archive.
    Plain,
}

/// What a layer must match; `None` is not checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpectedLayer {
    /// The digest of its compressed form.
    pub digest: Option<Digest>,
    /// The size of its compressed form.
    pub size: Option<u64>,
    /// The digest of its content.
    pub diff: Option<Digest>,
}

/// An unpacked layer.
#[derive(Clone, Debug)]
pub struct UnpackedLayer {
    /// The digest of its content.
    pub diff: Digest,
    /// The digest of its compressed form.
    pub digest: Digest,
    /// Bytes read.
    pub read: u64,
    /// Its disk usage.
    pub usage: DiskUsage,
    /// Directories without an entry, parents first: their attributes come from the layers below.
    pub(crate) implied: Vec<Vec<u8>>,
}

/// Disk usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUsage {
    /// Bytes.
    pub bytes: u64,
    /// Files, directories and everything else.
    pub inodes: u64,
}

// === impl ImageLimits ===

impl Default for ImageLimits {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        const GIB: u64 = 1024 * MIB;
        Self {
            layer_bytes: 64 * GIB,
            layer_entries: 4_000_000,
            directory_bytes: 64 * 1024 * 1024,
            ratio: 200,
            ratio_from: MIB,
            layers: 500,
            document_bytes: 4 * MIB,
            archive_bytes: 256 * GIB,
        }
    }
}

/// Unpacks a layer into an empty directory and verifies it, in one pass. Blocks.
///
/// After an error the directory contains a part of the layer; the caller must remove it.
pub fn unpack_layer<R: Read>(
    source: R,
    into: &Path,
    layer_format: LayerFormat,
    expected: &ExpectedLayer,
    limits: &ImageLimits,
) -> Result<UnpackedLayer> {
    let (compressed, content) = (Cell::new(0), Cell::new(0));
    let most = expected.size.unwrap_or(u64::MAX);
    let mut source = HashingReader::new(source, &compressed, |read| {
        if read > most {
            return Err(Error::corrupt(format!("the layer is larger than the {most} bytes in the manifest")));
        }
        Ok(())
    });
    let mut tree = LayerTree::open(into, layer_format, limits)?;
    let decoder = decompress(&mut source).map_err(|error| Error::io("read", error))?;
    let decoder =
        HashingReader::new(decoder, &content, |bytes| check_limits(bytes, compressed.get(), limits));
    let mut tar = TarReader::new(BufReader::with_capacity(CHUNK, decoder), limits.layer_entries);
    while let Some(entry) = tar.next()? {
        tree.apply(&entry, &mut tar)?;
    }
    let diff = tar.into_inner().into_inner().finish().map_err(|error| Error::io("read", error))?;
    let digest = source.finish().map_err(|error| Error::io("read", error))?;
    let same = |what: &str, expected: Option<Digest>, is: Digest| match expected {
        Some(expected) if expected != is => {
            Err(Error::corrupt(format!("{what} is {is}, but should be {expected}")))
        }
        _ => Ok(()),
    };
    if expected.size.is_some_and(|size| size != compressed.get()) {
        let read = compressed.get();
        return Err(Error::corrupt(format!("the layer has {read} bytes, but {most} in the manifest")));
    }
    same("the digest of the layer", expected.digest, digest)?;
    same("the diff id of the layer's content", expected.diff, diff)?;
    let (usage, implied) = tree.finish()?;
    Ok(UnpackedLayer { diff, digest, read: compressed.get(), usage, implied })
}

#[cfg(test)]
mod tests;
