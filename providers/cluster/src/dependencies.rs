//! What a pod needs of its namespace.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Pod, PodSpec, ProjectedVolumeSource, Volume};

use crate::translate::is_api_access;

#[cfg(test)]
mod tests;

/// The ConfigMap that every cluster has in every namespace, with its own certificate in it.
const ROOT_CA: &str = "kube-root-ca.crt";

/// The objects in the upper namespace that a pod names, and that it needs below.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependencies {
    /// Names of ConfigMaps.
    pub config_maps: BTreeMap<String, Need>,
    /// Names of Secrets.
    pub secrets: BTreeMap<String, Need>,
    /// Names of PersistentVolumeClaims, among them those that are made for one pod.
    pub claims: BTreeSet<String>,
    /// The service account, which a pod without [access](crate::translate::api_access) does without. `None` for the one that every
    /// namespace has.
    pub service_account: Option<String>,
}

/// How much an object is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Whether a kubelet starts the pod without it.
    pub optional: bool,
}

/// What a pod needs. What the admission above put in for the API server there is not among it.
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
    for secret in spec.image_pull_secrets.iter().flatten() {
        // A kubelet warns of one that is missing, and tries without it.
        all.secret(&secret.name, Some(true));
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

/// What the claim is called that is made for a volume of one pod.
pub(crate) fn claim_of(pod: &str, volume: &str) -> String {
    format!("{pod}-{volume}")
}

// === impl Dependencies ===

impl Dependencies {
    fn config_map(&mut self, name: &str, optional: Option<bool>) {
        if name != ROOT_CA {
            need(&mut self.config_maps, name, optional);
        }
    }

    fn secret(&mut self, name: &str, optional: Option<bool>) {
        need(&mut self.secrets, name, optional);
    }

    fn add_volume(&mut self, pod: &str, volume: &Volume) {
        if let Some(source) = &volume.config_map {
            self.config_map(&source.name, source.optional);
        }
        if let Some(source) = &volume.secret {
            self.secret(source.secret_name.as_deref().unwrap_or_default(), source.optional);
        }
        if let Some(source) = &volume.projected {
            self.add_projected(source);
        }
        if let Some(source) = &volume.persistent_volume_claim {
            self.claims.insert(source.claim_name.clone());
        }
        if volume.ephemeral.is_some() {
            self.claims.insert(claim_of(pod, &volume.name));
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
            self.secret(&secret.name, None);
        }
        if let Some(source) = &volume.azure_file {
            self.secret(&source.secret_name, None);
        }
    }

    fn add_projected(&mut self, projected: &ProjectedVolumeSource) {
        for source in projected.sources.iter().flatten() {
            if let Some(source) = &source.config_map {
                self.config_map(&source.name, source.optional);
            }
            if let Some(source) = &source.secret {
                self.secret(&source.name, source.optional);
            }
        }
    }

    fn add_env(&mut self, env: Option<&Vec<EnvVar>>, from: Option<&Vec<EnvFromSource>>) {
        for source in env.into_iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            if let Some(key) = &source.config_map_key_ref {
                self.config_map(&key.name, key.optional);
            }
            if let Some(key) = &source.secret_key_ref {
                self.secret(&key.name, key.optional);
            }
        }
        for source in from.into_iter().flatten() {
            if let Some(source) = &source.config_map_ref {
                self.config_map(&source.name, source.optional);
            }
            if let Some(source) = &source.secret_ref {
                self.secret(&source.name, source.optional);
            }
        }
    }
}

/// An object that is needed once is needed.
fn need(all: &mut BTreeMap<String, Need>, name: &str, optional: Option<bool>) {
    if name.is_empty() {
        return;
    }
    let optional = optional.unwrap_or(false);
    let known = all.entry(name.to_owned()).or_insert(Need { optional });
    known.optional &= optional;
}
