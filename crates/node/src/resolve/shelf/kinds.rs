//! The kinds that a shelf can hold.

use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Secret},
        node::v1::RuntimeClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use vk_kube::{Client, Objects};
use vk_provider::resolve::ReferenceKind;

use super::Shelved;

impl Shelved for ConfigMap {
    const KIND: ReferenceKind = ReferenceKind::ConfigMap;

    fn objects(client: Client, namespace: &str) -> Objects<Self> {
        Objects::namespaced(client, namespace)
    }

    fn trim(&mut self) {
        trim(&mut self.metadata);
    }

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl Shelved for Secret {
    const KIND: ReferenceKind = ReferenceKind::Secret;

    fn objects(client: Client, namespace: &str) -> Objects<Self> {
        Objects::namespaced(client, namespace)
    }

    fn trim(&mut self) {
        trim(&mut self.metadata);
    }

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl Shelved for RuntimeClass {
    const KIND: ReferenceKind = ReferenceKind::RuntimeClass;

    fn objects(client: Client, _namespace: &str) -> Objects<Self> {
        Objects::cluster(client)
    }

    fn trim(&mut self) {
        trim(&mut self.metadata);
    }

    fn is_immutable(&self) -> bool {
        false
    }
}

/// What kubectl applied last can be as large as the object itself.
fn trim(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}
