//! How volumes are made.

use std::sync::Arc;

use futures::future;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume};
use vk_files::{AtomicWriter, RootDir};
use vk_provider::{Error, PodBundle, Result, quantity::Quantity};

use super::{
    Failure, Known, Placed, Shared, Volumes,
    empty::{Empty, Medium},
    files::{self, Standing},
    host::{self, Local},
    nested, size,
    source::{self, Source},
    system,
};

pub(super) const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
const LOCAL: &str = "kubernetes.io~local-volume";

impl Volumes {
    /// Whether nothing is to be made: it stands, or somebody is at it.
    pub(super) fn is_there(&self, volume: &str) -> bool {
        self.shared.known.lock().get(volume).is_some_and(|known| !known.is_given_up)
    }

    pub(super) async fn make_all(&self, missing: &[&Volume], bundle: &PodBundle) -> Vec<Failure> {
        if missing.is_empty() {
            return Vec::new();
        }
        // Those that were given up begin anew.
        self.shared.known.lock().retain(|name, _| !missing.iter().any(|volume| volume.name == *name));
        let shared = Arc::clone(&self.shared);
        if let Err(error) = self.shared.work(move || shared.place.make_pod(&shared.uid)).await {
            let again = || Error::new(error.kind().clone(), error.report());
            let failure =
                |volume: &&Volume| Failure { volume: volume.name.clone(), error: again(), told: false };
            return missing.iter().map(failure).collect();
        }
        let made = future::join_all(missing.iter().map(|volume| self.make(volume, bundle))).await;
        made.into_iter().flatten().collect()
    }

    async fn make(&self, volume: &Volume, bundle: &PodBundle) -> Option<Failure> {
        let made = match source::block_device(&bundle.pod, &volume.name) {
            Some(error) => Err(error),
            None => self.try_make(volume, bundle).await,
        };
        let error = made.err()?;
        Some(Failure { volume: volume.name.clone(), error, told: false })
    }

    async fn try_make(&self, volume: &Volume, bundle: &PodBundle) -> Result<()> {
        if !system::is_name(&volume.name) {
            return Err(Error::invalid(format!("volume {:?}: this cannot be a name", volume.name)));
        }
        let source = Source::of(volume, &bundle.pod)?;
        let is_empty_dir = matches!(source, Source::Empty(_));
        let placed = match source {
            Source::Empty(source) => {
                let empty = self.empty_dir(volume, &source, bundle)?;
                let path = Some(empty.path.clone());
                self.shared.work(move || empty.make()).await?;
                Placed { path, read_only: false, managed: true }
            }
            Source::Host(source) => {
                let path = self.shared.work(move || host::check(&source)).await?;
                Placed { path: Some(path), read_only: false, managed: false }
            }
            Source::Files { kind, memory } => return self.start_files(volume, kind, memory, bundle).await,
            Source::Claim { name, read_only } => self.claimed(volume, &name, read_only, bundle).await?,
            Source::Image => Placed { path: None, read_only: true, managed: false },
        };
        let known = Known { placed, is_empty_dir, standing: Standing::Ready, is_given_up: false };
        self.shared.known.lock().insert(volume.name.clone(), known);
        Ok(())
    }

    fn empty_dir(&self, volume: &Volume, source: &EmptyDirVolumeSource, bundle: &PodBundle) -> Result<Empty> {
        let medium = match source.medium.as_deref().unwrap_or_default() {
            "" => Medium::Disk,
            "Memory" => Medium::Memory { size: memory_size(bundle, Some(source)), needed: true },
            medium if medium == "HugePages" || medium.starts_with("HugePages-") => {
                Medium::HugePages(size::huge_page(&bundle.pod, medium).map_err(Error::invalid)?)
            }
            other => return Err(Error::invalid(format!("unknown storage medium {other:?}"))),
        };
        let Shared { place, uid, .. } = &*self.shared;
        Ok(Empty {
            path: place.volume(uid, EMPTY_DIR, &volume.name),
            mark: place.mark(uid, EMPTY_DIR, &volume.name),
            medium,
            group: group(&bundle.pod),
        })
    }

