//! Resource usage of pods.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use vk_pod_engine::backend::{ContainerUsage, CpuUsage, FsUsage, InterfaceUsage, PodUsage};
use vk_provider::Result;

use super::{
    Inner, blocking,
    registry::{KnownContainer, KnownSandbox, carries},
};
use crate::cgroup::Usage;

/// How long the measured size of a writable layer is reused: walking all its files is expensive.
const LAYER_HOLDS: SignedDuration = SignedDuration::from_secs(60);
/// Maximum number of files to count.
const MOST_FILES: u64 = 200_000;

/// The measured size of a container's writable layer.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    time: Timestamp,
    usage: FsUsage,
}

impl Inner {
    pub(super) async fn usage(self: &Arc<Self>, labels: &BTreeMap<String, String>) -> Result<Vec<PodUsage>> {
        let pods: Vec<(Arc<KnownSandbox>, Vec<Arc<KnownContainer>>)> = {
            let registry = self.registry.lock();
            let wanted =
                registry.sandboxes.values().filter(|known| carries(&known.record.config.labels, labels));
            let live = wanted.filter(|known| !known.is_stopped());
            live.map(|known| (Arc::clone(known), registry.containers_in(&known.record.id))).collect()
        };
        let mut interfaces = match &self.settings.network {
            Some(network) => network.usage().await.unwrap_or_else(|error| {
                tracing::debug!(%error, "reading the usage of pod interfaces failed");
                BTreeMap::new()
            }),
            None => BTreeMap::new(),
        };
        let this = Arc::clone(self);
        blocking("read usage", move || {
            let pods = pods.iter();
            Ok(pods
                .map(|(sandbox, containers)| {
                    let interface = interfaces.remove(&sandbox.record.id);
                    this.pod_usage(sandbox, containers, interface)
                })
                .collect())
        })
        .await
    }

    fn pod_usage(
        &self,
        sandbox: &KnownSandbox,
        containers: &[Arc<KnownContainer>],
        interface: Option<InterfaceUsage>,
    ) -> PodUsage {
        let whole = sandbox.record.cgroup.as_deref().and_then(|cgroup| self.counted(cgroup));
        let running = containers.iter().filter(|container| container.ended.lock().is_none());
        PodUsage {
            pod: sandbox.record.config.pod.clone(),
            started: sandbox.record.created,
            containers: running.filter_map(|container| self.container_usage(container)).collect(),
            cpu: whole.and_then(|usage| self.cpu(&usage)),
            memory: whole.and_then(|usage| usage.memory),
            interfaces: interface.into_iter().collect(),
        }
    }

    fn container_usage(&self, known: &KnownContainer) -> Option<ContainerUsage> {
        let usage = known.record.launch.cgroup.as_deref().and_then(|cgroup| self.counted(cgroup));
        // Without a cgroup the container does not run, or usage is not measured.
        let usage = if self.settings.cgroups.is_some() { usage? } else { Usage::default() };
        Some(ContainerUsage {
            name: known.record.config.name.clone(),
            attempt: known.record.config.attempt,
            cpu: self.cpu(&usage),
            memory: usage.memory,
            writable_layer: self.layer(known),
        })
    }

    fn counted(&self, cgroup: &str) -> Option<Usage> {
        self.settings.cgroups.as_ref()?.usage(cgroup)
    }

    fn cpu(&self, usage: &Usage) -> Option<CpuUsage> {
        let total_nanos = usage.cpu_nanos?;
        Some(CpuUsage { time: self.settings.clock.now(), total_nanos, nano_cores: None })
    }

    fn layer(&self, known: &KnownContainer) -> Option<FsUsage> {
        let upper = known.shim.dir().join("upper");
        let now = self.settings.clock.now();
        if let Some(layer) = self.layers.lock().get(&known.record.id)
            && now.duration_since(layer.time) < LAYER_HOLDS
        {
            return Some(layer.usage.clone());
        }
        let (mut bytes, mut files) = (0, 0);
        count(&upper, &mut bytes, &mut files)?;
        let mount_point = upper.to_string_lossy().into_owned();
        let usage = FsUsage { mount_point, used_bytes: bytes, used_inodes: Some(files) };
        self.layers.lock().insert(known.record.id.clone(), Layer { time: now, usage: usage.clone() });
        Some(usage)
    }
}

/// Adds up the sizes in a directory tree, without following links.
fn count(directory: &Path, bytes: &mut u64, files: &mut u64) -> Option<()> {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(directory).ok()?;
    *files += 1;
    for entry in entries.flatten() {
        if *files >= MOST_FILES {
            return Some(());
        }
        let Ok(metadata) = fs::symlink_metadata(entry.path()) else { continue };
        *bytes += metadata.blocks() * 512;
        if metadata.is_dir() {
            count(&entry.path(), bytes, files);
        } else {
            *files += 1;
        }
    }
    Some(())
}
