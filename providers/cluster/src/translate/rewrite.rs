//! What an upper pod is called below, and what its containers see of that.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::core::v1::{
        DownwardAPIVolumeFile, EnvVar, EphemeralContainer, PersistentVolumeClaimVolumeSource, Pod, PodSpec,
        Volume, VolumeMount,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{Access, Policy, Rejection, api_access, metadata};
use crate::{dependencies, names};

/// An upper pod and its lower one.
pub(super) struct PodRewriter<'a> {
    pub(super) meta: &'a ObjectMeta,
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    pub(super) uid: &'a str,
    /// The namespace below.
    pub(super) below: String,
    access: Access,
    /// The service account above.
    account: &'a str,
    /// Volumes that the lower pod has not.
    removed: BTreeSet<String>,
    policy: &'a Policy,
}

// === impl PodRewriter ===

impl<'a> PodRewriter<'a> {
    pub(super) fn of(upper: &'a Pod, policy: &'a Policy) -> Result<Self, Rejection> {
        let meta = &upper.metadata;
        let said = |field: &'a Option<String>, what: &str| {
            field
                .as_deref()
                .filter(|text| !text.is_empty())
                .ok_or_else(|| Rejection(format!("the pod has no {what}")))
        };
        let namespace = said(&meta.namespace, "namespace")?;
        let below = policy.namespaces.to_lower(namespace).ok_or_else(|| {
            Rejection(format!(
                "namespace {namespace} has no place in the lower cluster: `namespaces` in the provider's configuration does not \
                 name it"
            ))
        })?;
        let access = api_access::api_access(upper, policy)?;
        Ok(Self {
            meta,
            name: said(&meta.name, "name")?,
            namespace,
            uid: said(&meta.uid, "UID")?,
            below,
            access,
            account: upper.spec.as_ref().map_or("default", dependencies::service_account),
            removed: upper.spec.as_ref().map(|spec| api_access::removed(spec, access)).unwrap_or_default(),
            policy,
        })
    }

    /// Makes of a spec one that says the same below.
    pub(super) fn fit(&self, spec: &mut PodSpec) {
        match self.access {
            Access::Lower => spec.service_account_name = Some(self.account.to_owned()),
            Access::None => {
                spec.service_account_name = Some("default".to_owned());
                spec.automount_service_account_token = Some(false);
            }
        }
        let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
        for container in containers {
            self.fit_env(&mut container.env);
            self.fit_mounts(&mut container.volume_mounts);
        }
        if let Some(volumes) = &mut spec.volumes {
            volumes.retain(|volume| !self.removed.contains(&volume.name));
            for volume in volumes.iter_mut() {
                self.fit_volume(volume);
            }
        }
        if spec.volumes.as_ref().is_some_and(Vec::is_empty) {
            spec.volumes = None;
        }
    }

    /// The same of a container that comes later.
    pub(super) fn fit_ephemeral(&self, container: &mut EphemeralContainer) {
        self.fit_env(&mut container.env);
        self.fit_mounts(&mut container.volume_mounts);
    }

    fn fit_mounts(&self, mounts: &mut Option<Vec<VolumeMount>>) {
        if let Some(list) = mounts {
            list.retain(|mount| !self.removed.contains(&mount.name));
            if list.is_empty() {
                *mounts = None;
            }
        }
    }

    fn fit_env(&self, env: &mut Option<Vec<EnvVar>>) {
        for variable in env.iter_mut().flatten() {
            let field = variable.value_from.as_ref().and_then(|source| source.field_ref.as_ref());
            if let Some(value) = field.and_then(|field| self.literal(&field.field_path)) {
                variable.value_from = None;
                // A literal is expanded, a reference is not.
                variable.value = Some(value.replace('$', "$$"));
            }
        }
    }

    /// The upper value of a field, where the lower pod has another one.
    fn literal(&self, path: &str) -> Option<String> {
        match path {
            "metadata.namespace" if self.below != self.namespace => Some(self.namespace.to_owned()),
            "metadata.uid" => Some(self.uid.to_owned()),
            "spec.serviceAccountName" if self.access == Access::None && self.account != "default" => {
                Some(self.account.to_owned())
            }
            _ => {
                // Of what stays above there is nothing to refer to below.
                let (map, key) = path.strip_suffix("']")?.split_once("['")?;
                match map {
                    "metadata.labels" if !metadata::keeps_label(key, self.policy) => {
                        names::label(self.meta, key).map(ToOwned::to_owned)
                    }
                    "metadata.annotations" if !metadata::keeps_annotation(key, self.policy) => {
                        names::annotation(self.meta, key).map(ToOwned::to_owned)
                    }
                    _ => None,
                }
            }
        }
    }

    fn fit_volume(&self, volume: &mut Volume) {
        if volume.ephemeral.take().is_some() {
            // The claim is copied like any other. Were it made from its template below as well, the two would be in each
            // other's way: a claim that is not its own pod's is refused there.
            let claim_name = dependencies::claim_of(self.name, &volume.name);
            volume.persistent_volume_claim =
                Some(PersistentVolumeClaimVolumeSource { claim_name, read_only: None });
        }
        let items = volume.downward_api.iter_mut().flat_map(|source| source.items.iter_mut().flatten());
        items.for_each(|item| self.fit_item(item));
        let Some(sources) = volume.projected.as_mut().and_then(|projected| projected.sources.as_mut()) else {
            return;
        };
        if self.access == Access::None {
            sources.retain(|source| source.service_account_token.is_none());
        }
        for source in sources {
            let items = source.downward_api.iter_mut().flat_map(|source| source.items.iter_mut().flatten());
            items.for_each(|item| self.fit_item(item));
        }
    }

    /// A file has no literal value, but our marks have the upper ones.
    fn fit_item(&self, item: &mut DownwardAPIVolumeFile) {
        let Some(field) = &mut item.field_ref else { return };
        match field.field_path.as_str() {
            "metadata.namespace" if self.below != self.namespace => {
                field.field_path = format!("metadata.annotations['{}']", names::ORIGIN_NAMESPACE);
            }
            "metadata.uid" => field.field_path = format!("metadata.labels['{}']", names::ORIGIN_UID),
            _ => {}
        }
    }
}