    /// A volume of files: its directory, and a task that writes what comes. How it stands the task tells.
    async fn start_files(
        &self,
        volume: &Volume,
        kind: &'static str,
        memory: bool,
        bundle: &PodBundle,
    ) -> Result<()> {
        let Shared { place, uid, clock, writing, .. } = &*self.shared;
        let medium = if memory {
            Medium::Memory { size: memory_size(bundle, None), needed: false }
        } else {
            Medium::Disk
        };
        let group = group(&bundle.pod);
        let path = place.volume(uid, kind, &volume.name);
        let empty = Empty { path: path.clone(), mark: place.mark(uid, kind, &volume.name), medium, group };
        let points = nested::mount_points(&bundle.pod, &volume.name)?;
        let opened = path.clone();
        let writer = self
            .shared
            .work(move || {
                let failed = |error| Error::internal("make a volume of files").caused_by(error);
                empty.make()?;
                let root = RootDir::open(&opened).map_err(failed)?;
                for point in points {
                    root.create_dirs(&point, 0o755).map_err(failed)?;
                }
                Ok(AtomicWriter::open(&opened).map_err(failed)?.group(group))
            })
            .await?;
        let placed = Placed { path: Some(path), read_only: true, managed: true };
        let known = Known { placed, is_empty_dir: false, standing: Standing::Pending, is_given_up: false };
        self.shared.known.lock().insert(volume.name.clone(), known);
        let (shared, name) = (Arc::clone(&self.shared), volume.name.clone());
        let (sets, clock, writing) = (bundle.resolver.volume(&name), clock.clone(), Arc::clone(writing));
        self.writers.lock().spawn(async move {
            // Also a panic is an end, and somebody may wait for it.
            let ended = Ended { shared, name };
            let tell = |standing| ended.shared.stands(&ended.name, standing);
            files::follow(sets, writer, writing, clock, tell).await;
        });
        Ok(())
    }

    async fn claimed(
        &self,
        volume: &Volume,
        claim: &str,
        read_only: bool,
        bundle: &PodBundle,
    ) -> Result<Placed> {
        let claim = bundle.resolver.claim(claim).await?;
        if volume.ephemeral.is_some() {
            source::check_owner(&bundle.pod, &claim.claim)?;
        }
        let spec = claim.volume.spec.clone().unwrap_or_default();
        if let Some(mode) = spec.volume_mode.as_deref().filter(|mode| *mode != "Filesystem") {
            let message =
                format!("volume {} has volumeMode {mode}, but is specified in volumeMounts", volume.name);
            return Err(Error::unsupported(message));
        }
        if let Some(source) = spec.host_path {
            let path = self.shared.work(move || host::check(&source)).await?;
            return Ok(Placed { path: Some(path), read_only, managed: false });
        }
        let Some(source) = spec.local else { return Err(source::unsupported(&claim.volume)) };
        let Shared { place, uid, .. } = &*self.shared;
        let security = bundle.pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
        let policy = security.and_then(|security| security.fs_group_change_policy.as_deref());
        let local = Local {
            source,
            name: claim.volume.metadata.name.clone().unwrap_or_default(),
            mark: place.mark(uid, LOCAL, &volume.name),
            read_only,
            group: group(&bundle.pod),
            only_on_mismatch: policy == Some("OnRootMismatch"),
        };
        let path = self.shared.work(move || local.make()).await?;
        Ok(Placed { path: Some(path), read_only, managed: true })
    }
}

/// Tells when it is dropped that no more files come.
struct Ended {
    shared: Arc<Shared>,
    name: String,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.shared.ended(&self.name);
    }
}

/// The pod's `fsGroup`.
fn group(pod: &Pod) -> Option<u32> {
    let group = pod.spec.as_ref()?.security_context.as_ref()?.fs_group?;
    u32::try_from(group).ok()
}

fn memory_size(bundle: &PodBundle, source: Option<&EmptyDirVolumeSource>) -> Option<u64> {
    let allocatable = bundle.resolver.node().allocatable.get("memory").copied().map(Quantity::to_units);
    size::memory(&bundle.pod, source, allocatable)
}
