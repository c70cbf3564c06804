//! The directories of a pod: its volumes, `/etc/hosts`, termination messages.
//!
//! | kind | implementation |
//! |---|---|
//! | `emptyDir` | a directory; with `medium: Memory` a tmpfs with the size limit of a kubelet; huge pages. `sizeLimit` on disk is not enforced: a kubelet does that by eviction |
//! | `configMap`, `secret`, `projected`, `downwardAPI` | files from the [`Resolver`](vk_provider::resolve::Resolver), all but the first in memory, updated atomically |
//! | `hostPath` | the path, checked or created by its type |
//! | `persistentVolumeClaim`, `ephemeral` | the path, if the volume is `hostPath` or `local` |
//! | `image` | nothing on the host: the runtime mounts it ([`images`]) |
//! | all else, and `volumeDevices` | an error that names the volume and its kind |
//!
//! As in a kubelet, only volumes that a container mounts are set up. Setup can be repeated, also by the next process, and leaves existing
//! volumes unchanged. Only memory volumes and `subPath` need the privilege to mount.

mod empty_dir;
mod file_volume;
mod host_path;
mod memory_size;
mod mount_points;
mod mount_table;
mod mounts;
mod pod_dirs;
mod setup;
mod source;
mod sub_path;
pub mod termination_message;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use k8s_openapi::api::core::v1::{Container, Volume};
use parking_lot::Mutex;
use tokio::{
    sync::{RwLock, watch},
    task::JoinSet,
};
use vk_provider::{Error, PodBundle, Result};
use vk_supervisor::Clock;

use self::file_volume::VolumeState;
pub use self::{
    mount_table::unmount_below,
    mounts::MountOptions,
    pod_dirs::PodDirs,
    source::{ImageVolume, images},
};
use crate::{backend::Mount, status::FailureReason};

/// The volumes of one pod. Dropping it ends their updates; the files on disk stay for the next process.
#[derive(Debug)]
pub struct PodVolumes {
    context: Arc<VolumeContext>,
    /// Tasks that write the files of volumes.
    writers: Mutex<JoinSet<()>>,
    /// Serializes setup and tear-down.
    setup: tokio::sync::Mutex<()>,
    /// The last change that `ready` has seen.
    seen: AtomicU64,
}

#[derive(Debug)]
struct VolumeContext {
    dirs: PodDirs,
    uid: Box<str>,
    clock: Clock,
    volumes: Mutex<BTreeMap<String, VolumeEntry>>,
    /// Counts changes of volumes.
    changes: watch::Sender<u64>,
    /// Held by all work on the disk: shared while files are written, else exclusive. Work goes on when its caller is cancelled, so it is
    /// taken before the work begins, and who has it knows that none is under way.
    disk: Arc<RwLock<()>>,
}

#[derive(Clone, Debug)]
struct VolumeEntry {
    location: VolumeLocation,
    is_empty_dir: bool,
    state: VolumeState,
    /// Whether its source ended before it had files: setup must start again.
    has_given_up: bool,
}

/// The location of a volume on the host.
#[derive(Clone, Debug)]
struct VolumeLocation {
    /// The path; `None` for an image.
    path: Option<PathBuf>,
    /// Whether it is read-only.
    read_only: bool,
    /// Whether the engine created it, so that it may be relabelled.
    managed: bool,
}

/// A volume that could not be set up.
#[derive(Debug)]
pub struct VolumeFailure {
    /// Its name.
    pub volume: String,
    /// Why.
    pub error: Error,
    /// Whether the resolver has recorded the event already.
    pub reported: bool,
}

impl VolumeFailure {
    /// The kubelet's message of the event `FailedMount`.
    pub fn message(&self) -> String {
        format!("MountVolume.SetUp failed for volume {:?} : {}", self.volume, self.error.report())
    }
}

impl PodVolumes {
    /// The volumes of the pod with this UID; none is set up yet.
    pub fn new(dirs: &PodDirs, uid: &str, clock: Clock) -> Self {
        let (changes, _) = watch::channel(0);
        let context = VolumeContext {
            dirs: dirs.clone(),
            uid: uid.into(),
            clock,
            volumes: Mutex::default(),
            changes,
            disk: Arc::default(),
        };
        Self {
            context: Arc::new(context),
            writers: Mutex::default(),
            setup: tokio::sync::Mutex::default(),
            seen: AtomicU64::new(0),
        }
    }

