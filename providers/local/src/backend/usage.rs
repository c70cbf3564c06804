//! Resource usage of pods.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use vk_pod_engine::backend::{ContainerUsage, CpuUsage, FsUsage, InterfaceUsage, PodUsage};
use vk_provider::Result;

use super::{
    Inner, blocking,
    container_store::{LocalContainer, LocalSandbox, matches_labels},
};
use crate::cgroup::CgroupUsage;

/// How long the measured size of a writable layer is reused: walking all its files is expensive.
const LAYER_USAGE_TTL: SignedDuration = SignedDuration::from_secs(60);
/// Maximum number of files to count.
const MAX_FILES: u64 = 200_000;

/// The measured size of a container's writable layer.
#[derive(Clone, Debug)]
pub(super) struct LayerUsage {
    time: Timestamp,
    usage: FsUsage,
}

impl Inner {
    pub(super) async fn usage(self: &Arc<Self>, labels: &BTreeMap<String, String>) -> Result<Vec<PodUsage>> {
        let pods: Vec<(Arc<LocalSandbox>, Vec<Arc<LocalContainer>>)> = {
            let store = self.store.lock();
            let wanted =
                store.sandboxes.values().filter(|entry| matches_labels(&entry.record.config.labels, labels));
            let live = wanted.filter(|entry| !entry.is_stopped());
            live.map(|entry| (Arc::clone(entry), store.containers_in(&entry.record.id))).collect()
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
        sandbox: &LocalSandbox,
        containers: &[Arc<LocalContainer>],
        interface: Option<InterfaceUsage>,
    ) -> PodUsage {
        let run_to_completion = sandbox.record.cgroup.as_deref().and_then(|cgroup| self.cgroup_usage(cgroup));
        let running = containers.iter().filter(|container| container.ended.lock().is_none());
        PodUsage {
            pod: sandbox.record.config.pod.clone(),
            started: sandbox.record.created,
            containers: running.filter_map(|container| self.container_usage(container)).collect(),
            cpu: run_to_completion.and_then(|usage| self.cpu(&usage)),
            memory: run_to_completion.and_then(|usage| usage.memory),
            interfaces: interface.into_iter().collect(),
        }
    }

    fn container_usage(&self, entry: &LocalContainer) -> Option<ContainerUsage> {
        let usage = entry.record.launch.cgroup.as_deref().and_then(|cgroup| self.cgroup_usage(cgroup));
        // Without a cgroup the container does not run, or usage is not measured.
        let usage = if self.settings.cgroups.is_some() { usage? } else { CgroupUsage::default() };
        Some(ContainerUsage {
            name: entry.record.config.name.clone(),
            attempt: entry.record.config.attempt,
            cpu: self.cpu(&usage),
            memory: usage.memory,
            writable_layer: self.layer_usage(entry),
        })
    }

    fn cgroup_usage(&self, cgroup: &str) -> Option<CgroupUsage> {
        self.settings.cgroups.as_ref()?.usage(cgroup)
    }

    fn cpu(&self, usage: &CgroupUsage) -> Option<CpuUsage> {
        let total_nanos = usage.cpu_nanos?;
        Some(CpuUsage { time: self.settings.clock.now(), total_nanos, nano_cores: None })
    }

    fn layer_usage(&self, entry: &LocalContainer) -> Option<FsUsage> {
        let upper = entry.shim.dir().join("upper");
        let now = self.settings.clock.now();
        if let Some(layer_usage) = self.layers.lock().get(&entry.record.id)
            && now.duration_since(layer_usage.time) < LAYER_USAGE_TTL
        {
            return Some(layer_usage.usage.clone());
        }
        let (mut bytes, mut files) = (0, 0);
        count(&upper, &mut bytes, &mut files)?;
        let mount_point = upper.to_string_lossy().into_owned();
        let usage = FsUsage { mount_point, used_bytes: bytes, used_inodes: Some(files) };
        self.layers.lock().insert(entry.record.id.clone(), LayerUsage { time: now, usage: usage.clone() });
        Some(usage)
    }
}

/// Adds up the sizes in a directory tree, without following links.
fn count(directory: &Path, bytes: &mut u64, files: &mut u64) -> Option<()> {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(directory).ok()?;
    *files += 1;
    for entry in entries.flatten() {
        if *files >= MAX_FILES {
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
