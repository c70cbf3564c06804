//! Setup of volumes.

use std::sync::Arc;

use futures::future;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume};
use vk_files::{AtomicWriter, RootDir};
use vk_provider::{Error, PodBundle, Result, quantity::Quantity, resolve::TokenLifetime};

use super::{
    PodVolumes, VolumeContext, VolumeEntry, VolumeFailure, VolumeLocation,
    empty_dir::{EmptyDir, Medium},
    file_volume::{self, VolumeState},
    host_path::{self, LocalVolume},
    memory_size, mount_points, mount_table,
    source::{self, VolumeSource},
};

pub(super) const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
const LOCAL: &str = "kubernetes.io~local-volume";

impl PodVolumes {
    /// Whether the volume is set up, or its setup is running.
    pub(super) fn has_volume(&self, volume: &str) -> bool {
        self.context.volumes.lock().get(volume).is_some_and(|known| !known.has_given_up)
    }

    pub(super) async fn set_up_all(&self, missing: &[&Volume], bundle: &PodBundle) -> Vec<VolumeFailure> {
        if missing.is_empty() {
            return Vec::new();
        }
        // Volumes that have given up start again.
        self.context.volumes.lock().retain(|name, _| !missing.iter().any(|volume| volume.name == *name));
        let context = Arc::clone(&self.context);
        if let Err(error) = self.context.on_disk(move || context.dirs.create_pod(&context.uid)).await {
            let again = || Error::new(error.kind().clone(), error.report());
            let failure = |volume: &&Volume| VolumeFailure {
                volume: volume.name.clone(),
                error: again(),
                reported: false,
            };
            return missing.iter().map(failure).collect();
        }
        let made = future::join_all(missing.iter().map(|volume| self.set_up(volume, bundle))).await;
        made.into_iter().flatten().collect()
    }

    async fn set_up(&self, volume: &Volume, bundle: &PodBundle) -> Option<VolumeFailure> {
        let made = match source::block_device(&bundle.pod, &volume.name) {
            Some(error) => Err(error),
            None => self.try_set_up(volume, bundle).await,
        };
        let error = made.err()?;
        Some(VolumeFailure { volume: volume.name.clone(), error, reported: false })
    }

    async fn try_set_up(&self, volume: &Volume, bundle: &PodBundle) -> Result<()> {
        if !mount_table::is_name(&volume.name) {
            return Err(Error::invalid(format!("volume {:?}: invalid name", volume.name)));
        }
        let source = VolumeSource::of(volume, &bundle.pod)?;
        let is_empty_dir = matches!(source, VolumeSource::EmptyDir(_));
        let location = match source {
            VolumeSource::EmptyDir(source) => {
                let empty = self.empty_dir(volume, &source, bundle)?;
                let path = Some(empty.path.clone());
                self.context.on_disk(move || empty.create()).await?;
                VolumeLocation { path, read_only: false, managed: true }
            }
            VolumeSource::Host(source) => {
                let path = self.context.on_disk(move || host_path::check(&source)).await?;
                VolumeLocation { path: Some(path), read_only: false, managed: false }
            }
            VolumeSource::Files { kind, memory } => {
                return self.start_files(volume, kind, memory, bundle).await;
            }
            VolumeSource::Claim { name, read_only } => self.claimed(volume, &name, read_only, bundle).await?,
            VolumeSource::Image => VolumeLocation { path: None, read_only: true, managed: false },
        };
        let known = VolumeEntry { location, is_empty_dir, state: VolumeState::Ready, has_given_up: false };
        self.context.volumes.lock().insert(volume.name.clone(), known);
        Ok(())
    }

    fn empty_dir(
        &self,
        volume: &Volume,
        source: &EmptyDirVolumeSource,
        bundle: &PodBundle,
    ) -> Result<EmptyDir> {
        let medium = match source.medium.as_deref().unwrap_or_default() {
            "" => Medium::Disk,
            "Memory" => Medium::Memory { size: memory_size(bundle, Some(source)), required: true },
            medium if medium == "HugePages" || medium.starts_with("HugePages-") => {
                Medium::HugePages(memory_size::huge_page(&bundle.pod, medium).map_err(Error::invalid)?)
            }
            other => return Err(Error::invalid(format!("unknown storage medium {other:?}"))),
        };
        let VolumeContext { dirs, uid, .. } = &*self.context;
        Ok(EmptyDir {
            path: dirs.volume(uid, EMPTY_DIR, &volume.name),
            marker: dirs.marker(uid, EMPTY_DIR, &volume.name),
            medium,
            group: group(&bundle.pod),
        })
    }

