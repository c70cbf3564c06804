//! Volumes of files from the resolver, which are updated while the pod runs.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::BoxStream};
use tokio::sync::RwLock;
use vk_files::AtomicWriter;
use vk_provider::{Error, Result, error::Kind, resolve::FileSet};
use vk_supervisor::Clock;

/// The first and the longest delay before a failed write is retried.
const RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(30);

/// The state of a volume.
#[derive(Clone, Debug)]
pub(super) enum VolumeState {
    /// Not set up yet.
    Pending,
    /// It can be mounted.
    Ready,
    /// It cannot be mounted.
    Failed {
        kind: Kind,
        message: String,
        /// Whether the resolver has recorded the event.
        reported: bool,
    },
}

impl VolumeState {
    pub(super) fn failed(error: &Error, reported: bool) -> Self {
        Self::Failed { kind: error.kind().clone(), message: error.report(), reported }
    }
}

/// Writes every file set of the stream. The last written files stay: deleting a ConfigMap does not remove its files.
pub(super) async fn follow(
    mut sets: BoxStream<'static, Result<FileSet>>,
    writer: AtomicWriter,
    disk: Arc<RwLock<()>>,
    clock: Clock,
    set_state: impl Fn(VolumeState) + Send,
) {
    let mut writer = Some(writer);
    let mut unwritten: Option<FileSet> = None;
    let mut wait = RETRY;
    let mut shown = false;
    let mut over = false;
    loop {
        if over && unwritten.is_none() {
            return;
        }
        tokio::select! {
            item = sets.next(), if !over => match item {
                Some(Ok(set)) => (unwritten, wait) = (Some(set), RETRY),
                Some(Err(error)) => {
                    if !shown {
                        set_state(VolumeState::failed(&error, true));
                    }
                    continue;
                }
                None => {
                    over = true;
                    continue;
                }
            },
            () = tokio::time::sleep(wait), if unwritten.is_some() => wait = MAX_RETRY.min(wait * 2),
        }
        let (Some(set), Some(mut busy)) = (unwritten.take(), writer.take()) else { return };
        let (now, held) = (clock.now(), Arc::clone(&disk).read_owned().await);
        let written = tokio::task::spawn_blocking(move || {
            let _held = held;
            let written = busy.write(&set, now);
            (busy, set, written)
        });
        // A panic dropped the writer: nothing more can be written.
        let Ok((back, set, written)) = written.await else { return };
        writer = Some(back);
        match written {
            Ok(_) => {
                shown = true;
                set_state(VolumeState::Ready);
            }
            Err(error) => {
                unwritten = Some(set);
                let error = Error::internal("write the files").caused_by(error);
                tracing::warn!(error = error.report(), "cannot write the files of a volume");
                if !shown {
                    set_state(VolumeState::failed(&error, false));
                }
            }
        }
    }
}
