//! The parts of a pod that a provider acts on, so that it gets each change of them once, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};

use super::{digest::ValueDigest, trial::is_about_trial};

/// The parts of a pod that Kubernetes lets change while it runs and that concern the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    /// The resources: see [`size`].
    pub(crate) size: ValueDigest,
    /// The rest.
    pub(crate) rest: ValueDigest,
}

impl Fingerprint {
    /// The fingerprint of a pod. Annotations and labels that the provider has `published` itself, and those about trials, are left out.
    pub(crate) fn of(pod: &Pod, published: &BTreeSet<String>) -> Self {
        let spec = pod.spec.as_ref();
        let news = |all: &BTreeMap<String, String>| -> Vec<(String, String)> {
            let all = all.iter().filter(|(key, _)| !published.contains(*key) && !is_about_trial(key));
            all.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        let images: Vec<_> = containers(pod).map(|(_, one)| (&one.name, &one.image)).collect();
        let rest = ValueDigest::of(&(
            images,
            spec.and_then(|spec| spec.ephemeral_containers.as_ref()),
            spec.and_then(|spec| spec.active_deadline_seconds),
            spec.and_then(|spec| spec.tolerations.as_ref()),
            spec.and_then(|spec| spec.termination_grace_period_seconds),
            pod.metadata.labels.as_ref().map(news).unwrap_or_default(),
            pod.metadata.annotations.as_ref().map(news).unwrap_or_default(),
        ));
        Self { size: size(pod), rest }
    }
}

/// The resources of the pod's containers and of the pod as a whole.
pub(crate) fn size(pod: &Pod) -> ValueDigest {
    let sizes = containers(pod).map(|(_, one)| (&one.name, &one.resources, &one.resize_policy));
    let whole = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    ValueDigest::of(&(sizes.collect::<Vec<_>>(), whole))
}

/// The containers of a pod, init containers first, each with the name of its list.
pub(crate) fn containers(pod: &Pod) -> impl Iterator<Item = (&'static str, &Container)> {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let regular = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let init = init.iter().map(|one| ("initContainers", one));
    init.chain(regular.iter().map(|one| ("containers", one)))
}