    /// Creates the directory of a file volume and starts the task that writes its files and sets its state.
    async fn start_files(
        &self,
        volume: &Volume,
        kind: &'static str,
        memory: bool,
        bundle: &PodBundle,
    ) -> Result<()> {
        let VolumeContext { dirs, uid, clock, disk, .. } = &*self.context;
        let medium = if memory {
            Medium::Memory { size: memory_size(bundle, None), required: false }
        } else {
            Medium::Disk
        };
        let group = group(&bundle.pod);
        let path = dirs.volume(uid, kind, &volume.name);
        let empty =
            EmptyDir { path: path.clone(), marker: dirs.marker(uid, kind, &volume.name), medium, group };
        let points = mount_points::mount_points(&bundle.pod, &volume.name)?;
        let opened = path.clone();
        let writer = self
            .context
            .on_disk(move || {
                let failed = |error| Error::internal("set up a volume of files").caused_by(error);
                empty.create()?;
                let root = RootDir::open(&opened).map_err(failed)?;
                for point in points {
                    root.create_dirs(&point, 0o755).map_err(failed)?;
                }
                Ok(AtomicWriter::open(&opened).map_err(failed)?.group(group))
            })
            .await?;
        let location = VolumeLocation { path: Some(path), read_only: true, managed: true };
        let known =
            VolumeEntry { location, is_empty_dir: false, state: VolumeState::Pending, has_given_up: false };
        self.context.volumes.lock().insert(volume.name.clone(), known);
        let (context, name) = (Arc::clone(&self.context), volume.name.clone());
        let (sets, clock, disk) =
            (bundle.resolver.volume(&name, TokenLifetime::Specified), clock.clone(), Arc::clone(disk));
        self.writers.lock().spawn(async move {
            // A panic ends the source too.
            let guard = WriterGuard { context, name };
            let set_state = |state| guard.context.set_state(&guard.name, state);
            file_volume::follow(sets, writer, disk, clock, set_state).await;
        });
        Ok(())
    }

    async fn claimed(
        &self,
        volume: &Volume,
        claim: &str,
        read_only: bool,
        bundle: &PodBundle,
    ) -> Result<VolumeLocation> {
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
            let path = self.context.on_disk(move || host_path::check(&source)).await?;
            return Ok(VolumeLocation { path: Some(path), read_only, managed: false });
        }
        let Some(source) = spec.local else { return Err(source::unsupported(&claim.volume)) };
        let VolumeContext { dirs, uid, .. } = &*self.context;
        let security = bundle.pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
        let policy = security.and_then(|security| security.fs_group_change_policy.as_deref());
        let local = LocalVolume {
            source,
            name: claim.volume.metadata.name.clone().unwrap_or_default(),
            marker: dirs.marker(uid, LOCAL, &volume.name),
            read_only,
            group: group(&bundle.pod),
            only_on_mismatch: policy == Some("OnRootMismatch"),
        };
        let path = self.context.on_disk(move || local.prepare()).await?;
        Ok(VolumeLocation { path: Some(path), read_only, managed: true })
    }
}

/// Records the end of a source when it is dropped.
struct WriterGuard {
    context: Arc<VolumeContext>,
    name: String,
}

impl Drop for WriterGuard {
    fn drop(&mut self) {
        self.context.source_ended(&self.name);
    }
}

/// The pod's `fsGroup`.
fn group(pod: &Pod) -> Option<u32> {
    let group = pod.spec.as_ref()?.security_context.as_ref()?.fs_group?;
    u32::try_from(group).ok()
}

fn memory_size(bundle: &PodBundle, source: Option<&EmptyDirVolumeSource>) -> Option<u64> {
    let allocatable = bundle.resolver.node().allocatable.get("memory").copied().map(Quantity::to_units);
    memory_size::memory(&bundle.pod, source, allocatable)
}
