//! Archives as `kubectl cp` sends and expects them: ustar, with regular files.

use bytes::{BufMut as _, Bytes, BytesMut};

const BLOCK: usize = 512;

/// The regular files of an archive, with their names. `None` when it is broken off or none.
pub(super) fn unpack(mut archive: Bytes) -> Option<Vec<(String, Bytes)>> {
    let mut files = Vec::new();
    let mut long_name = None;
    loop {
        // Two empty blocks are the end; some end without them.
        if archive.is_empty() || archive.iter().take(BLOCK).all(|byte| *byte == 0) {
            return Some(files);
        }
        if archive.len() < BLOCK {
            return None;
        }
        let head = archive.split_to(BLOCK);
        let text = |from: usize, to: usize| {
            let field = head.get(from..to).unwrap_or_default();
            let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
            String::from_utf8_lossy(&field[..end]).trim().to_owned()
        };
        let size = usize::from_str_radix(&text(124, 136), 8).ok()?;
        let padded = size.checked_next_multiple_of(BLOCK)?;
        if archive.len() < padded {
            return None;
        }
        let content = archive.split_to(padded).slice(..size);
        match head[156] {
            b'0' | 0 => {
                let prefix = text(345, 500);
                let name =
                    if prefix.is_empty() { text(0, 100) } else { format!("{prefix}/{}", text(0, 100)) };
                files.push((long_name.take().unwrap_or(name), content));
            }
            // A record of the POSIX kind: the only one that matters here is the name.
            b'x' => long_name = path_of(&content).or(long_name),
            _ => long_name = None,
        }
    }
}

/// The path in records such as `30 path=some/long/name`.
fn path_of(records: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(records);
    text.lines().find_map(|line| line.split_once(' ')?.1.strip_prefix("path=").map(str::to_owned))
}

/// The head of a file in an archive, which its content and [`padding`] follow.
pub(super) fn head(name: &str, size: usize) -> Bytes {
    let mut block = BytesMut::zeroed(BLOCK);
    let name = name.trim_start_matches('/').as_bytes();
    // Longer names are cut into a folder and the rest.
    let cut = if name.len() > 100 {
        name[..name.len().min(156)].iter().rposition(|byte| *byte == b'/').unwrap_or(0)
    } else {
        0
    };
    let (prefix, rest) = if cut > 0 { (&name[..cut], &name[cut + 1..]) } else { (&name[..0], name) };
    let mut put = |at: usize, bytes: &[u8], room: usize| {
        let length = bytes.len().min(room);
        block[at..at + length].copy_from_slice(&bytes[..length]);
    };
    put(0, rest, 100);
    put(100, b"0000644\0", 8);
    put(108, b"0000000\0", 8);
    put(116, b"0000000\0", 8);
    put(124, format!("{size:011o}\0").as_bytes(), 12);
    put(136, b"00000000000\0", 12);
    put(148, b"        ", 8);
    put(156, b"0", 1);
    put(257, b"ustar\x0000", 8);
    put(345, prefix, 155);
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block.freeze()
}

/// What fills the last block of a file.
pub(super) fn padding(size: usize) -> Bytes {
    Bytes::from(vec![0; size.next_multiple_of(BLOCK) - size])
}

/// What stands after the last file.
pub(super) fn end() -> Bytes {
    let mut end = BytesMut::new();
    end.put_bytes(0, 2 * BLOCK);
    end.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(files: &[(&str, &[u8])]) -> Bytes {
        let mut archive = BytesMut::new();
        for (name, content) in files {
            archive.extend_from_slice(&head(name, content.len()));
            archive.extend_from_slice(content);
            archive.extend_from_slice(&padding(content.len()));
        }
        archive.extend_from_slice(&end());
        archive.freeze()
    }

    #[test]
    fn what_is_packed_is_unpacked() {
        let long = format!("{}/{}", "folder/".repeat(12), "name".repeat(10));
        let content = vec![7; 1025];
        let files: [(&str, &[u8]); 3] = [("a", b"x"), (&long, &content), ("empty", b"")];
        let unpacked = unpack(pack(&files)).unwrap();
        assert_eq!(unpacked.len(), 3);
        for ((name, content), (found, bytes)) in files.iter().zip(unpacked) {
            assert_eq!(found.replace("//", "/"), name.replace("//", "/"));
            assert_eq!(bytes, *content);
        }
    }

    #[test]
    fn an_archive_that_breaks_off_is_none() {
        let archive = pack(&[("a", &[1; 600])]);
        assert!(unpack(archive.slice(..700)).is_none());
        assert!(unpack(archive.slice(..100)).is_none());
        assert!(unpack(Bytes::from_static(&[1; 512])).is_none());
        assert_eq!(unpack(Bytes::new()).unwrap(), []);
    }
}
