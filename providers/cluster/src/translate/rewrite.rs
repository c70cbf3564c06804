//! Rewrites the fields of a pod that would mean something else in the lower cluster.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::core::v1::{
        DownwardAPIVolumeFile, EnvVar, EphemeralContainer, PersistentVolumeClaimVolumeSource, Pod, PodSpec,
        Volume, VolumeMount,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{ApiAccess, Rejection, TranslationPolicy, api_access, metadata};
use crate::{
    dependencies,
    names::{self, OwnerId},
};

/// An upper pod, and what differs in its lower pod.
pub(super) struct PodRewriter<'a> {
    pub(super) meta: &'a ObjectMeta,
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    pub(super) uid: &'a str,
    /// The lower namespace.
    pub(super) lower_namespace: String,
    pub(super) access: ApiAccess,
    /// The upper service account.
    account: &'a str,
    lower_account: String,
    /// Volumes that the lower pod does not have.
    removed: BTreeSet<String>,
    policy: &'a TranslationPolicy,
}

// === impl PodRewriter ===

impl<'a> PodRewriter<'a> {
    pub(super) fn of(
        upper: &'a Pod,
        owner: &OwnerId,
        policy: &'a TranslationPolicy,
    ) -> Result<Self, Rejection> {
        let meta = &upper.metadata;
        let required = |field: &'a Option<String>, what: &str| {
            field
                .as_deref()
                .filter(|text| !text.is_empty())
                .ok_or_else(|| Rejection(format!("the pod has no {what}")))
        };
        let namespace = required(&meta.namespace, "namespace")?;
        let lower_namespace = policy.namespaces.to_lower(namespace).ok_or_else(|| {
            Rejection(format!(
                "namespace {namespace} is not mapped to the lower cluster: add it to `namespaces` in the configuration of the \
                 provider"
            ))
        })?;
        let access = api_access::api_access(upper, policy)?;
        Ok(Self {
            meta,
            name: required(&meta.name, "name")?,
            namespace,
            uid: required(&meta.uid, "UID")?,
            lower_namespace,
            access,
            account: upper.spec.as_ref().map_or("default", dependencies::service_account),
            lower_account: policy.accounts.lower_account(upper, owner),
            removed: upper.spec.as_ref().map(|spec| api_access::removed(spec, access)).unwrap_or_default(),
            policy,
        })
    }

    /// Rewrites a spec.
    pub(super) fn rewrite_spec(&self, spec: &mut PodSpec) {
        spec.service_account_name = Some(self.lower_account.clone());
        if self.access == ApiAccess::None {
            spec.automount_service_account_token = Some(false);
        }
        let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
        for container in containers {
            self.rewrite_env(&mut container.env);
            self.rewrite_mounts(&mut container.volume_mounts);
        }
        if let Some(volumes) = &mut spec.volumes {
            volumes.retain(|volume| !self.removed.contains(&volume.name));
            for volume in volumes.iter_mut() {
                self.rewrite_volume(volume);
            }
        }
        if spec.volumes.as_ref().is_some_and(Vec::is_empty) {
            spec.volumes = None;
        }
    }

    /// Rewrites an ephemeral container.
    pub(super) fn rewrite_ephemeral(&self, container: &mut EphemeralContainer) {
        self.rewrite_env(&mut container.env);
        self.rewrite_mounts(&mut container.volume_mounts);
    }

    fn rewrite_mounts(&self, mounts: &mut Option<Vec<VolumeMount>>) {
        if let Some(list) = mounts {
            list.retain(|mount| !self.removed.contains(&mount.name));
            if list.is_empty() {
                *mounts = None;
            }
        }
    }

    fn rewrite_env(&self, env: &mut Option<Vec<EnvVar>>) {
        for variable in env.iter_mut().flatten() {
            let field = variable.value_from.as_ref().and_then(|source| source.field_ref.as_ref());
            if let Some(value) = field.and_then(|field| self.literal(&field.field_path)) {
                variable.value_from = None;
                // Literal values are expanded, field references are not.
                variable.value = Some(value.replace('$', "$$"));
            }
        }
    }

    /// The upper value of a field whose lower value differs.
    fn literal(&self, path: &str) -> Option<String> {
        match path {
            "metadata.namespace" if self.lower_namespace != self.namespace => Some(self.namespace.to_owned()),
            "metadata.uid" => Some(self.uid.to_owned()),
            "spec.serviceAccountName" if self.lower_account != self.account => Some(self.account.to_owned()),
            _ => {
                // Labels and annotations that are not copied cannot be referenced in the lower pod.
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

    fn rewrite_volume(&self, volume: &mut Volume) {
        if volume.ephemeral.take().is_some() {
            // The claim is copied like any other. If the lower cluster also created one from the template, it would reject the claim
            // because it does not belong to its pod.
            let claim_name = dependencies::ephemeral_claim_name(self.name, &volume.name);
            volume.persistent_volume_claim =
                Some(PersistentVolumeClaimVolumeSource { claim_name, read_only: None });
        }
        let items = volume.downward_api.iter_mut().flat_map(|source| source.items.iter_mut().flatten());
        items.for_each(|item| self.rewrite_item(item));
        let Some(sources) = volume.projected.as_mut().and_then(|projected| projected.sources.as_mut()) else {
            return;
        };
        if self.access == ApiAccess::None {
            sources.retain(|source| source.service_account_token.is_none());
        }
        // Only optional ones are left. Those of the lower cluster would be others.
        sources.retain(|source| source.cluster_trust_bundle.is_none());
        for source in sources {
            let items = source.downward_api.iter_mut().flat_map(|source| source.items.iter_mut().flatten());
            items.for_each(|item| self.rewrite_item(item));
        }
    }

    /// A file cannot have a literal value, but our labels and annotations contain the upper values.
    fn rewrite_item(&self, item: &mut DownwardAPIVolumeFile) {
        let Some(field) = &mut item.field_ref else { return };
        match field.field_path.as_str() {
            "metadata.namespace" if self.lower_namespace != self.namespace => {
                field.field_path = format!("metadata.annotations['{}']", names::ORIGIN_NAMESPACE);
            }
            "metadata.uid" => field.field_path = format!("metadata.labels['{}']", names::ORIGIN_UID),
            _ => {}
        }
    }
}
