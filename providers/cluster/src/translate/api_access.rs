//! The API server that a pod can access.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodSpec, Volume};

use super::{ApiAccess, Rejection, TranslationPolicy};
use crate::names;

/// The API server of a pod: that of the annotation [`API_ACCESS`](names::API_ACCESS), or the configured one.
pub fn api_access(upper: &Pod, policy: &TranslationPolicy) -> Result<ApiAccess, Rejection> {
    match names::annotation(&upper.metadata, names::API_ACCESS) {
        None => Ok(policy.access),
        Some("lower") => Ok(ApiAccess::Lower),
        Some("none") => Ok(ApiAccess::None),
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
