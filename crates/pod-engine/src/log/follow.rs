//! A log as a stream, and what it waits for.

use std::{io, path::Path, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::{net::unix::pipe, time::Instant};
use vk_provider::{Result, ability::LogStream, error::Kind};

use super::cursor::{Cursor, Progress};

/// How much is handed on at once.
const PIECE: usize = 64 * 1024;
/// The file is looked at this often though nothing was heard: events can be lost, and some file systems have none.
const LOOK: Duration = Duration::from_secs(1);
/// The runtime is asked no more often than this, however much is written.
const ASK: Duration = Duration::from_millis(250);

/// What the cursor shows, to the end of the file or of the container.
pub(super) fn stream<F, R>(cursor: Cursor, is_running: F) -> LogStream
where
    F: Fn() -> R + Send + 'static,
    R: Future<Output = Result<bool>> + Send + 'static,
{
    let following = Following {
        cursor: Some(cursor),
        fault: None,
        is_running,
        running: true,
        asked: None,
        watching: false,
        watch: None,
    };
    stream::unfold(following, |mut following| async move {
        let piece = following.next().await?;
        Some((piece, following))
    })
    .boxed()
}

struct Following<F> {
    /// Gone when all is said.
    cursor: Option<Cursor>,
    /// What ends it, after what was read before.
    fault: Option<io::Error>,
    is_running: F,
    running: bool,
    asked: Option<Instant>,
    /// Whether there was an attempt to be told.
    watching: bool,
    /// `None` where we cannot be told, and look.
    watch: Option<Watch>,
}

impl<F, R> Following<F>
where
    F: Fn() -> R + Send + 'static,
    R: Future<Output = Result<bool>> + Send + 'static,
{
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if let Some(fault) = self.fault.take() {
                return Some(Err(fault));
            }
            let mut cursor = self.cursor.take()?;
            let path = cursor.path().to_owned();
            let read = tokio::task::spawn_blocking(move || {
                let mut out = Vec::new();
                let progress = loop {
                    match cursor.read(&mut out) {
                        Ok(Progress::More) if out.len() < PIECE => {}
                        // All is read: there may be another file.
                        Ok(Progress::End) => match cursor.renew() {
                            Ok(true) if out.len() < PIECE => {}
                            Ok(true) => break Ok(Progress::More),
                            Ok(false) => break Ok(Progress::End),
                            Err(error) => break Err(error),
                        },
                        progress => break progress,
                    }
                };
                (cursor, out, progress)
            });
            let (cursor, out, progress) = match read.await {
                Ok(read) => read,
                Err(error) => return Some(Err(io::Error::other(error))),
            };
            match progress {
                Ok(Progress::More) => self.cursor = Some(cursor),
                Ok(Progress::End) => {
                    self.cursor = Some(cursor);
                    if out.is_empty() {
                        self.wait(&path).await?;
                    }
                }
                Ok(Progress::Over) => {}
                Err(fault) => self.fault = Some(fault),
            }
            if !out.is_empty() {
                return Some(Ok(Bytes::from(out)));
            }
        }
    }

    /// Waits at the end of the file; `None` where the container has ended and all is read.
    async fn wait(&mut self, path: &Path) -> Option<()> {
        if !self.running {
            return None;
        }
        if !self.watching {
            self.watching = true;
            // What was written before we watched told us nothing, so there is a read in between.
            self.watch = path.parent().and_then(|directory| Watch::new(directory).ok());
            return Some(());
        }
        let due = self.asked.is_none_or(|asked| asked.elapsed() >= ASK);
        if due {
            self.asked = Some(Instant::now());
            self.running = match (self.is_running)().await {
                Ok(running) => running,
                Err(error) => matches!(error.kind(), Kind::Unavailable),
            };
            if !self.running {
                return Some(());
            }
        }
        let told = async {
            match &self.watch {
                Some(watch) => watch.told().await,
                None => std::future::pending().await,
            }
        };
        // Nothing may come any more: then the runtime is to be asked soon.
        let wait = if due { LOOK } else { ASK };
        let _ = tokio::time::timeout(wait, told).await;
        Some(())
    }
}

/// Tells when something happens in a directory.
struct Watch(pipe::Receiver);

impl Watch {
    fn new(directory: &Path) -> io::Result<Self> {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let events = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        inotify::add_watch(&queue, directory, events)?;
        // To its reader the kernel's queue of events is what a pipe is, and this is what tokio has for that without unsafe code.
        pipe::Receiver::from_owned_fd_unchecked(queue).map(Self)
    }

    /// Resolves when something has happened since the last time.
    async fn told(&self) {
        if self.0.readable().await.is_err() {
            return std::future::pending().await;
        }
        let mut events = [0_u8; 4096];
        // What has happened does not matter: the file is looked at.
        while self.0.try_read(&mut events).is_ok_and(|read| read > 0) {}
    }
}
