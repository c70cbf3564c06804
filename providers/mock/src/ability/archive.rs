//! Tar archives as `kubectl cp` sends and expects them.

use std::io;

use bytes::Bytes;

/// The regular files of an archive, with their paths. An archive that is cut off is an error.
pub(super) fn unpack(archive: &Bytes) -> io::Result<Vec<(String, Bytes)>> {
    let mut files = Vec::new();
    for entry in tar::Archive::new(archive.as_ref()).entries()? {
        let entry = entry?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path()?.to_string_lossy().into_owned();
        // A part of the archive's own memory instead of a copy.
        let start = usize::try_from(entry.raw_file_position()).map_err(io::Error::other)?;
        let size = usize::try_from(entry.size()).map_err(io::Error::other)?;
        let end = start.checked_add(size).filter(|end| *end <= archive.len());
        files.push((path, archive.slice(start..end.ok_or(io::ErrorKind::UnexpectedEof)?)));
    }
    Ok(files)
}

/// An archive of files. Paths become relative.
pub(super) fn pack(files: &[(String, Bytes)]) -> io::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, path.trim_start_matches('/'), content.as_ref())?;
    }
    builder.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_files_are_unpacked_again() {
        let long = format!("{}/{}", "folder/".repeat(30), "name".repeat(10)).replace("//", "/");
        let files = [("/a", vec![b'x']), (long.as_str(), vec![7; 1025]), ("empty", Vec::new())];
        let files = files.map(|(path, content)| (path.to_owned(), Bytes::from(content)));
        let unpacked = unpack(&pack(&files).unwrap().into()).unwrap();
        let expected = files.map(|(path, content)| (path.trim_start_matches('/').to_owned(), content));
        assert_eq!(unpacked, expected);
    }

    #[test]
    fn an_archive_that_is_cut_off_is_an_error() {
        let archive = Bytes::from(pack(&[("a".to_owned(), Bytes::from(vec![1; 600]))]).unwrap());
        assert!(unpack(&archive.slice(..700)).is_err());
        assert!(unpack(&archive.slice(..100)).is_err());
        assert!(unpack(&Bytes::from_static(&[1; 512])).is_err());
        assert!(unpack(&Bytes::new()).unwrap().is_empty());
    }
}
