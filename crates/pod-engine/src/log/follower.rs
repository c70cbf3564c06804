//! A log as a stream that follows the file.

use std::{io, path::Path, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::{net::unix::pipe, time::Instant};
use vk_provider::{Result, ability::LogStream, error::Kind};

use super::reader::{LogReader, Progress};

/// Size of a chunk of the stream, in bytes.
const CHUNK: usize = 64 * 1024;
/// How often the file is read without an inotify event: events can be lost, and some file systems have none.
const POLL: Duration = Duration::from_secs(1);
/// Minimum time between two questions whether the container runs.
const CHECK_RUNNING: Duration = Duration::from_millis(250);

/// The output of the reader, until the end of the file or of the container.
pub(super) fn stream<F, R>(reader: LogReader, is_running: F) -> LogStream
where
    F: Fn() -> R + Send + 'static,
    R: Future<Output = Result<bool>> + Send + 'static,
{
    let follower = LogFollower {
        reader: Some(reader),
        error: None,
        is_running,
        running: true,
        checked: None,
        watching: false,
        watch: None,
    };
    stream::unfold(follower, |mut follower| async move {
        let piece = follower.next().await?;
        Some((piece, follower))
    })
    .boxed()
}

struct LogFollower<F> {
    /// `None` at the end.
    reader: Option<LogReader>,
    /// The error that ends the stream, after the data before it.
    error: Option<io::Error>,
    is_running: F,
    running: bool,
    checked: Option<Instant>,
    /// Whether inotify was set up, with or without success.
    watching: bool,
    /// `None` if inotify is not available.
    watch: Option<DirectoryWatch>,
}

impl<F, R> LogFollower<F>
where
    F: Fn() -> R + Send + 'static,
    R: Future<Output = Result<bool>> + Send + 'static,
{
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if let Some(error) = self.error.take() {
                return Some(Err(error));
            }
            let mut reader = self.reader.take()?;
            let path = reader.path().to_owned();
            let read = tokio::task::spawn_blocking(move || {
                let mut out = Vec::new();
                let progress = loop {
                    match reader.read(&mut out) {
                        Ok(Progress::More) if out.len() < CHUNK => {}
                        // The file may have been rotated.
                        Ok(Progress::End) => match reader.reopen() {
                            Ok(true) if out.len() < CHUNK => {}
                            Ok(true) => break Ok(Progress::More),
                            Ok(false) => break Ok(Progress::End),
                            Err(error) => break Err(error),
                        },
                        progress => break progress,
                    }
                };
                (reader, out, progress)
            });
            let (reader, out, progress) = match read.await {
                Ok(read) => read,
                Err(error) => return Some(Err(io::Error::other(error))),
            };
            match progress {
                Ok(Progress::More) => self.reader = Some(reader),
                Ok(Progress::End) => {
                    self.reader = Some(reader);
                    if out.is_empty() {
                        self.wait(&path).await?;
                    }
                }
                Ok(Progress::Done) => {}
                Err(error) => self.error = Some(error),
            }
            if !out.is_empty() {
                return Some(Ok(Bytes::from(out)));
            }
        }
    }

    /// Waits at the end of the file; `None` if the container has exited and everything is read.
    async fn wait(&mut self, path: &Path) -> Option<()> {
        if !self.running {
            return None;
        }
        if !self.watching {
            self.watching = true;
            // Data that was written before the watch caused no event, so read once more.
            self.watch = path.parent().and_then(|directory| DirectoryWatch::new(directory).ok());
            return Some(());
        }
        let due = self.checked.is_none_or(|checked| checked.elapsed() >= CHECK_RUNNING);
        if due {
            self.checked = Some(Instant::now());
            self.running = match (self.is_running)().await {
                Ok(running) => running,
                Err(error) => matches!(error.kind(), Kind::Unavailable),
            };
            if !self.running {
                return Some(());
            }
        }
        let changed = async {
            match &self.watch {
                Some(watch) => watch.changed().await,
                None => std::future::pending().await,
            }
        };
        // There may be no more data: check soon whether the container runs.
        let wait = if due { POLL } else { CHECK_RUNNING };
        let _ = tokio::time::timeout(wait, changed).await;
        Some(())
    }
}

/// An inotify watch of a directory.
struct DirectoryWatch(pipe::Receiver);

impl DirectoryWatch {
    fn new(directory: &Path) -> io::Result<Self> {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let events = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        inotify::add_watch(&queue, directory, events)?;
        // An inotify queue can be read like a pipe, and tokio supports that without unsafe code.
        pipe::Receiver::from_owned_fd_unchecked(queue).map(Self)
    }

    /// Resolves when something changed since the last call.
    async fn changed(&self) {
        if self.0.readable().await.is_err() {
            return std::future::pending().await;
        }
        let mut events = [0_u8; 4096];
        // The events do not matter: the file is read.
        while self.0.try_read(&mut events).is_ok_and(|read| read > 0) {}
    }
}
