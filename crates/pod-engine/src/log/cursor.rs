//! A place in a log file, and what is shown from there on. Blocks, and knows no time.

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
    go_text::io_error,
};

use super::line::{Format, Line, Stamp, Stream};
use crate::volume::quoted;

/// How much is read at once.
const BLOCK: usize = 64 * 1024;
/// What is held of a line until it is whole. A longer one is shown in pieces: runtimes write none, because they cut at 16 KiB.
const LONGEST: usize = 1024 * 1024;

/// A place in a log file.
#[derive(Debug)]
pub(super) struct Cursor {
    path: PathBuf,
    file: File,
    position: u64,
    /// Read and not shown: less than a line.
    held: Vec<u8>,
    /// Known from the first line on.
    format: Option<Format>,
    /// Inside of a line that is too long to be held.
    long: Option<Long>,
    follow: bool,
    /// How much is read at once, and held at most.
    sizes: Sizes,
    /// How many lines are to be shown yet, where that is limited.
    lines: Option<u64>,
    show: Show,
}

/// How much is read at once, and how much of a line is held. Tests make it small.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) block: usize,
    pub(super) longest: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { block: BLOCK, longest: LONGEST }
    }
}

/// What came of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// There may be more.
    More,
    /// The file has no more now.
    End,
    /// Nothing more is wanted.
    Over,
}

#[derive(Debug)]
struct Long {
    shown: bool,
    partial: bool,
    last: Option<u8>,
}

/// What is shown of a line, and how.
#[derive(Debug)]
struct Show {
    since: Option<Timestamp>,
    output: Output,
    timestamps: bool,
    /// Bytes that may be shown yet.
    left: u64,
    /// Whether what was shown last ended a line: only then a time is put before the next.
    fresh: bool,
}

impl Cursor {
    /// Opens a file, at the place from which the options want it. The errors are a kubelet's.
    pub(super) fn open(path: &Path, options: &LogOptions, since: Option<Timestamp>) -> Result<Self> {
        Self::open_with(path, options, since, Sizes::default())
    }

