//! Resolved environments and volume files of the containers of a pod.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _, stream::BoxStream};
use k8s_openapi::api::core::v1::{Container, Pod, Volume, VolumeMount};
use parking_lot::Mutex;
use vk_provider::{
    Error, PodBundle, Resolver, Result,
    resolve::{ContainerInputs, Facts, File, FileSet, TokenLifetime},
};

/// How long creation waits for the files of a volume.
const VOLUME_TIMEOUT: Duration = Duration::from_secs(30);

/// The resolved environments and volumes of one pod.
pub(crate) struct ResolvedInputs {
    source: Mutex<InputSource>,
    /// One per started container. A list, because it is smaller than a map for few entries.
    starts: Mutex<Vec<ContainerStart>>,
    mounts: tokio::sync::Mutex<BTreeMap<String, MountedVolume>>,
}

/// The parts of the pod that are needed to resolve more. The pod itself would be much larger.
struct InputSource {
    resolver: Arc<dyn Resolver>,
    containers: Box<[ContainerMounts]>,
}

/// The needed parts of a container's spec.
struct ContainerMounts {
    name: Box<str>,
    mounts: Box<[VolumeMount]>,
    /// Whether the environment contains the pod's address, which is known only after creation.
    wants_address: bool,
}

/// One start of a container, with its fixed environment.
struct ContainerStart {
    container: Box<str>,
    restarts: i32,
    inputs: ContainerInputs,
}

/// A volume. Its files are updated when they are read.
struct MountedVolume {
    files: FileSet,
    changes: BoxStream<'static, Result<FileSet>>,
}

// === impl ResolvedInputs ===

impl ResolvedInputs {
    /// Resolves what the pod needs to start in the order of a kubelet: first the volumes, if enabled, then the environment of
    /// each container.
    pub(crate) async fn resolve(bundle: PodBundle, volumes: bool, host_ip: IpAddr) -> Result<Self> {
        let mut mounts = BTreeMap::new();
        for volume in volumes.then(|| file_volumes(&bundle.pod)).into_iter().flatten() {
            mounts.insert(volume.name.clone(), MountedVolume::open(&bundle, &volume.name).await?);
        }
        let facts = Facts { host_ips: vec![host_ip], ..Facts::default() };
        let mut starts = Vec::new();
        for container in containers(&bundle.pod) {
            let inputs = bundle.resolver.container(&container.name, &facts).await?;
            starts.push(ContainerStart { container: container.name.as_str().into(), restarts: 0, inputs });
        }
        starts.shrink_to_fit();
        Ok(Self { source: Mutex::new(bundle.into()), starts: Mutex::new(starts), mounts: mounts.into() })
    }

    /// For a pod that already existed: what it was started with is not known.
    pub(crate) fn unknown(bundle: PodBundle) -> Self {
        Self { source: Mutex::new(bundle.into()), starts: Mutex::default(), mounts: BTreeMap::new().into() }
    }

    /// Applies a changed pod.
    pub(crate) fn update(&self, bundle: PodBundle) {
        *self.source.lock() = bundle.into();
    }

    /// Whether an environment needs the pod's address.
    pub(crate) fn wants_address(&self) -> bool {
        self.source.lock().containers.iter().any(|container| container.wants_address)
    }

    /// The environment of a container since its last restart.
    pub(crate) async fn environment(
        &self,
        container: &str,
        restarts: i32,
        facts: &Facts,
    ) -> Result<ContainerInputs> {
        // A container that was resolved before the pod had an address starts with the address.
        let is_current = |start: &&ContainerStart| {
            *start.container == *container && start.restarts == restarts && !start.inputs.is_deferred()
        };
        if let Some(start) = self.starts.lock().iter().find(is_current) {
            return Ok(start.inputs.clone());
        }
        self.start(container, restarts, facts).await
    }

