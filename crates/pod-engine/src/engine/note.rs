//! The pod as it was known last, in a file beside its volumes: so that the next process shows it as this one did until the core says what it
//! shall be. Nothing depends on it: without the file the pod is shown as the runtime's marks tell it.

use std::{io, os::unix::fs::OpenOptionsExt as _, path::PathBuf};

use k8s_openapi::api::core::v1::Pod;
use tracing::debug;
use vk_provider::PodRef;

use super::actor::Actor;
use crate::volume::Place;

/// The file in the pod's directory.
const FILE: &str = "pod.json";

impl Actor {
    /// Notes the pod with the status that was told last, where that is another than the one that is noted.
    pub(super) async fn note(&mut self, pod: &Pod) {
        let told = self.slot.view.borrow().status.clone();
        if told.is_none() || told == self.noted {
            return;
        }
        let pod = Pod { status: told.as_deref().cloned(), ..pod.clone() };
        let file = file(&self.shared.place, &self.slot.pod);
        let written = tokio::task::spawn_blocking(move || write(&file, &pod)).await;
        match written {
            Ok(Ok(())) => self.noted = told,
            Ok(Err(error)) => debug!(pod = %self.slot.pod, %error, "cannot note the pod"),
            Err(error) => debug!(pod = %self.slot.pod, %error, "cannot note the pod"),
        }
    }

    /// The pod as an earlier process noted it, with its status.
    pub(super) async fn noted_pod(&self) -> Option<Pod> {
        read(&self.shared.place, &self.slot.pod).await
    }
}

/// The pod as an earlier process noted it, with its status.
pub(super) async fn read(place: &Place, reference: &PodRef) -> Option<Pod> {
    let text = tokio::fs::read(file(place, reference)).await.ok()?;
    let pod: Pod = serde_json::from_slice(&text).ok()?;
    (pod.metadata.uid.as_deref() == Some(&*reference.uid)).then_some(pod)
}

fn file(place: &Place, reference: &PodRef) -> PathBuf {
    place.pod(&reference.uid).join(FILE)
}

/// Written beside and put in place at once. Only for us: a pod's spec may hold what is secret.
fn write(file: &std::path::Path, pod: &Pod) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let fresh = file.with_extension("new");
    // One that an earlier process has left half written.
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut out = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    io::Write::write_all(&mut out, &serde_json::to_vec(pod)?)?;
    std::fs::rename(&fresh, file)
}
