//! A tar reader for untrusted archives. Written by hand instead of with the `tar` crate, which trusts the sizes in
//! headers: here every size (of a name, an extension, a file) is limited before anything is allocated.

use std::io::{self, BufRead};

use tar::Header;

use crate::image::{Error, Result};

const BLOCK: usize = 512;
/// Maximum length of a path, as in the kernel.
pub(crate) const MAX_PATH: usize = 4096;
/// Maximum size of all extension headers of an entry, which hold extended attributes.
const MAX_EXTENSION: u64 = 1024 * 1024;

/// A tar archive that is being read.
pub(crate) struct TarReader<R> {
    source: R,
    /// Unread bytes of the current entry, and the padding of its last block.
    left: u64,
    padding: u64,
    entries: u64,
    max_entries: u64,
}

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    Directory,
    Symlink,
    HardLink,
    Fifo,
    Device,
}

/// An entry.
#[derive(Clone, Debug)]
pub(crate) struct TarEntry {
    pub(crate) kind: EntryKind,
    pub(crate) path: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) size: u64,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: (i64, u32),
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Extension headers of the next entry.
#[derive(Default)]
struct PaxExtension {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

// === impl TarReader ===

impl<R: BufRead> TarReader<R> {
    pub(crate) fn new(source: R, max_entries: u64) -> Self {
        Self { source, left: 0, padding: 0, entries: 0, max_entries }
    }

    /// The next entry. Its content is read by [`TarReader::contents`] before the next call, or skipped.
    pub(crate) fn next(&mut self) -> Result<Option<TarEntry>> {
        let mut extension = PaxExtension::default();
        let mut extension_left = MAX_EXTENSION;
        loop {
            self.skip(self.left + self.padding)?;
            (self.left, self.padding) = (0, 0);
            let Some(header) = self.header()? else { return Ok(None) };
            // Extensions count too: an archive could consist of nothing else.
            self.entries += 1;
            if self.entries > self.max_entries {
                return Err(Error::corrupt(format!("more than the maximum of {} entries", self.max_entries)));
            }
            let size = header.entry_size().map_err(malformed)?;
            match header.as_old().linkflag[0] {
                b'x' => extension.read(&self.extension(size, &mut extension_left)?)?,
                // Global headers are comments in practice, and containerd ignores them too.
                b'g' => drop(self.extension(size, &mut extension_left)?),
                b'L' => extension.path = Some(until_nul(self.extension(size, &mut extension_left)?)),
                b'K' => extension.link = Some(until_nul(self.extension(size, &mut extension_left)?)),
                flag => {
                    let entry = entry(&header, flag, extension)?;
                    self.begin(entry.size);
                    return Ok(Some(entry));
                }
            }
        }
    }

    /// Passes the rest of the current entry to a callback, without copying.
    pub(crate) fn contents(&mut self, mut taker: impl FnMut(&[u8]) -> io::Result<()>) -> Result<()> {
        while self.left > 0 {
            let bytes = self.source.fill_buf().map_err(|error| Error::io("read", error))?;
            if bytes.is_empty() {
                return Err(truncated());
            }
            let count = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            taker(&bytes[..count]).map_err(|error| Error::io("write", error))?;
            self.source.consume(count);
            self.left -= count as u64;
        }
        Ok(())
    }

    /// The source, after the last entry.
    pub(crate) fn into_inner(self) -> R {
        self.source
    }

    fn begin(&mut self, size: u64) {
        self.left = size;
        self.padding = size.next_multiple_of(BLOCK as u64) - size;
    }

    /// Reads an extension header; `left` is what the entry may still have of them.
    fn extension(&mut self, size: u64, left: &mut u64) -> Result<Vec<u8>> {
        *left = left.checked_sub(size).ok_or_else(|| {
            Error::corrupt(format!(
                "an extension header has {size} bytes; the maximum for an entry is {MAX_EXTENSION}"
            ))
        })?;
        self.begin(size);
        let mut bytes = Vec::new();
        self.contents(|part| {
            bytes.extend_from_slice(part);
            Ok(())
        })?;
        Ok(bytes)
    }

    fn skip(&mut self, mut count: u64) -> Result<()> {
        while count > 0 {
            let bytes = self.source.fill_buf().map_err(|error| Error::io("read", error))?.len();
            if bytes == 0 {
                return Err(truncated());
            }
            let part = bytes.min(usize::try_from(count).unwrap_or(usize::MAX));
            self.source.consume(part);
            count -= part as u64;
        }
        Ok(())
    }

