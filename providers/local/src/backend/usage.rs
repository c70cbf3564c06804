//! Resource usage of pods.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;
use vk_pod_engine::backend::{ContainerUsage, CpuUsage, FsUsage, InterfaceUsage, PodUsage};
use vk_provider::Result;

use super::{
    Inner, blocking,
    container_store::{LocalContainer, LocalSandbox, matches_labels},
};
use crate::cgroup::CgroupUsage;

/// How long the measured size of a writable layer is reused: walking all its files is expensive.
const LAYER_USAGE_TTL: Duration = Duration::from_mins(1);
/// Maximum number of files to count.
const MAX_FILES: u64 = 200_000;

/// The sizes of writable layers, by container id. They are measured in the background: a request for usage only reads what
/// was measured before, because a container can have any number of files.
#[derive(Debug, Default)]
pub(super) struct LayerSizes(Mutex<Sizes>);

#[derive(Debug, Default)]
struct Sizes {
    measured: BTreeMap<String, MeasuredLayer>,
    /// Whether a task is measuring.
    busy: bool,
}

#[derive(Debug)]
struct MeasuredLayer {
    at: Instant,
    usage: Option<FsUsage>,
}

// === impl LayerSizes ===

impl LayerSizes {
    /// The size that was measured last.
    fn last(&self, container: &str) -> Option<FsUsage> {
        self.0.lock().measured.get(container)?.usage.clone()
    }

    pub(super) fn forget(&self, container: &str) {
        self.0.lock().measured.remove(container);
    }

    /// Of these layers, those to measure now. If there are any, the caller must measure them and then call
    /// [`finish`](Self::finish).
    fn begin(&self, mut layers: Vec<(String, PathBuf)>) -> Vec<(String, PathBuf)> {
        let mut sizes = self.0.lock();
        let is_fresh =
            |id: &String| sizes.measured.get(id).is_some_and(|layer| layer.at.elapsed() < LAYER_USAGE_TTL);
        layers.retain(|(id, _)| !is_fresh(id));
        if sizes.busy {
            return Vec::new();
        }
        sizes.busy = !layers.is_empty();
        layers
    }

    fn record(&self, container: String, usage: Option<FsUsage>) {
        self.0.lock().measured.insert(container, MeasuredLayer { at: Instant::now(), usage });
    }

    fn finish(&self) {
        self.0.lock().busy = false;
    }
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
        let containers = pods.iter().flat_map(|(_, containers)| containers);
        let running = containers.filter(|container| container.ended.lock().is_none());
        let layers: Vec<(String, PathBuf)> =
            running.map(|entry| (entry.record.id.clone(), entry.shim.dir().join("upper"))).collect();
        let this = Arc::clone(self);
        let usage = blocking("read usage", move || {
            let pods = pods.iter();
            Ok(pods
                .map(|(sandbox, containers)| {
                    let interface = interfaces.remove(&sandbox.record.id);
                    this.pod_usage(sandbox, containers, interface)
                })
                .collect())
        })
        .await;
        // For the next request.
        self.measure_layers(layers);
        usage
    }

    /// Measures writable layers in the background, one after the other, as far as they are due.
    fn measure_layers(self: &Arc<Self>, layers: Vec<(String, PathBuf)>) {
        let layers = self.layers.begin(layers);
        if layers.is_empty() {
            return;
        }
        let this = Arc::clone(self);
        self.tasks.lock().spawn_blocking(move || {
            for (id, upper) in layers {
                let usage = measure(&upper);
                // A removed container is not recorded again.
                if this.store.lock().containers.contains_key(&id) {
                    this.layers.record(id, usage);
                }
            }
            this.layers.finish();
        });
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
            writable_layer: self.layers.last(&entry.record.id),
        })
    }

    fn cgroup_usage(&self, cgroup: &str) -> Option<CgroupUsage> {
        self.settings.cgroups.as_ref()?.usage(cgroup)
    }

    fn cpu(&self, usage: &CgroupUsage) -> Option<CpuUsage> {
        let total_nanos = usage.cpu_nanos?;
        Some(CpuUsage { time: self.settings.clock.now(), total_nanos, nano_cores: None })
    }
}

/// The size of a writable layer; `None` if there is none.
fn measure(upper: &Path) -> Option<FsUsage> {
    let (mut bytes, mut files) = (0, 0);
    count(upper, &mut bytes, &mut files)?;
    let mount_point = upper.to_string_lossy().into_owned();
    Some(FsUsage { mount_point, used_bytes: bytes, used_inodes: Some(files) })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn layers() -> Vec<(String, PathBuf)> {
        vec![("one".to_owned(), "/one".into()), ("two".to_owned(), "/two".into())]
    }

    #[tokio::test(start_paused = true)]
    async fn a_layer_is_measured_by_one_task_and_not_again_within_a_minute() {
        let sizes = LayerSizes::default();
        assert_eq!(sizes.begin(layers()).len(), 2);
        assert_eq!(sizes.begin(layers()), [], "a task is measuring");
        let usage = FsUsage { mount_point: "/one".to_owned(), used_bytes: 7, used_inodes: Some(1) };
        sizes.record("one".to_owned(), Some(usage.clone()));
        sizes.finish();
        assert_eq!((sizes.last("one"), sizes.last("two")), (Some(usage), None));
        assert_eq!(sizes.begin(layers()), layers()[1..], "only what is not known");
        sizes.record("two".to_owned(), None);
        sizes.finish();
        assert_eq!(sizes.begin(layers()), [], "also a missing layer is not looked for at every request");
        tokio::time::advance(LAYER_USAGE_TTL).await;
        assert_eq!(sizes.begin(layers()).len(), 2);
    }

    #[test]
    fn a_tree_is_measured_without_following_links() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("inner")).unwrap();
        fs::write(folder.path().join("inner/file"), [1; 10_000]).unwrap();
        std::os::unix::fs::symlink("/", folder.path().join("inner/root")).unwrap();
        let usage = measure(folder.path()).unwrap();
        assert_eq!(usage.used_inodes, Some(4));
        assert!((10_000..100_000).contains(&usage.used_bytes), "{usage:?}");
        assert_eq!(measure(&folder.path().join("absent")), None);
    }
}
