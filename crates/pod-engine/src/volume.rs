//! The directories of a pod: its volumes, `/etc/hosts`, termination messages.
//!
//! | kind | what it is here |
//! |---|---|
//! | `emptyDir` | a directory; with `medium: Memory` a tmpfs as large as a kubelet makes it; huge pages. `sizeLimit` on disk is not enforced: a kubelet does it by eviction |
//! | `configMap`, `secret`, `projected`, `downwardAPI` | files from the [`Resolver`](vk_provider::resolve::Resolver), all but the first in memory, changed as one while the pod lives |
//! | `hostPath` | the path, checked or made by its type |
//! | `persistentVolumeClaim`, `ephemeral` | the path, where the volume is a `hostPath` or `local` one |
//! | `image` | nothing on this machine: the runtime mounts it ([`images`]) |
//! | all else, and `volumeDevices` | an error that names the volume and its kind |
//!
//! Like a kubelet we make only what a container mounts. Everything can be made again, by this process or the one after it, and is
//! left as it is where it is there. Nothing here needs rights to mount but what is mounted: memory volumes of users, and `subPath`.

mod empty;
mod files;
mod host;
mod making;
pub mod message;
mod mounts;
mod nested;
mod place;
mod size;
mod source;
mod sub_path;
mod system;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use k8s_openapi::api::core::v1::{Container, Volume};
use parking_lot::{Mutex, RwLock};
use tokio::{sync::watch, task::JoinSet};
use vk_provider::{Error, PodBundle, Result};
use vk_supervisor::Clock;

use self::files::Standing;
pub(crate) use self::system::quoted;
pub use self::{
    mounts::With,
    place::Place,
    source::{ImageVolume, images},
    system::unmount_below,
};
use crate::{backend::Mount, status::Trouble};

/// The volumes of one pod. Dropping it ends their updates and nothing else: what is on the disk is there for the next one.
#[derive(Debug)]
pub struct Volumes {
    shared: Arc<Shared>,
    /// Who writes the files that change.
    writers: Mutex<JoinSet<()>>,
    /// One at a time makes volumes.
    making: tokio::sync::Mutex<()>,
    /// What `ready` has seen.
    seen: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    place: Place,
    uid: Box<str>,
    clock: Clock,
    known: Mutex<BTreeMap<String, Known>>,
    /// Counts what has happened to volumes.
    turns: watch::Sender<u64>,
    /// Held while files are written: a write that has begun goes to its end, whatever becomes of who waits for it.
    writing: Arc<RwLock<()>>,
    /// Held while something is made or mounted, for the same reason: whoever waited may be gone and ask again.
    at_work: Arc<Mutex<()>>,
}

#[derive(Clone, Debug)]
struct Known {
    placed: Placed,
    is_empty_dir: bool,
    standing: Standing,
    /// Whether it never had files, and none will come: it is to be tried anew when somebody asks again.
    is_given_up: bool,
}

/// A volume on this machine.
#[derive(Clone, Debug)]
struct Placed {
    /// Where it is; `None` for an image.
    path: Option<PathBuf>,
    /// Whether nobody may write it.
    read_only: bool,
    /// Whether it is ours, so that its labels may be changed.
    managed: bool,
}

/// A volume that could not be made.
#[derive(Debug)]
pub struct Failure {
    /// Its name.
    pub volume: String,
    /// Why.
    pub error: Error,
    /// Whether the resolver has sent the event already.
    pub told: bool,
}

impl Failure {
    /// The message of the event `FailedMount`, in a kubelet's words.
    pub fn message(&self) -> String {
        format!("MountVolume.SetUp failed for volume {:?} : {}", self.volume, self.error.report())
    }
}

impl Volumes {
    /// The volumes of the pod with this UID. Nothing is made yet.
    pub fn new(place: &Place, uid: &str, clock: Clock) -> Self {
        let (turns, _) = watch::channel(0);
        let shared = Shared {
            place: place.clone(),
            uid: uid.into(),
            clock,
            known: Mutex::default(),
            turns,
            writing: Arc::default(),
            at_work: Arc::default(),
        };
        Self {
            shared: Arc::new(shared),
            writers: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            seen: AtomicU64::new(0),
        }
    }