    fn header(&mut self) -> Result<Option<Header>> {
        let mut header = Header::new_old();
        for block in 0..2 {
            let mut filled = 0;
            while filled < BLOCK {
                let count = self
                    .source
                    .read(&mut header.as_mut_bytes()[filled..])
                    .map_err(|error| Error::io("read", error))?;
                if count == 0 {
                    // An archive without the final empty blocks is accepted, as in Go.
                    return if filled == 0 { Ok(None) } else { Err(truncated()) };
                }
                filled += count;
            }
            if header.as_bytes().iter().any(|&byte| byte != 0) {
                return if block == 0 {
                    verify_checksum(header).map(Some)
                } else {
                    Err(malformed("after its end"))
                };
            }
        }
        Ok(None)
    }
}

fn verify_checksum(header: Header) -> Result<Header> {
    let bytes = header.as_bytes();
    // The checksum field itself counts as blanks.
    let sum: u32 = bytes[..148].iter().chain(&bytes[156..]).map(|&byte| u32::from(byte)).sum();
    let stated = header.cksum().map_err(malformed)?;
    if stated == sum + 8 * u32::from(b' ') { Ok(header) } else { Err(malformed("checksum")) }
}

fn entry(header: &Header, flag: u8, extension: PaxExtension) -> Result<TarEntry> {
    let path = extension.path.unwrap_or_else(|| header.path_bytes().into_owned());
    let link = extension.link.unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned());
    let at = |what: &str| Error::corrupt(format!("{}: {what}", String::from_utf8_lossy(&path)));
    if path.len() > MAX_PATH || link.len() > MAX_PATH {
        return Err(Error::corrupt(format!("a path of {} bytes", path.len().max(link.len()))));
    }
    if path.contains(&0) || link.contains(&0) {
        return Err(at("a zero byte in its path"));
    }
    let kind = match flag {
        // Old archives mark directories by a trailing slash.
        b'0' | 0 | b'7' if path.ends_with(b"/") => EntryKind::Directory,
        b'0' | 0 | b'7' => EntryKind::File,
        b'1' => EntryKind::HardLink,
        b'2' => EntryKind::Symlink,
        b'3' | b'4' => EntryKind::Device,
        b'5' => EntryKind::Directory,
        b'6' => EntryKind::Fifo,
        b'S' => return Err(at("sparse files are not supported")),
        other => return Err(at(&format!("unknown entry type {:?}", char::from(other)))),
    };
    let size = match kind {
        EntryKind::File => extension.size.map_or_else(|| header.entry_size().map_err(malformed), Ok)?,
        // Other types have no content, whatever the header says.
        _ => 0,
    };
    let owner = |stated: Option<u64>, written: io::Result<u64>| {
        let id = stated.map_or_else(|| written.map_err(malformed), Ok)?;
        // The kernel reserves the highest number.
        u32::try_from(id).ok().filter(|&id| id != u32::MAX).ok_or_else(|| at(&format!("invalid owner {id}")))
    };
    let (uid, gid) = (owner(extension.uid, header.uid())?, owner(extension.gid, header.gid())?);
    let mtime = extension.mtime.unwrap_or_else(|| (header.mtime().unwrap_or(0).cast_signed(), 0));
    let mode = header.mode().map_err(malformed)? & 0o7777;
    Ok(TarEntry { kind, link, size, mode, uid, gid, mtime, xattrs: extension.xattrs, path })
}

// === impl PaxExtension ===

impl PaxExtension {
    /// Parses PAX records, each `LENGTH KEY=VALUE` and a newline.
    fn read(&mut self, mut records: &[u8]) -> Result<()> {
        while !records.is_empty() {
            let blank = records.iter().position(|&byte| byte == b' ').ok_or_else(|| malformed("record"))?;
            let length: usize = number(&records[..blank])?;
            let record = records.get(blank + 1..length).and_then(|record| record.strip_suffix(b"\n"));
            let record = record.ok_or_else(|| malformed("record"))?;
            let equals = record.iter().position(|&byte| byte == b'=').ok_or_else(|| malformed("record"))?;
            self.take(&record[..equals], &record[equals + 1..])?;
            records = &records[length..];
        }
        Ok(())
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match key {
            // An empty value deletes the record, by the standard.
            b"path" => self.path = (!value.is_empty()).then(|| value.to_vec()),
            b"linkpath" => self.link = (!value.is_empty()).then(|| value.to_vec()),
            b"size" => self.size = Some(number(value)?),
            b"uid" => self.uid = Some(number(value)?),
            b"gid" => self.gid = Some(number(value)?),
            b"mtime" => self.mtime = Some(time(value)?),
            _ if key.starts_with(b"GNU.sparse.") => {
                return Err(Error::corrupt("sparse files are not supported"));
            }
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(())
    }
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Result<T> {
    std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.trim().parse().ok())
        .ok_or_else(|| malformed(format!("number {:?}", String::from_utf8_lossy(digits))))
}

/// Parses seconds with a fraction.
fn time(value: &[u8]) -> Result<(i64, u32)> {
    let (whole, fraction) = match value.iter().position(|&byte| byte == b'.') {
        Some(dot) => (&value[..dot], &value[dot + 1..]),
        None => (value, &b""[..]),
    };
    let seconds: i64 = number(whole)?;
    let mut digits = fraction.to_vec();
    digits.resize(9, b'0');
    let nanos: u32 = number(&digits)?;
    // Before 1970 the fraction counts backwards.
    Ok(if value.starts_with(b"-") && nanos > 0 {
        (seconds.saturating_sub(1), 1_000_000_000 - nanos)
    } else {
        (seconds, nanos)
    })
}

fn until_nul(mut name: Vec<u8>) -> Vec<u8> {
    if let Some(end) = name.iter().position(|&byte| byte == 0) {
        name.truncate(end);
    }
    name
}

fn malformed(what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("archive/tar: invalid tar header: {what}"))
}

fn truncated() -> Error {
    Error::corrupt("archive/tar: unexpected EOF: the archive is truncated")
}
