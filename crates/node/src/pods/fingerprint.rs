//! What of a pod the provider acts on, so that it hears of a change once and of everything else never.

use std::{
    hash::{DefaultHasher, Hasher as _},
    io,
};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// The parts of a pod that Kubernetes lets change while it runs and that concern the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(Digest);

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
    /// Of this pod.
    pub fn of(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let containers = |list: Option<&[k8s_openapi::api::core::v1::Container]>| -> Vec<Value> {
            list.unwrap_or_default()
                .iter()
                .map(|one| json!([one.name, one.image, one.resources, one.resize_policy]))
                .collect()
        };
        Self(Digest::of(&json!([
            containers(spec.map(|spec| spec.containers.as_slice())),
            containers(spec.and_then(|spec| spec.init_containers.as_deref())),
            spec.and_then(|spec| spec.ephemeral_containers.as_ref()),
            spec.and_then(|spec| spec.active_deadline_seconds),
            spec.and_then(|spec| spec.tolerations.as_ref()),
            spec.and_then(|spec| spec.termination_grace_period_seconds),
            spec.and_then(|spec| spec.resources.as_ref()),
            pod.metadata.labels,
            pod.metadata.annotations,
        ])))
    }
}
