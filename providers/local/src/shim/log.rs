//! The log file of a container, in the CRI log format.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use jiff::Timestamp;

/// Longer lines are split, as other runtimes do.
const MAX_LINE: usize = 16 * 1024;
/// Capacity of the buffer that is kept between writes.
const MAX_BUFFER: usize = 64 * 1024;

/// The log of one container.
#[derive(Debug)]
pub(super) struct CriLog {
    path: PathBuf,
    file: File,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    out: Vec<u8>,
    /// Whether the file ends in the middle of a line, because the disk was full.
    incomplete: bool,
}

/// The stream that a line belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

impl CriLog {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            file: open(path)?,
            stdout: Vec::new(),
            stderr: Vec::new(),
            out: Vec::new(),
            incomplete: false,
        })
    }

    /// Opens the file again by name.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        self.file = open(&self.path)?;
        self.incomplete = false;
        Ok(())
    }

    /// Writes the output of a container; an incomplete line is buffered. Output that cannot be written is lost: a full
    /// disk must not stop the container.
    pub(super) fn write(&mut self, stream: Stream, bytes: &[u8], now: Timestamp) -> io::Result<()> {
        let prefix = prefix(now, stream);
        let rest = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (mut text, ends) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            while rest.len() + text.len() > MAX_LINE {
                let (fits, more) = text.split_at(MAX_LINE - rest.len());
                entry(&mut self.out, &prefix, 'P', rest, fits);
                rest.clear();
                text = more;
            }
            if ends {
                entry(&mut self.out, &prefix, 'F', rest, text);
                rest.clear();
            } else {
                rest.extend_from_slice(text);
            }
        }
        self.flush()
    }

    /// Writes the incomplete lines.
    pub(super) fn finish(&mut self, now: Timestamp) -> io::Result<()> {
        for (stream, rest) in [(Stream::Stdout, &mut self.stdout), (Stream::Stderr, &mut self.stderr)] {
            if !rest.is_empty() {
                entry(&mut self.out, &prefix(now, stream), 'P', rest, b"");
                rest.clear();
            }
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut rest = self.out.as_slice();
        let mut result = Ok(());
        if self.incomplete && !rest.is_empty() {
            match self.file.write_all(b"\n") {
                Ok(()) => self.incomplete = false,
                Err(error) => {
                    result = Err(error);
                    rest = &[];
                }
            }
        }
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(written) => {
                    rest = &rest[written..];
                    self.incomplete = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.out.clear();
        self.out.shrink_to(MAX_BUFFER);
        result
    }
}

fn open(path: &Path) -> io::Result<File> {
    let open = OpenOptions::new().create(true).append(true).mode(0o640).open(path);
    open.map_err(|error| io::Error::new(error.kind(), format!("open log {}: {error}", path.display())))
}

/// The prefix of a line: time with nine digits, and stream.
fn prefix(now: Timestamp, stream: Stream) -> String {
    format!("{now:.9} {} ", stream.name())
}

fn entry(out: &mut Vec<u8>, prefix: &str, tag: char, first: &[u8], second: &[u8]) {
    out.extend_from_slice(prefix.as_bytes());
    let mut tag_bytes = [0; 4];
    out.extend_from_slice(tag.encode_utf8(&mut tag_bytes).as_bytes());
    out.push(b' ');
    out.extend_from_slice(first);
    out.extend_from_slice(second);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment() -> Timestamp {
        "2016-10-06T00:17:09.669794202Z".parse().unwrap()
    }

    fn written(write: impl FnOnce(&mut CriLog)) -> String {
        let dir = tempfile::tempdir().unwrap();
        let mut log = CriLog::open(&dir.path().join("0.log")).unwrap();
        write(&mut log);
        std::fs::read_to_string(dir.path().join("0.log")).unwrap()
    }

    #[test]
    fn lines_are_written_with_time_and_stream_in_any_chunking() {
        let text = written(|log| {
            log.write(Stream::Stdout, b"one\ntw", moment()).unwrap();
            log.write(Stream::Stderr, b"bad\n\n", moment()).unwrap();
            log.write(Stream::Stdout, b"o\n", moment()).unwrap();
        });
        let at = "2016-10-06T00:17:09.669794202Z";
        assert_eq!(
            text,
            format!("{at} stdout F one\n{at} stderr F bad\n{at} stderr F \n{at} stdout F two\n")
        );
    }

    #[test]
    fn the_time_always_has_nine_digits() {
        let whole: Timestamp = "2016-10-06T00:17:09Z".parse().unwrap();
        let text = written(|log| log.write(Stream::Stdout, b"x\n", whole).unwrap());
        assert_eq!(text, "2016-10-06T00:17:09.000000000Z stdout F x\n");
    }

    #[test]
    fn a_long_line_is_split_into_parts_of_16_kib() {
        for (length, expected) in [
            (MAX_LINE, vec![('F', MAX_LINE)]),
            (MAX_LINE + 1, vec![('P', MAX_LINE), ('F', 1)]),
            (2 * MAX_LINE, vec![('P', MAX_LINE), ('F', MAX_LINE)]),
            (2 * MAX_LINE + 7, vec![('P', MAX_LINE), ('P', MAX_LINE), ('F', 7)]),
        ] {
            for step in [1000, 5 * MAX_LINE] {
                let mut line = vec![b'x'; length];
                line.push(b'\n');
                let text = written(|log| {
                    for piece in line.chunks(step) {
                        log.write(Stream::Stdout, piece, moment()).unwrap();
                    }
                });
                let parts: Vec<(char, usize)> = text
                    .lines()
                    .map(|line| line.splitn(4, ' ').collect::<Vec<_>>())
                    .map(|parts| (parts[2].chars().next().unwrap(), parts[3].len()))
                    .collect();
                assert_eq!(parts, expected, "{length} bytes by {step}");
            }
        }
    }

    #[test]
    fn an_incomplete_line_is_tagged_as_partial() {
        let text = written(|log| {
            log.write(Stream::Stdout, b"no end", moment()).unwrap();
            log.finish(moment()).unwrap();
            log.finish(moment()).unwrap();
        });
        assert_eq!(text, "2016-10-06T00:17:09.669794202Z stdout P no end\n");
    }

    #[test]
    fn a_full_disk_only_loses_lines() {
        let mut log = CriLog::open(Path::new("/dev/full")).unwrap();
        assert!(log.write(Stream::Stdout, b"lost\n", moment()).is_err());
        let dir = tempfile::tempdir().unwrap();
        log.path = dir.path().join("0.log");
        log.reopen().unwrap();
        log.write(Stream::Stdout, b"kept\n", moment()).unwrap();
        assert!(std::fs::read_to_string(&log.path).unwrap().ends_with(" stdout F kept\n"));
    }
}
