//! Reads a log file and filters its lines. Blocks, and has no timers.

use std::{
    cmp::Ordering,
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use vk_provider::{
    Error, Result,
    ability::{LogOptions, Output},
};

use super::line::{Format, Line, LineStream, LogTimestamp};
use crate::text::{io_error, quoted};

/// Size of a read, in bytes.
const BLOCK: usize = 64 * 1024;
/// Maximum size of a buffered line. A longer one is sent in pieces; runtimes split lines at 16 KiB.
const MAX_LINE: usize = 1024 * 1024;

/// Reads a log file.
#[derive(Debug)]
pub(super) struct LogReader {
    path: PathBuf,
    file: File,
    position: u64,
    /// Data that is not a complete line yet.
    buffer: Vec<u8>,
    /// Detected from the first line.
    format: Option<Format>,
    /// The state of a line that is too long to be buffered.
    long: Option<LongLine>,
    follow: bool,
    /// Sizes of the buffers.
    sizes: BufferSizes,
    /// Remaining number of lines, if limited.
    lines: Option<u64>,
    filter: OutputFilter,
}

/// Sizes of the buffers. Tests use small ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferSizes {
    pub(super) block: usize,
    pub(super) max_line: usize,
}

impl Default for BufferSizes {
    fn default() -> Self {
        Self { block: BLOCK, max_line: MAX_LINE }
    }
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// There may be more data.
    More,
    /// The end of the file.
    End,
    /// The options want no more data.
    Done,
}

#[derive(Debug)]
struct LongLine {
    shown: bool,
    partial: bool,
    last: Option<u8>,
}

/// Which lines are sent, and how.
#[derive(Debug)]
struct OutputFilter {
    since: Option<Timestamp>,
    output: Output,
    timestamps: bool,
    /// Remaining number of bytes.
    left: u64,
    /// Whether the last output ended a line: only then the next one begins with a timestamp.
    at_line_start: bool,
}

impl LogReader {
    /// Opens a file at the position of the options. The errors are a kubelet's.
    pub(super) fn open(path: &Path, options: &LogOptions, since: Option<Timestamp>) -> Result<Self> {
        Self::open_with(path, options, since, BufferSizes::default())
    }

    pub(super) fn open_with(
        path: &Path,
        options: &LogOptions,
        since: Option<Timestamp>,
        sizes: BufferSizes,
    ) -> Result<Self> {
        // Some runtimes use symbolic links.
        let real = path.canonicalize().map_err(|error| unresolved(path, &error))?;
        let failed = |what: &str| {
            let what = format!("failed to {what} {}", quoted(&real));
            move |error: io::Error| Error::internal(format!("{what}: {}", io_error(&error)))
        };
        let mut file = File::open(&real).map_err(failed("open log file"))?;
        let start = match options.tail {
            None => 0,
            Some(lines) => start_of_tail(&file, lines, sizes.block)
                .map_err(failed(&format!("tail {lines} lines of log file")))?,
        };
        file.seek(SeekFrom::Start(start)).map_err(failed(&format!("seek {start} in log file")))?;
        Ok(Self {
            file,
            path: real,
            position: start,
            buffer: Vec::new(),
            format: None,
            long: None,
            follow: options.follow,
            sizes,
            lines: options.tail.filter(|_| !options.follow),
            filter: OutputFilter {
                since,
                output: options.output,
                timestamps: options.timestamps,
                left: options.limit_bytes.unwrap_or(u64::MAX),
                at_line_start: true,
            },
        })
    }

