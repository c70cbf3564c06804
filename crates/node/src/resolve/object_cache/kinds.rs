//! The kinds that a cache can hold.

use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret},
    node::v1::RuntimeClass,
};
use vk_kube::{Client, Objects};
use vk_provider::resolve::ReferenceKind;

use super::CachedObject;

impl CachedObject for ConfigMap {
    const KIND: ReferenceKind = ReferenceKind::ConfigMap;

    fn objects(client: Client, namespace: &str) -> Objects<Self> {
        Objects::namespaced(client, namespace)
    }

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl CachedObject for Secret {
    const KIND: ReferenceKind = ReferenceKind::Secret;

    fn objects(client: Client, namespace: &str) -> Objects<Self> {
        Objects::namespaced(client, namespace)
    }

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl CachedObject for RuntimeClass {
    const KIND: ReferenceKind = ReferenceKind::RuntimeClass;

    fn objects(client: Client, _namespace: &str) -> Objects<Self> {
        Objects::all(client)
    }
}
