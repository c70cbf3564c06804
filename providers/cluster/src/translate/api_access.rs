//! The API server that a pod can access, and its service account there.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, PodSpec, Volume};

use super::{ApiAccess, Rejection, TranslationPolicy};
use crate::{
    dependencies,
    names::{self, OwnerId},
};

/// The service accounts of lower pods. The name of an upper account decides only where the operator says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// The lower account of pods without another one here; `None` for an account of ours without any rights.
    pub default: Option<String>,
    /// Lower accounts by upper ones: `NAMESPACE/NAME`, or `NAME` in every namespace.
    pub by_upper: BTreeMap<String, String>,
}

// === impl Accounts ===

impl Accounts {
    /// The service account of the lower pod of an upper pod.
    pub fn lower_account(&self, upper: &Pod, owner: &OwnerId) -> String {
        let namespace = upper.metadata.namespace.as_deref().unwrap_or_default();
        let account = upper.spec.as_ref().map_or("default", dependencies::service_account);
        let named = self.by_upper.get(&format!("{namespace}/{account}"));
        let named = named.or_else(|| self.by_upper.get(account)).or(self.default.as_ref());
        named.cloned().unwrap_or_else(|| owner.account_name())
    }
}

/// Whether a pod has a token of the lower API server: as configured, or by the annotation [`API_ACCESS`](names::API_ACCESS). A pod can
/// always do without.
pub fn api_access(upper: &Pod, policy: &TranslationPolicy) -> Result<ApiAccess, Rejection> {
    match names::annotation(&upper.metadata, names::API_ACCESS) {
        None => Ok(policy.access),
        Some("none") => Ok(ApiAccess::None),
        Some("lower") if policy.access == ApiAccess::Lower || policy.allowed.api_access => {
            Ok(ApiAccess::Lower)
        }
        Some("lower") => Err(Rejection(format!(
            "annotation {}: pods may not choose to access the lower API server: remove the annotation, or set `apiAccess: lower` or \
             `allow.apiAccess: true` in the configuration of the provider",
            names::API_ACCESS
        ))),
        Some(other) => Err(Rejection(format!(
            "annotation {}: unknown value {other:?}: use \"lower\" for the API server of the cluster that the pod runs in, or \"none\"",
            names::API_ACCESS
        ))),
    }
}

/// Whether the upper admission injected a volume for the upper API server. The lower admission injects its own.
pub(crate) fn is_api_access(volume: &Volume) -> bool {
    (volume.name.starts_with("kube-api-access-") && is_token(volume))
        || (volume.name.starts_with("default-token-") && volume.secret.is_some())
}

fn is_token(volume: &Volume) -> bool {
    let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    sources.into_iter().any(|source| source.service_account_token.is_some())
}

/// The names of volumes that the lower pod does not have.
pub(super) fn removed(spec: &PodSpec, access: ApiAccess) -> BTreeSet<String> {
    let gone = |volume: &&Volume| {
        is_api_access(volume) || (access == ApiAccess::None && is_token(volume) && is_all_tokens(volume))
    };
    spec.volumes.iter().flatten().filter(gone).map(|volume| volume.name.clone()).collect()
}

/// Whether a volume has nothing but tokens.
fn is_all_tokens(volume: &Volume) -> bool {
    let mut sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    sources.all(|source| source.service_account_token.is_some())
}