    pub(super) fn open_with(
        path: &Path,
        options: &LogOptions,
        since: Option<Timestamp>,
        sizes: Sizes,
    ) -> Result<Self> {
        // Some runtimes put a link there.
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
            held: Vec::new(),
            format: None,
            long: None,
            follow: options.follow,
            sizes,
            lines: options.tail.filter(|_| !options.follow),
            show: Show {
                since,
                output: options.output,
                timestamps: options.timestamps,
                left: options.limit_bytes.unwrap_or(u64::MAX),
                fresh: true,
            },
        })
    }

    /// Where the file is, without links.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a block and shows its lines.
    pub(super) fn read(&mut self, out: &mut Vec<u8>) -> io::Result<Progress> {
        if self.lines == Some(0) {
            return Ok(Progress::Over);
        }
        let held = self.held.len();
        self.held.resize(held + self.sizes.block, 0);
        let read = self.file.read(&mut self.held[held..]);
        self.held.truncate(held + *read.as_ref().unwrap_or(&0));
        let read = match read {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Progress::More),
            read => read?,
        };
        self.position += read as u64;
        if read > 0 {
            return self.show_lines(held, out);
        }
        if self.follow {
            return Ok(Progress::End);
        }
        // The last line has no end: it is shown as it is.
        let rest = std::mem::take(&mut self.held);
        if !rest.is_empty() {
            self.show_line(&rest, out)?;
        }
        Ok(Progress::Over)
    }

    /// Goes on in the file that has taken this one's place, or at the beginning of one that was emptied. Only where this one is at
    /// its end. Tells whether there is anything to read now.
    pub(super) fn renew(&mut self) -> io::Result<bool> {
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
                // Whoever renamed it may have written before that, and after our last look.
                if self.file.metadata()?.len() > self.position {
                    return Ok(true);
                }
                self.file = file;
            }
        }
        self.position = 0;
        self.held.clear();
        self.long = None;
        Ok(true)
    }

    /// Shows all whole lines of what is held. `from` is where an end of line may be for the first time.
    fn show_lines(&mut self, from: usize, out: &mut Vec<u8>) -> io::Result<Progress> {
        let held = std::mem::take(&mut self.held);
        let mut start = 0;
        let mut look = from;
        while let Some(end) = held[look..].iter().position(|byte| *byte == b'\n') {
            let end = look + end + 1;
            let over = self.show_line(&held[start..end], out)?;
            (start, look) = (end, end);
            if over || self.lines == Some(0) {
                return Ok(Progress::Over);
            }
        }
        self.held = held;
        self.held.drain(..start);
        if self.long.is_some() || self.held.len() >= self.sizes.longest {
            let piece = std::mem::take(&mut self.held);
            if self.show_piece(&piece, out)? {
                return Ok(Progress::Over);
            }
        }
        Ok(Progress::More)
    }

    /// Shows a whole line, or the rest of a long one. Tells whether nothing more is wanted.
    fn show_line(&mut self, line: &[u8], out: &mut Vec<u8>) -> io::Result<bool> {
        if let Some(mut long) = self.long.take() {
            let rest = if long.partial { line.strip_suffix(b"\n").unwrap_or(line) } else { line };
            let over = long.shown && self.show.bytes(rest, out);
            long.last = rest.last().copied().or(long.last);
            self.show.fresh = long.last.is_none_or(|last| last == b'\n');
            self.count();
            return Ok(over);
        }
        let Some(line) = self.format_of(line)?.parse(line) else {
            // As a kubelet: what is no line of a log does not count either.
            return Ok(false);
        };
        let over = self.show.line(&line, out);
        self.show.fresh = line.content.last().is_none_or(|last| *last == b'\n');
        self.count();
        Ok(over)
    }

    /// Shows a piece of a line whose end is not known.
    fn show_piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> io::Result<bool> {
        if let Some(long) = &mut self.long {
            long.last = piece.last().copied().or(long.last);
            return Ok(long.shown && self.show.bytes(piece, out));
        }
        let Some(line) = self.format_of(piece)?.parse(piece) else {
            self.long = Some(Long { shown: false, partial: false, last: None });
            return Ok(false);
        };
        let shown = self.show.wants(&line);
        let last = line.content.last().copied();
        self.long = Some(Long { shown, partial: line.partial, last });
        Ok(self.show.line(&line, out))
    }

    fn count(&mut self) {
        self.lines = self.lines.map(|lines| lines - 1);
    }

    fn format_of(&mut self, line: &[u8]) -> io::Result<Format> {
        if let Some(format) = self.format {
            return Ok(format);
        }
        let format = Format::of(line).ok_or_else(|| {
            let line = String::from_utf8_lossy(&line[..line.len().min(256)]).into_owned();
            let message = format!("failed to get parse function: unsupported log format: {line:?}");
            io::Error::new(io::ErrorKind::InvalidData, message)
        })?;
        self.format = Some(format);
        Ok(format)
    }
}

impl Show {
    fn wants(&self, line: &Line<'_>) -> bool {
        !self.is_before(line.time)
            && match self.output {
                Output::All => true,
                Output::Stdout => line.stream == Stream::Stdout,
                Output::Stderr => line.stream == Stream::Stderr,
            }
    }

    fn is_before(&self, time: Stamp) -> bool {
        self.since.is_some_and(|since| time.moment().is_some_and(|moment| moment < since))
    }

    /// Tells whether nothing more is wanted.
    fn line(&mut self, line: &Line<'_>, out: &mut Vec<u8>) -> bool {
        if !self.wants(line) {
            return false;
        }
        if !self.timestamps || !self.fresh {
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

/// Where the last lines begin, found from the end. A last line that has no end does not count.
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
    // A kubelet names the first part of the path that is missing.
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
