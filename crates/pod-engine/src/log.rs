//! Container logs: the runtime's format, read with every option.
//!
//! A runtime writes each line of a container's output with a timestamp, the stream and a tag. The output here equals that of a kubelet byte for
//! byte, also for lines that a limit cuts or that consist of parts. Memory is bounded: one block is read and sent at a time, at the pace of
//! the client.

pub mod directory;
mod follower;
mod line;
mod reader;
pub mod registry;

use std::{
    io,
    path::{Path, PathBuf},
};

use jiff::{SignedDuration, Timestamp};
use vk_provider::{
    Error, Result,
    ability::{LogBody, LogOptions, Since},
};
use vk_supervisor::Clock;

use self::reader::{LogReader, Progress};
use crate::text::{io_error, quoted};

/// Opens a log with these options.
///
/// `path` is the file of one attempt: the caller resolves [`previous`](LogOptions::previous). `is_running` is called at the end of a followed
/// file. `false` and `NotFound` end the log when everything is read; `Unavailable` does not, because containers run without their runtime. A
/// rotated file is followed into the new one.
pub async fn open<F, R>(path: PathBuf, options: &LogOptions, clock: &Clock, is_running: F) -> Result<LogBody>
where
    F: Fn() -> R + Send + 'static,
    R: Future<Output = Result<bool>> + Send + 'static,
{
    let since = options.since.and_then(|since| start_time(since, clock));
    let (opened, wanted) = (path.clone(), options.clone());
    let opened = tokio::task::spawn_blocking(move || LogReader::open(&opened, &wanted, since)).await;
    let reader = opened.map_err(|error| Error::internal("read a log").caused_by(error))??;
    Ok(LogBody::Final(follower::stream(reader, is_running)))
}

/// The last lines of a log, limited to the last bytes. Blocks.
pub fn tail(path: &Path, lines: u64, bytes: usize) -> Result<Vec<u8>> {
    let options = LogOptions { tail: Some(lines), ..LogOptions::default() };
    let mut reader = LogReader::open(path, &options, None)?;
    let mut output = Vec::new();
    loop {
        let progress = reader.read(&mut output).map_err(|error| failed(path, &error))?;
        output.drain(..output.len().saturating_sub(bytes));
        if progress != Progress::More {
            return Ok(output);
        }
    }
}

/// The start time of a log; `None` if it is out of range.
fn start_time(since: Since, clock: &Clock) -> Option<Timestamp> {
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
