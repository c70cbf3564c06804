//! Container logs: the runtime's format, read with every option.
//!
//! A runtime writes what a container says into a file, a line for each line, with a time, the stream and a tag before it. What comes
//! out here is what `kubectl logs` shows, byte for byte as a kubelet gives it: also where a line is cut by a limit, or in parts.
//! Memory is bounded whatever the file holds: a block is read, shown, and forgotten, at the reader's pace.

mod cursor;
pub mod directory;
mod follow;
pub mod ledger;
mod line;

use std::{
    io,
    path::{Path, PathBuf},
};

use jiff::{SignedDuration, Timestamp};
use vk_provider::{
    Error, Result,
    ability::{LogBody, LogOptions, Since},
    go_text::io_error,
};
use vk_supervisor::Clock;

use self::cursor::{Cursor, Progress};
use crate::volume::quoted;

/// Opens a log, with all options applied.
///
/// `path` is the file of one attempt: which one is meant by [`previous`](LogOptions::previous) the caller knows. `is_running` is
/// asked at the end of the file while it is followed; `false`, and `NotFound`, end the log once all is read, and `Unavailable` does
/// not, because containers run on without their runtime. A file that is rotated is followed into the new one.
pub async fn open<F, R>(path: PathBuf, options: &LogOptions, clock: &Clock, is_running: F) -> Result<LogBody>
where
    F: Fn() -> R + Send + 'static,
    R: Future<Output = Result<bool>> + Send + 'static,
{
    let since = options.since.and_then(|since| beginning(since, clock));
    let (opened, wanted) = (path.clone(), options.clone());
    let opened = tokio::task::spawn_blocking(move || Cursor::open(&opened, &wanted, since)).await;
    let cursor = opened.map_err(|error| Error::internal("read a log").caused_by(error))??;
    Ok(LogBody::Final(follow::stream(cursor, is_running)))
}

/// The last lines of a log, and of those the last bytes. Blocks.
pub fn tail(path: &Path, lines: u64, bytes: usize) -> Result<Vec<u8>> {
    let options = LogOptions { tail: Some(lines), ..LogOptions::default() };
    let mut cursor = Cursor::open(path, &options, None)?;
    let mut shown = Vec::new();
    loop {
        let progress = cursor.read(&mut shown).map_err(|error| failed(path, &error))?;
        shown.drain(..shown.len().saturating_sub(bytes));
        if progress != Progress::More {
            return Ok(shown);
        }
    }
}

/// Where a log is to begin; `None` where that is before all time.
fn beginning(since: Since, clock: &Clock) -> Option<Timestamp> {
    match since {
        Since::Time(time) => Some(time),
        Since::Ago(ago) => {
            SignedDuration::try_from(ago).ok().and_then(|ago| clock.now().checked_sub(ago).ok())
        }
    }
}

fn failed(path: &Path, error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::InvalidData {
        return Error::internal(error.to_string());
    }
    Error::internal(format!("failed to read log file {}: {}", quoted(path), io_error(error)))
}

#[cfg(test)]
mod tests;
