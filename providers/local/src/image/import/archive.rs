//! Extracts the files of an archive: the file that describes them may come last.

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufReader, Read, Write as _},
    path::{Path, PathBuf},
};

use super::super::unpack::{CHUNK, EntryKind, ImageLimits, TarReader, check_limits, decompress};
use crate::image::{Digest, Error, Result};

/// Maximum number of files; the largest images have a few hundred.
const MAX_FILES: u64 = 100_000;
/// Maximum number of links to follow.
const MAX_LINKS: usize = 8;

/// The extracted files of an archive, by name.
pub(super) struct ArchiveFiles {
    files: BTreeMap<String, ArchiveFile>,
    /// Old versions of docker write a layer once and link to it.
    links: BTreeMap<String, String>,
    most: u64,
}

/// An extracted file.
#[derive(Clone, Debug)]
pub(super) struct ArchiveFile {
    path: PathBuf,
    pub(super) size: u64,
}

/// Counts the bytes read, and checks them against a limit.
struct CountingReader<'a, R> {
    inner: R,
    count: &'a Cell<u64>,
    limit: Box<dyn Fn(u64) -> Result<()> + 'a>,
}

impl<R: Read> Read for CountingReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.count.set(self.count.get() + count as u64);
        (self.limit)(self.count.get())?;
        Ok(count)
    }
}

// === impl ArchiveFiles ===

impl ArchiveFiles {
    /// Reads an archive to its end.
    pub(super) fn read(archive: impl Read, directory: &Path, limits: &ImageLimits) -> Result<Self> {
        let (read, content) = (Cell::new(0), Cell::new(0));
        let source = CountingReader { inner: archive, count: &read, limit: Box::new(|_| Ok(())) };
        let decoder = decompress(source).map_err(|error| Error::io("read archive", error))?;
        let bounds = ImageLimits { layer_bytes: limits.archive_bytes, ..limits.clone() };
        let limit = Box::new(|bytes| {
            check_limits(bytes, read.get(), &bounds).map_err(|error| error.within("archive"))
        });
        let decoder = CountingReader { inner: decoder, count: &content, limit };
        let mut tar = TarReader::new(BufReader::with_capacity(CHUNK, decoder), MAX_FILES);
        let mut archive_files =
            Self { files: BTreeMap::new(), links: BTreeMap::new(), most: limits.document_bytes };
        while let Some(entry) = tar.next().map_err(|error| error.within("read archive"))? {
            let name = normalize_name(&entry.path)?;
            match entry.kind {
                EntryKind::File => {
                    // Numbered: names of the archive are never used as file names.
                    let path = directory.join(archive_files.files.len().to_string());
                    let failed = |error| Error::io(&format!("extract {name}"), error);
                    let mut file = File::create(&path).map_err(failed)?;
                    tar.contents(|bytes| file.write_all(bytes))
                        .map_err(|error| error.within(&format!("extract {name}")))?;
                    let file_entry = ArchiveFile { path, size: entry.size };
                    if archive_files.files.insert(name.clone(), file_entry).is_some() {
                        return Err(Error::corrupt(format!("the archive contains {name} twice")));
                    }
                }
                EntryKind::Symlink => {
                    let link = String::from_utf8_lossy(&entry.link).into_owned();
                    archive_files.links.insert(name.clone(), resolve_link(&name, &link)?);
                }
                EntryKind::HardLink => {
                    archive_files.links.insert(name, normalize_name(&entry.link)?);
                }
                EntryKind::Directory => {}
                EntryKind::Fifo | EntryKind::Device => {
                    return Err(Error::corrupt(format!("{name} in the archive is not a file")));
                }
            }
        }
        Ok(archive_files)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.file(name).is_ok()
    }

    /// A file by its name in the archive, following links.
    pub(super) fn file(&self, name: &str) -> Result<&ArchiveFile> {
        let mut name = normalize_name(name.as_bytes())?;
        for _ in 0..MAX_LINKS {
            if let Some(file) = self.files.get(&name) {
                return Ok(file);
            }
            match self.links.get(&name) {
                Some(target) => name.clone_from(target),
                None => break,
            }
        }
        Err(Error::corrupt(format!("the archive lacks {name}, which it refers to")))
    }

    /// A blob of an OCI image layout.
    pub(super) fn blob(&self, digest: &Digest) -> Result<&ArchiveFile> {
        self.file(&format!("blobs/sha256/{}", digest.hex()))
    }

    /// The content of a file that is not a layer.
    pub(super) fn document(&self, name: &str) -> Result<Vec<u8>> {
        let file = self.file(name)?;
        if file.size > self.most {
            let (size, most) = (file.size, self.most);
            return Err(Error::corrupt(format!(
                "{name} in the archive has {size} bytes; the maximum is {most}"
            )));
        }
        fs::read(&file.path).map_err(Error::system("read", &file.path))
    }

    /// The content of a blob, verified against its digest.
    pub(super) fn blob_document(&self, digest: &Digest) -> Result<Vec<u8>> {
        let bytes = self.document(&format!("blobs/sha256/{}", digest.hex()))?;
        if Digest::of(&bytes) != *digest {
            return Err(Error::corrupt(format!("blob {digest} in the archive does not match its digest")));
        }
        Ok(bytes)
    }
}

// === impl ArchiveFile ===

impl ArchiveFile {
    pub(super) fn open(&self) -> Result<File> {
        File::open(&self.path).map_err(Error::system("open", &self.path))
    }
}

/// Normalizes a name.
fn normalize_name(name: &[u8]) -> Result<String> {
    let shown = String::from_utf8_lossy(name);
    let mut parts = Vec::new();
    for part in shown.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err(Error::corrupt(format!("{shown}: '..' in a name of the archive"))),
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

/// Resolves a symlink inside the archive.
fn resolve_link(name: &str, link: &str) -> Result<String> {
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return Err(Error::corrupt(format!("{name}: a link that leaves the archive")));
                }
            }
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}