    /// Sets up all volumes that containers of the pod mount, and returns the failures. It is cheap if all are set up. It can be retried at any
    /// time; [`changed`](Self::changed) resolves when a retry may succeed.
    pub async fn ready(&self, bundle: &PodBundle) -> Result<(), Vec<VolumeFailure>> {
        let _held = self.setup.lock().await;
        let mut changes = self.context.changes.subscribe();
        let wanted: Vec<&Volume> = source::mounted(&bundle.pod).collect();
        let missing: Vec<&Volume> =
            wanted.iter().copied().filter(|volume| !self.has_volume(&volume.name)).collect();
        let mut failures = self.set_up_all(&missing, bundle).await;
        // The writers of file volumes set their states.
        loop {
            let change = *changes.borrow_and_update();
            let known = self.context.volumes.lock().clone();
            let states =
                || wanted.iter().filter_map(|volume| Some((volume, &known.get(&volume.name)?.state)));
            if states().any(|(_, state)| matches!(state, VolumeState::Pending)) {
                // The sender is in `self`, so this cannot fail.
                let _ = changes.changed().await;
                continue;
            }
            failures.extend(states().filter_map(|(volume, state)| match state {
                VolumeState::Failed { kind, message, reported } => Some(VolumeFailure {
                    volume: volume.name.clone(),
                    error: Error::new(kind.clone(), message.clone()),
                    reported: *reported,
                }),
                _ => None,
            }));
            self.seen.store(change, Ordering::Relaxed);
            break;
        }
        if failures.is_empty() { Ok(()) } else { Err(failures) }
    }

    /// The receiver for [`changed`](Self::changed).
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.context.changes.subscribe()
    }

    /// Resolves when [`ready`](Self::ready) may return another result because the state of a file volume changed. It resolves once for each
    /// change, whether `ready` is called or not.
    pub async fn changed(&self, changes: &mut watch::Receiver<u64>) {
        // The sender is in `self`, so this cannot fail.
        while changes.changed().await.is_ok() {
            if *changes.borrow_and_update() > self.seen.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// The paths of the pod's empty directories by volume name, for [`Facts::volumes`](vk_provider::resolve::Facts::volumes).
    pub fn facts(&self) -> BTreeMap<String, PathBuf> {
        let known = self.context.volumes.lock();
        let empty = known.iter().filter(|(_, known)| known.is_empty_dir);
        empty.filter_map(|(name, known)| Some((name.clone(), known.location.path.clone()?))).collect()
    }

    /// The mounts of a container's `volumeMounts`, in their order. `env` is the container's environment. A failure is
    /// `CreateContainerConfigError` with the kubelet's message.
    pub async fn mounts(
        &self,
        container: &Container,
        env: &[(String, String)],
        options: &MountOptions<'_>,
    ) -> Result<Vec<Mount>, FailureReason> {
        if let Some(device) = container.volume_devices.iter().flatten().next() {
            let (volume, container) = (&device.name, &container.name);
            let message = format!("cannot find volume {volume:?} to pass into container {container:?}");
            return Err(mounts::config_error(message));
        }
        let locations = {
            let known = self.context.volumes.lock();
            let ready = known.iter().filter(|(_, known)| matches!(known.state, VolumeState::Ready));
            ready.map(|(name, known)| (name.clone(), known.location.clone())).collect()
        };
        let VolumeContext { dirs, uid, .. } = &*self.context;
        let pending = mounts::pending_mounts(dirs, uid, &locations, container, env, options)
            .map_err(mounts::config_error)?;
        let name = container.name.clone();
        let made = self.context.on_disk(move || Ok(mounts::mount_sub_paths(pending, &name))).await;
        made.map_err(|error| mounts::config_error(error.report()))?
    }

    /// Ends updates and removes the volumes of the pod, which has terminated. Termination messages stay until [`PodDirs::tear_down`].
    pub async fn tear_down(&self) -> Result<()> {
        let _held = self.setup.lock().await;
        let mut writers = std::mem::take(&mut *self.writers.lock());
        self.context.volumes.lock().clear();
        writers.shutdown().await;
        let context = Arc::clone(&self.context);
        self.context.on_disk(move || context.dirs.tear_down_volumes(&context.uid)).await
    }
}

impl VolumeContext {
    /// Runs work on the disk, one at a time for this pod.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let held = Arc::clone(&self.disk).write_owned().await;
        blocking(move || {
            let _held = held;
            work()
        })
        .await
    }

    fn set_state(&self, volume: &str, state: VolumeState) {
        if let Some(known) = self.volumes.lock().get_mut(volume) {
            known.state = state;
        }
        self.changes.send_modify(|change| *change += 1);
    }

    /// The source of a file volume ended.
    fn source_ended(&self, volume: &str) {
        let mut all = self.volumes.lock();
        let Some(known) = all.get_mut(volume) else { return };
        known.has_given_up = !matches!(known.state, VolumeState::Ready);
        if !matches!(known.state, VolumeState::Pending) {
            return;
        }
        let error = Error::not_found("the pod's references are no longer resolved");
        known.state = VolumeState::failed(&error, false);
        drop(all);
        self.changes.send_modify(|change| *change += 1);
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::internal("run file system work").caused_by(error))?
}

#[cfg(test)]
mod tests;
