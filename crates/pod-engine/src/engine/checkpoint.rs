//! The checkpoint of a pod: a file beside its volumes with the pod and its last status, so that the next process can show the pod as this one
//! did until the core creates it again. It is optional: without it the pod is derived from the runtime's labels and annotations.

use std::{
    collections::BTreeSet,
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec, PodStatus},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use tracing::debug;
use vk_provider::PodRef;

use super::context::PodScope;
use crate::{
    snapshot::{self, Snapshot, annotation},
    volume::PodDirs,
};

/// The file in the pod's directory.
const FILE: &str = "pod.json";

/// Writes the checkpoint of a pod, and reads that of an earlier process.
pub(super) struct PodCheckpoint {
    scope: PodScope,
    /// The status in the file, if this process wrote it.
    saved: Option<Arc<PodStatus>>,
    /// The pod in the file of an earlier process.
    loaded: Option<Arc<Pod>>,
}

// === impl PodCheckpoint ===

impl PodCheckpoint {
    pub(super) fn new(scope: PodScope) -> Self {
        Self { scope, saved: None, loaded: None }
    }

    /// Saves the pod with the status that was reported last, if it changed.
    pub(super) async fn save(&mut self, pod: &Pod) {
        let handle = &self.scope.handle;
        let reported = handle.view.borrow().status.clone();
        if reported.is_none() || reported == self.saved {
            return;
        }
        let pod = Pod { status: reported.as_deref().cloned(), ..pod.clone() };
        let file = file(&self.scope.context.dirs, &handle.pod);
        match tokio::task::spawn_blocking(move || write(&file, &pod))
            .await
            .map_err(io::Error::other)
            .flatten()
        {
            Ok(()) => self.saved = reported,
            Err(error) => debug!(pod = %handle.pod, %error, "cannot write the checkpoint of the pod"),
        }
    }

    /// The pod that an earlier process saved, with its status.
    pub(super) async fn load(&mut self) -> Option<Arc<Pod>> {
        if self.loaded.is_none() {
            self.loaded = read(&self.scope.context.dirs, self.scope.pod()).await.map(Arc::new);
        }
        self.loaded.clone()
    }

    /// The pod that an earlier process saved, or else what the labels and annotations of its containers tell.
    pub(super) async fn load_or_derive(&mut self, snapshot: &Snapshot) -> Arc<Pod> {
        let loaded = self.load().await;
        loaded.unwrap_or_else(|| Arc::new(orphan_pod(self.scope.pod(), snapshot)))
    }
}

/// Reads the checkpoint of a pod.
pub(super) async fn read(dirs: &PodDirs, reference: &PodRef) -> Option<Pod> {
    let text = tokio::fs::read(file(dirs, reference)).await.ok()?;
    let pod: Pod = serde_json::from_slice(&text).ok()?;
    (pod.metadata.uid.as_deref() == Some(&*reference.uid)).then_some(pod)
}

fn file(dirs: &PodDirs, reference: &PodRef) -> PathBuf {
    dirs.pod(&reference.uid).join(FILE)
}

/// Replaces the file atomically. Only its owner can read it: a pod spec may contain secrets.
fn write(file: &Path, pod: &Pod) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let fresh = file.with_extension("new");
    // An earlier process may have left a partial file.
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut out = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    io::Write::write_all(&mut out, &serde_json::to_vec(pod)?)?;
    std::fs::rename(&fresh, file)
}

/// Derives a pod from its runtime objects. Init containers cannot be distinguished from regular ones.
fn orphan_pod(reference: &PodRef, snapshot: &Snapshot) -> Pod {
    let names: BTreeSet<&str> = snapshot.containers.iter().map(|container| container.name.as_str()).collect();
    let containers = names.into_iter().filter_map(|name| {
        let newest = snapshot.newest(name)?;
        Some(Container {
            name: name.to_owned(),
            image: Some(newest.image.clone()),
            termination_message_path: newest.annotations.get(annotation::TERMINATION_PATH).cloned(),
            termination_message_policy: newest.annotations.get(annotation::TERMINATION_POLICY).cloned(),
            ..Container::default()
        })
    });
    let grace = |container: &snapshot::Container| {
        container.annotations.get(annotation::TERMINATION_GRACE).and_then(|grace| grace.parse().ok())
    };
    let created = snapshot.sandboxes.iter().map(|sandbox| sandbox.created).min();
    Pod {
        metadata: ObjectMeta {
            namespace: Some(reference.namespace.to_string()),
            name: Some(reference.name.to_string()),
            uid: Some(reference.uid.to_string()),
            creation_timestamp: created.map(Time),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: containers.collect(),
            restart_policy: Some("Always".to_owned()),
            termination_grace_period_seconds: snapshot.containers.iter().find_map(grace),
            host_network: snapshot.sandboxes.first().map(|sandbox| sandbox.host_network),
            ..PodSpec::default()
        }),
        status: None,
    }
}