    /// Makes all volumes that containers of the pod mount and that are not made yet, and tells which cannot be had now. Cheap where
    /// all is there. What fails may be tried again at any time; [`changed`](Self::changed) tells when it is worth it.
    pub async fn ready(&self, bundle: &PodBundle) -> Result<(), Vec<Failure>> {
        let _one = self.making.lock().await;
        let mut turns = self.shared.turns.subscribe();
        let wanted: Vec<&Volume> = source::mounted(&bundle.pod).collect();
        let missing: Vec<&Volume> =
            wanted.iter().copied().filter(|volume| !self.is_there(&volume.name)).collect();
        let mut failures = self.make_all(&missing, bundle).await;
        // Those with files stand where their writers say, as soon as they say anything.
        loop {
            let turn = *turns.borrow_and_update();
            let known = self.shared.known.lock().clone();
            let standings =
                || wanted.iter().filter_map(|volume| Some((volume, &known.get(&volume.name)?.standing)));
            if standings().any(|(_, standing)| matches!(standing, Standing::Pending)) {
                // The sender is ours, so there is no error.
                let _ = turns.changed().await;
                continue;
            }
            failures.extend(standings().filter_map(|(volume, standing)| match standing {
                Standing::Failed { kind, message, told } => Some(Failure {
                    volume: volume.name.clone(),
                    error: Error::new(kind.clone(), message.clone()),
                    told: *told,
                }),
                _ => None,
            }));
            self.seen.store(turn, Ordering::Relaxed);
            break;
        }
        if failures.is_empty() { Ok(()) } else { Err(failures) }
    }

    /// The changes from now on, for [`changed`](Self::changed).
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.turns.subscribe()
    }

    /// Resolves when [`ready`](Self::ready) may answer otherwise than it did last, because a file volume has changed its standing.
    /// Once for a change, whether anybody asks `ready` then or not: who cannot ask now shall not be called again and again.
    pub async fn changed(&self, changes: &mut watch::Receiver<u64>) {
        // The sender is ours, so there is no error.
        while changes.changed().await.is_ok() {
            if *changes.borrow_and_update() > self.seen.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Where the pod's empty directories are, by the volume's name: for [`Facts::volumes`](vk_provider::resolve::Facts::volumes).
    pub fn facts(&self) -> BTreeMap<String, PathBuf> {
        let known = self.shared.known.lock();
        let empty = known.iter().filter(|(_, known)| known.is_empty_dir);
        empty.filter_map(|(name, known)| Some((name.clone(), known.placed.path.clone()?))).collect()
    }

    /// What a container's `volumeMounts` are on this machine, in their order. `env` is what the container starts with. What cannot be
    /// had is a `CreateContainerConfigError`, in a kubelet's words.
    pub async fn mounts(
        &self,
        container: &Container,
        env: &[(String, String)],
        with: &With<'_>,
    ) -> Result<Vec<Mount>, Trouble> {
        if let Some(device) = container.volume_devices.iter().flatten().next() {
            let (volume, container) = (&device.name, &container.name);
            let message = format!("cannot find volume {volume:?} to pass into container {container:?}");
            return Err(mounts::trouble(message));
        }
        let placed = {
            let known = self.shared.known.lock();
            let ready = known.iter().filter(|(_, known)| matches!(known.standing, Standing::Ready));
            ready.map(|(name, known)| (name.clone(), known.placed.clone())).collect()
        };
        let Shared { place, uid, .. } = &*self.shared;
        let wanted = mounts::wanted(place, uid, &placed, container, env, with).map_err(mounts::trouble)?;
        let name = container.name.clone();
        let made = self.shared.work(move || Ok(mounts::make(wanted, &name))).await;
        made.map_err(|error| mounts::trouble(error.report()))?
    }

    /// Ends the updates, and removes the pod's volumes: see [`Place::tear_down_volumes`].
    pub async fn tear_down(&self) -> Result<()> {
        let _one = self.making.lock().await;
        let mut writers = std::mem::take(&mut *self.writers.lock());
        self.shared.known.lock().clear();
        writers.shutdown().await;
        // What has begun goes to its end first.
        let writing = Arc::clone(&self.shared.writing);
        let begun = move || {
            drop(writing.write());
            Ok(())
        };
        self.shared.work(begun).await?;
        self.shared.place.tear_down_volumes(&self.shared.uid).await
    }
}

impl Shared {
    /// Works on the disk, where nobody else makes something for this pod meanwhile.
    async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let at_work = Arc::clone(&self.at_work);
        blocking(move || {
            let _held = at_work.lock();
            work()
        })
        .await
    }

    fn stands(&self, volume: &str, standing: Standing) {
        if let Some(known) = self.known.lock().get_mut(volume) {
            known.standing = standing;
        }
        self.turns.send_modify(|turn| *turn += 1);
    }

    /// No more files come.
    fn ended(&self, volume: &str) {
        let mut all = self.known.lock();
        let Some(known) = all.get_mut(volume) else { return };
        known.is_given_up = !matches!(known.standing, Standing::Ready);
        if !matches!(known.standing, Standing::Pending) {
            return;
        }
        let error = Error::not_found("the pod's references are not resolved any more");
        known.standing = Standing::failed(&error, false);
        drop(all);
        self.turns.send_modify(|turn| *turn += 1);
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::internal("work on the file system").caused_by(error))?
}

#[cfg(test)]
mod tests;
