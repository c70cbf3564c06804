//! The objects that a pod refers to.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Pod, PodSpec, ProjectedVolumeSource, Volume};

use crate::translate::is_api_access;

#[cfg(test)]
mod tests;

/// The ConfigMap with the CA certificate that every cluster has in every namespace.
const ROOT_CA: &str = "kube-root-ca.crt";

/// The objects of its namespace that a pod refers to and needs in the lower cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependencies {
    /// Names of ConfigMaps.
    pub config_maps: BTreeSet<String>,
    /// Names of Secrets.
    pub secrets: BTreeSet<String>,
    /// The ConfigMaps without which the pod can run: every reference to them is optional.
    pub optional_config_maps: BTreeSet<String>,
    /// The Secrets without which the pod can run: every reference to them is optional, or only pulls images.
    pub optional_secrets: BTreeSet<String>,
    /// Names of PersistentVolumeClaims, including those of generic ephemeral volumes.
    pub claims: BTreeSet<String>,
    /// The service account of a pod as it is written. The account of a lower pod is that of the
    /// [configuration](crate::translate::Accounts). `None` for `default`, which every namespace has.
    pub service_account: Option<String>,
}

/// The dependencies of a pod, without the volume that the upper admission injects for its own API server.
pub fn dependencies(upper: &Pod) -> Dependencies {
    let mut all = Dependencies::default();
    let Some(spec) = &upper.spec else { return all };
    let pod = upper.metadata.name.as_deref().unwrap_or_default();
    for volume in spec.volumes.iter().flatten().filter(|volume| !is_api_access(volume)) {
        all.add_volume(pod, volume);
    }
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        all.add_env(container.env.as_ref(), container.env_from.as_ref());
    }
    for container in spec.ephemeral_containers.iter().flatten() {
        all.add_env(container.env.as_ref(), container.env_from.as_ref());
    }
    // A kubelet ignores missing ones.
    for secret in spec.image_pull_secrets.iter().flatten() {
        all.add_secret(&secret.name, Some(true));
    }
    let account = service_account(spec);
    all.service_account = (account != "default").then(|| account.to_owned());
    all
}

/// The service account of a pod.
pub(crate) fn service_account(spec: &PodSpec) -> &str {
    let names = [&spec.service_account_name, &spec.service_account];
    names.into_iter().flatten().find(|name| !name.is_empty()).map_or("default", String::as_str)
}

/// The name of the claim of a generic ephemeral volume.
pub(crate) fn ephemeral_claim_name(pod: &str, volume: &str) -> String {
    format!("{pod}-{volume}")
}

// === impl Dependencies ===

impl Dependencies {
    fn add_config_map(&mut self, name: &str, optional: Option<bool>) {
        if name != ROOT_CA {
            add(&mut self.config_maps, &mut self.optional_config_maps, name, optional);
        }
    }

    fn add_secret(&mut self, name: &str, optional: Option<bool>) {
        add(&mut self.secrets, &mut self.optional_secrets, name, optional);
    }

    fn add_volume(&mut self, pod: &str, volume: &Volume) {
        if let Some(source) = &volume.config_map {
            self.add_config_map(&source.name, source.optional);
        }
        if let Some(source) = &volume.secret {
            self.add_secret(source.secret_name.as_deref().unwrap_or_default(), source.optional);
        }
        if let Some(source) = &volume.projected {
            self.add_projected(source);
        }
        if let Some(source) = &volume.persistent_volume_claim {
            self.claims.insert(source.claim_name.clone());
        }
        if volume.ephemeral.is_some() {
            self.claims.insert(ephemeral_claim_name(pod, &volume.name));
        }
        let referred = [
            volume.cephfs.as_ref().and_then(|source| source.secret_ref.as_ref()),
            volume.cinder.as_ref().and_then(|source| source.secret_ref.as_ref()),
            volume.csi.as_ref().and_then(|source| source.node_publish_secret_ref.as_ref()),
            volume.flex_volume.as_ref().and_then(|source| source.secret_ref.as_ref()),
            volume.iscsi.as_ref().and_then(|source| source.secret_ref.as_ref()),
            volume.rbd.as_ref().and_then(|source| source.secret_ref.as_ref()),
            volume.scale_io.as_ref().map(|source| &source.secret_ref),
            volume.storageos.as_ref().and_then(|source| source.secret_ref.as_ref()),
        ];
        for secret in referred.into_iter().flatten() {
            self.add_secret(&secret.name, None);
        }
        if let Some(source) = &volume.azure_file {
            self.add_secret(&source.secret_name, None);
        }
    }

    fn add_projected(&mut self, projected: &ProjectedVolumeSource) {
        for source in projected.sources.iter().flatten() {
            if let Some(source) = &source.config_map {
                self.add_config_map(&source.name, source.optional);
            }
            if let Some(source) = &source.secret {
                self.add_secret(&source.name, source.optional);
            }
        }
    }

    fn add_env(&mut self, env: Option<&Vec<EnvVar>>, from: Option<&Vec<EnvFromSource>>) {
        for source in env.into_iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            if let Some(key) = &source.config_map_key_ref {
                self.add_config_map(&key.name, key.optional);
            }
            if let Some(key) = &source.secret_key_ref {
                self.add_secret(&key.name, key.optional);
            }
        }
        for source in from.into_iter().flatten() {
            if let Some(source) = &source.config_map_ref {
                self.add_config_map(&source.name, source.optional);
            }
            if let Some(source) = &source.secret_ref {
                self.add_secret(&source.name, source.optional);
            }
        }
    }
}

/// Adds a name. One mandatory reference makes the object mandatory.
fn add(all: &mut BTreeSet<String>, optional: &mut BTreeSet<String>, name: &str, is_optional: Option<bool>) {
    if name.is_empty() {
        return;
    }
    let is_new = all.insert(name.to_owned());
    if is_optional != Some(true) {
        optional.remove(name);
    } else if is_new {
        optional.insert(name.to_owned());
    }
}
