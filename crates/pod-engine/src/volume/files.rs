//! Files that the resolver gives, as they are and as they become.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::BoxStream};
use parking_lot::RwLock;
use vk_files::AtomicWriter;
use vk_provider::{Error, Result, error::Kind, resolve::FileSet};
use vk_supervisor::Clock;

/// The first and the longest wait before a set is written again that could not be written.
const AGAIN: Duration = Duration::from_secs(1);
const AT_LAST: Duration = Duration::from_secs(30);

/// How a volume stands.
#[derive(Clone, Debug)]
pub(super) enum Standing {
    /// Nothing is known yet.
    Pending,
    /// It can be mounted.
    Ready,
    /// It cannot.
    Failed {
        kind: Kind,
        message: String,
        /// Whether the resolver has told it.
        told: bool,
    },
}

impl Standing {
    pub(super) fn failed(error: &Error, told: bool) -> Self {
        Self::Failed { kind: error.kind().clone(), message: error.report(), told }
    }
}

/// Writes every set that comes, for as long as they come. What was shown once is shown until there is something better: a
/// ConfigMap that is deleted does not take its files away.
pub(super) async fn follow(
    mut sets: BoxStream<'static, Result<FileSet>>,
    writer: AtomicWriter,
    writing: Arc<RwLock<()>>,
    clock: Clock,
    tell: impl Fn(Standing) + Send,
) {
    let mut writer = Some(writer);
    let mut unwritten: Option<FileSet> = None;
    let mut wait = AGAIN;
    let mut shown = false;
    let mut over = false;
    loop {
        if over && unwritten.is_none() {
            return;
        }
        tokio::select! {
            item = sets.next(), if !over => match item {
                Some(Ok(set)) => (unwritten, wait) = (Some(set), AGAIN),
                Some(Err(error)) => {
                    if !shown {
                        tell(Standing::failed(&error, true));
                    }
                    continue;
                }
                None => {
                    over = true;
                    continue;
                }
            },
            () = tokio::time::sleep(wait), if unwritten.is_some() => wait = AT_LAST.min(wait * 2),
        }
        let (Some(set), Some(mut busy)) = (unwritten.take(), writer.take()) else { return };
        let (now, held) = (clock.now(), Arc::clone(&writing));
        let written = tokio::task::spawn_blocking(move || {
            let _held = held.read();
            let written = busy.write(&set, now);
            (busy, set, written)
        });
        // A panic in there is the runtime's end: nothing is left to write with.
        let Ok((back, set, written)) = written.await else { return };
        writer = Some(back);
        match written {
            Ok(_) => {
                shown = true;
                tell(Standing::Ready);
            }
            Err(error) => {
                unwritten = Some(set);
                let error = Error::internal("write the files").caused_by(error);
                tracing::warn!(error = error.report(), "the files of a volume could not be written");
                if !shown {
                    tell(Standing::failed(&error, false));
                }
            }
        }
    }
}