    /// The path of the file without symbolic links.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a block and appends its lines to `out`.
    pub(super) fn read(&mut self, out: &mut Vec<u8>) -> io::Result<Progress> {
        if self.lines == Some(0) {
            return Ok(Progress::Done);
        }
        let held = self.buffer.len();
        self.buffer.resize(held + self.sizes.block, 0);
        let read = self.file.read(&mut self.buffer[held..]);
        self.buffer.truncate(held + *read.as_ref().unwrap_or(&0));
        let read = match read {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Progress::More),
            read => read?,
        };
        self.position += read as u64;
        if read > 0 {
            return self.append_lines(held, out);
        }
        if self.follow {
            return Ok(Progress::End);
        }
        // The last line has no line end.
        let rest = std::mem::take(&mut self.buffer);
        if !rest.is_empty() {
            self.append_line(&rest, out)?;
        }
        Ok(Progress::Done)
    }

    /// Reopens a rotated file, or rewinds a truncated one, at the end of the current file. Returns whether there is data to read.
    pub(super) fn reopen(&mut self) -> io::Result<bool> {
        let now = self.file.metadata()?;
        match now.len().cmp(&self.position) {
            Ordering::Greater => return Ok(true),
            Ordering::Less => drop(self.file.seek(SeekFrom::Start(0))?),
            Ordering::Equal => {
                let file = match File::open(&self.path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                    file => file?,
                };
                let other = file.metadata()?;
                if (other.dev(), other.ino()) == (now.dev(), now.ino()) {
                    return Ok(false);
                }
                // It may have been written after the last read and before the rename.
                if self.file.metadata()?.len() > self.position {
                    return Ok(true);
                }
                self.file = file;
            }
        }
        self.position = 0;
        self.buffer.clear();
        self.long = None;
        Ok(true)
    }

    /// Appends all complete lines of the buffer. Before `from` there is no line end.
    fn append_lines(&mut self, from: usize, out: &mut Vec<u8>) -> io::Result<Progress> {
        let held = std::mem::take(&mut self.buffer);
        let mut start = 0;
        let mut search = from;
        while let Some(end) = held[search..].iter().position(|byte| *byte == b'\n') {
            let end = search + end + 1;
            let over = self.append_line(&held[start..end], out)?;
            (start, search) = (end, end);
            if over || self.lines == Some(0) {
                return Ok(Progress::Done);
            }
        }
        self.buffer = held;
        self.buffer.drain(..start);
        if self.long.is_some() || self.buffer.len() >= self.sizes.max_line {
            let piece = std::mem::take(&mut self.buffer);
            if self.append_piece(&piece, out)? {
                return Ok(Progress::Done);
            }
        }
        Ok(Progress::More)
    }

    /// Appends a complete line, or the rest of a long one. Returns whether no more is wanted.
    fn append_line(&mut self, line: &[u8], out: &mut Vec<u8>) -> io::Result<bool> {
        if let Some(mut long) = self.long.take() {
            let rest = if long.partial { line.strip_suffix(b"\n").unwrap_or(line) } else { line };
            let over = long.shown && self.filter.bytes(rest, out);
            long.last = rest.last().copied().or(long.last);
            self.filter.at_line_start = long.last.is_none_or(|last| last == b'\n');
            self.count();
            return Ok(over);
        }
        let Some(line) = self.format_of(line)?.parse(line) else {
            // As in a kubelet, a malformed line is not counted.
            return Ok(false);
        };
        let over = self.filter.line(&line, out);
        self.filter.at_line_start = line.content.last().is_none_or(|last| *last == b'\n');
        self.count();
        Ok(over)
    }

    /// Appends a piece of a long line.
    fn append_piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> io::Result<bool> {
        if let Some(long) = &mut self.long {
            long.last = piece.last().copied().or(long.last);
            return Ok(long.shown && self.filter.bytes(piece, out));
        }
        let Some(line) = self.format_of(piece)?.parse(piece) else {
            self.long = Some(LongLine { shown: false, partial: false, last: None });
            return Ok(false);
        };
        let shown = self.filter.wants(&line);
        let last = line.content.last().copied();
        self.long = Some(LongLine { shown, partial: line.partial, last });
        Ok(self.filter.line(&line, out))
    }

    fn count(&mut self) {
        self.lines = self.lines.map(|lines| lines - 1);
    }

    fn format_of(&mut self, line: &[u8]) -> io::Result<Format> {
        if let Some(format) = self.format {
            return Ok(format);
        }
        let format = Format::detect(line).ok_or_else(|| {
            let line = String::from_utf8_lossy(&line[..line.len().min(256)]).into_owned();
            let message = format!("failed to get parse function: unsupported log format: {line:?}");
            io::Error::new(io::ErrorKind::InvalidData, message)
        })?;
        self.format = Some(format);
        Ok(format)
    }
}

impl OutputFilter {
    fn wants(&self, line: &Line<'_>) -> bool {
        !self.is_before(line.time)
            && match self.output {
                Output::All => true,
                Output::Stdout => line.stream == LineStream::Stdout,
                Output::Stderr => line.stream == LineStream::Stderr,
            }
    }

    fn is_before(&self, time: LogTimestamp) -> bool {
        self.since.is_some_and(|since| time.to_timestamp().is_some_and(|time| time < since))
    }

    /// Appends a line if it is wanted. Returns whether no more is wanted.
    fn line(&mut self, line: &Line<'_>, out: &mut Vec<u8>) -> bool {
        if !self.wants(line) {
            return false;
        }
        if !self.timestamps || !self.at_line_start {
            return self.bytes(&line.content, out);
        }
        let mut time = Vec::with_capacity(40);
        line.time.write(&mut time);
        time.push(b' ');
        self.bytes(&time, out) || self.bytes(&line.content, out)
    }

    fn bytes(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX);
        let shown = &bytes[..bytes.len().min(room)];
        out.extend_from_slice(shown);
        self.left -= shown.len() as u64;
        self.left == 0
    }
}

/// The position of the last lines, searched from the end. A last line without a line end does not count.
fn start_of_tail(file: &File, lines: u64, size: usize) -> io::Result<u64> {
    let mut right = file.metadata()?.len();
    let mut block = vec![0; size];
    let mut ends = 0;
    while right > 0 {
        let left = right.saturating_sub(size as u64);
        let length = usize::try_from(right - left).unwrap_or(size);
        file.read_exact_at(&mut block[..length], left)?;
        for (place, _) in block[..length].iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            if ends == lines {
                return Ok(left + place as u64 + 1);
            }
            ends += 1;
        }
        right = left;
    }
    Ok(0)
}

fn unresolved(path: &Path, error: &io::Error) -> Error {
    // A kubelet prints the first missing component of the path.
    let missing = path.ancestors().take_while(|part| part.symlink_metadata().is_err()).last().unwrap_or(path);
    let message = format!(
        "failed to try resolving symlinks in path {}: lstat {}: {}",
        quoted(path),
        missing.display(),
        io_error(error)
    );
    match error.kind() {
        io::ErrorKind::NotFound => Error::not_found(message),
        _ => Error::internal(message),
    }
}
