//! What the containers of a pod were started with: their environment, and the files of their volumes.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _, stream::BoxStream};
use k8s_openapi::api::core::v1::{Container, Pod, Volume, VolumeMount};
use parking_lot::Mutex;
use vk_provider::{
    Error, PodBundle, Resolver, Result,
    resolve::{ContainerInputs, Facts, File, FileSet},
};

/// How long a pod waits for the files of a volume.
const PATIENCE: Duration = Duration::from_secs(30);

/// What one pod was started with.
pub(crate) struct ResolvedInputs {
    source: Mutex<Source>,
    /// One for each container that has started: a list, because a map of one has room for many.
    starts: Mutex<Vec<Start>>,
    mounts: tokio::sync::Mutex<BTreeMap<String, Mount>>,
}

/// Where it comes from. The pod itself would be many times larger.
struct Source {
    resolver: Arc<dyn Resolver>,
    containers: Box<[Own]>,
}

/// What is needed of a container's spec.
struct Own {
    name: Box<str>,
    mounts: Box<[VolumeMount]>,
    /// Whether the environment has the pod's address in it, which is known only when the pod is there.
    wants_address: bool,
}

/// One start of a container. Its environment never changes.
struct Start {
    container: Box<str>,
    restarts: i32,
    inputs: ContainerInputs,
}

/// A volume. Its files are brought up to date when somebody looks.
struct Mount {
    files: FileSet,
    changes: BoxStream<'static, Result<FileSet>>,
}

// === impl ResolvedInputs ===

impl ResolvedInputs {
    /// Resolves what the pod needs to start, as a kubelet would: the volumes first, where they are wanted, and then the
    /// environment of each container.
    pub(crate) async fn resolve(bundle: PodBundle, volumes: bool, host_ip: IpAddr) -> Result<Self> {
        let mut mounts = BTreeMap::new();
        for volume in volumes.then(|| file_volumes(&bundle.pod)).into_iter().flatten() {
            mounts.insert(volume.name.clone(), Mount::open(&bundle, &volume.name).await?);
        }
        let facts = Facts { host_ips: vec![host_ip], ..Facts::default() };
        let mut starts = Vec::new();
        for container in containers(&bundle.pod) {
            let inputs = bundle.resolver.container(&container.name, &facts).await?;
            starts.push(Start { container: container.name.as_str().into(), restarts: 0, inputs });
        }
        starts.shrink_to_fit();
        Ok(Self { source: Mutex::new(bundle.into()), starts: Mutex::new(starts), mounts: mounts.into() })
    }

    /// Of a pod that was there already: nobody knows any more what it was started with.
    pub(crate) fn unknown(bundle: PodBundle) -> Self {
        Self { source: Mutex::new(bundle.into()), starts: Mutex::default(), mounts: BTreeMap::new().into() }
    }

    /// The pod has changed.
    pub(crate) fn update(&self, bundle: PodBundle) {
        *self.source.lock() = bundle.into();
    }

    /// Whether an environment waits for the pod's address.
    pub(crate) fn wants_address(&self) -> bool {
        self.source.lock().containers.iter().any(|own| own.wants_address)
    }

    /// The environment of a container in this life of it.
    pub(crate) async fn environment(
        &self,
        container: &str,
        restarts: i32,
        facts: &Facts,
    ) -> Result<ContainerInputs> {
        let of_this_life = |start: &&Start| *start.container == *container && start.restarts == restarts;
        if let Some(start) = self.starts.lock().iter().find(of_this_life) {
            return Ok(start.inputs.clone());
        }
        self.start(container, restarts, facts).await
    }

    /// Resolves the environment of a container that starts.
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
        starts.push(Start { container: container.into(), restarts, inputs: inputs.clone() });
        Ok(inputs)
    }

    /// The names of the containers.
    pub(crate) fn containers(&self) -> Vec<String> {
        self.source.lock().containers.iter().map(|own| own.name.to_string()).collect()
    }

    /// A file as a container sees it.
    pub(crate) async fn file(&self, container: &str, path: &str) -> Option<File> {
        let mounts = {
            let source = self.source.lock();
            source.containers.iter().find(|own| *own.name == *container)?.mounts.clone()
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

impl From<PodBundle> for Source {
    fn from(bundle: PodBundle) -> Self {
        let own = |container: &Container| Own {
            name: container.name.as_str().into(),
            mounts: container.volume_mounts.clone().unwrap_or_default().into(),
            wants_address: container.env.iter().flatten().any(|variable| {
                let field = variable.value_from.as_ref().and_then(|source| source.field_ref.as_ref());
                field.is_some_and(|field| field.field_path.starts_with("status.podIP"))
            }),
        };
        Self { containers: containers(&bundle.pod).map(own).collect(), resolver: bundle.resolver }
    }
}

impl Mount {
    async fn open(bundle: &PodBundle, name: &str) -> Result<Self> {
        let mut changes = bundle.resolver.volume(name);
        match tokio::time::timeout(PATIENCE, changes.next()).await {
            Ok(Some(files)) => Ok(Self { files: files?, changes }),
            Ok(None) => Err(Error::not_found(format!("mount volume {name}: the pod is gone"))),
            Err(_) => Err(Error::unavailable(format!("mount volume {name}: no files within {PATIENCE:?}"))),
        }
    }

    /// Takes what has changed. What cannot be had any more stays as it was.
    fn refresh(&mut self) {
        while let Some(Some(change)) = self.changes.next().now_or_never() {
            if let Ok(files) = change {
                self.files = files;
            }
        }
    }
}

/// The path inside of a mount.
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

/// Volumes that are made of files.
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