    /// Resolves the environment for a start of a container.
    pub(crate) async fn start(
        &self,
        container: &str,
        restarts: i32,
        facts: &Facts,
    ) -> Result<ContainerInputs> {
        let resolver = Arc::clone(&self.source.lock().resolver);
        let inputs = resolver.container(container, facts).await?;
        let mut starts = self.starts.lock();
        starts.retain(|start| *start.container != *container);
        starts.push(ContainerStart { container: container.into(), restarts, inputs: inputs.clone() });
        Ok(inputs)
    }

    /// The names of the containers.
    pub(crate) fn containers(&self) -> Vec<String> {
        self.source.lock().containers.iter().map(|container| container.name.to_string()).collect()
    }

    /// A file in the volumes of a container.
    pub(crate) async fn file(&self, container: &str, path: &str) -> Option<File> {
        let mounts = {
            let source = self.source.lock();
            source.containers.iter().find(|mounts| *mounts.name == *container)?.mounts.clone()
        };
        for mount in mounts {
            let Some(rest) = beneath(&mount.mount_path, path) else { continue };
            let inner = match mount.sub_path.as_deref().unwrap_or_default() {
                "" => rest,
                sub if rest.is_empty() => sub.to_owned(),
                sub => format!("{}/{rest}", sub.trim_end_matches('/')),
            };
            let mut volumes = self.mounts.lock().await;
            if let Some(volume) = volumes.get_mut(&mount.name) {
                volume.refresh();
                return volume.files.files.get(&inner).cloned();
            }
        }
        None
    }
}

impl From<PodBundle> for InputSource {
    fn from(bundle: PodBundle) -> Self {
        let mounts = |container: &Container| ContainerMounts {
            name: container.name.as_str().into(),
            mounts: container.volume_mounts.clone().unwrap_or_default().into(),
            wants_address: container.env.iter().flatten().any(|variable| {
                let field = variable.value_from.as_ref().and_then(|source| source.field_ref.as_ref());
                field.is_some_and(|field| field.field_path.starts_with("status.podIP"))
            }),
        };
        Self { containers: containers(&bundle.pod).map(mounts).collect(), resolver: bundle.resolver }
    }
}

impl MountedVolume {
    async fn open(bundle: &PodBundle, name: &str) -> Result<Self> {
        let mut changes = bundle.resolver.volume(name, TokenLifetime::Specified);
        match tokio::time::timeout(VOLUME_TIMEOUT, changes.next()).await {
            Ok(Some(files)) => Ok(Self { files: files?, changes }),
            Ok(None) => Err(Error::not_found(format!("mount volume {name}: the pod is gone"))),
            Err(_) => {
                Err(Error::unavailable(format!("mount volume {name}: no files within {VOLUME_TIMEOUT:?}")))
            }
        }
    }

    /// Applies pending changes. Files that can no longer be resolved are kept.
    fn refresh(&mut self) {
        while let Some(Some(change)) = self.changes.next().now_or_never() {
            if let Ok(files) = change {
                self.files = files;
            }
        }
    }
}

/// The path relative to a mount.
fn beneath(mount: &str, path: &str) -> Option<String> {
    let rest = path.strip_prefix(mount.trim_end_matches('/'))?;
    match rest.strip_prefix('/') {
        Some(rest) => Some(rest.to_owned()),
        None if rest.is_empty() => Some(String::new()),
        None => None,
    }
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.as_ref();
    let init = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
    init.chain(spec.into_iter().flat_map(|spec| &spec.containers))
}

/// Volumes with files from the API.
fn file_volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).filter(|volume| {
        volume.config_map.is_some()
            || volume.secret.is_some()
            || volume.downward_api.is_some()
            || volume.projected.is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_beneath_a_mount_only_at_a_whole_name() {
        assert_eq!(beneath("/etc/config", "/etc/config/a/b").as_deref(), Some("a/b"));
        assert_eq!(beneath("/etc/config/", "/etc/config/a").as_deref(), Some("a"));
        assert_eq!(beneath("/etc/config", "/etc/config").as_deref(), Some(""));
        assert_eq!(beneath("/etc/config", "/etc/configuration"), None);
    }
}
