//! What of a pod the provider acts on, so that it hears of a change once and of everything else never.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hasher as _},
    io,
};

use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};

/// The parts of a pod that Kubernetes lets change while it runs and that concern the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// How large it is: see [`size`].
    pub size: Digest,
    /// All the rest.
    pub rest: Digest,
}

/// A value, for comparing only. There is one for many parts of each pod, and the values themselves would be the larger
/// half of what a pod costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

struct Hashing(DefaultHasher);

impl Digest {
    /// Of this value.
    pub fn of(value: &Value) -> Self {
        let mut hashing = Hashing(DefaultHasher::new());
        // Writing to a hasher cannot fail, and a value is always JSON.
        drop(serde_json::to_writer(&mut hashing, value));
        Self(hashing.0.finish())
    }
}

impl io::Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Fingerprint {
    /// Of this pod. Annotations and labels that the provider has `published` itself are no news for it.
    pub fn of(pod: &Pod, published: &BTreeSet<String>) -> Self {
        let spec = pod.spec.as_ref();
        let news = |all: Option<&BTreeMap<String, String>>| -> Vec<(String, String)> {
            let all = all.into_iter().flatten().filter(|(key, _)| !published.contains(*key));
            all.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        let images = |(_, one): (&str, &Container)| json!([one.name, one.image]);
        let rest = Digest::of(&json!([
            containers(pod).map(images).collect::<Vec<_>>(),
            spec.and_then(|spec| spec.ephemeral_containers.as_ref()),
            spec.and_then(|spec| spec.active_deadline_seconds),
            spec.and_then(|spec| spec.tolerations.as_ref()),
            spec.and_then(|spec| spec.termination_grace_period_seconds),
            news(pod.metadata.labels.as_ref()),
            news(pod.metadata.annotations.as_ref()),
        ]));
        Self { size: size(pod), rest }
    }
}

/// How large the pod shall be: the resources of its containers and of the whole.
pub fn size(pod: &Pod) -> Digest {
    let resources = |(_, one): (&str, &Container)| json!([one.name, one.resources, one.resize_policy]);
    let whole = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    Digest::of(&json!([containers(pod).map(resources).collect::<Vec<_>>(), whole]))
}

/// The containers of a pod, init containers first, each with the name of the list in which it stands.
pub fn containers(pod: &Pod) -> impl Iterator<Item = (&'static str, &Container)> {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let regular = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let init = init.iter().map(|one| ("initContainers", one));
    init.chain(regular.iter().map(|one| ("containers", one)))
}
