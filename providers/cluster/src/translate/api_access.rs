//! Which API server a pod may ask, and as whom.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodSpec, Volume};

use super::{Access, Policy, Rejection};
use crate::names;

/// Which API server a pod's service account is of: as the pod says in [`API_ACCESS`](names::API_ACCESS), or as the operator does.
pub fn api_access(upper: &Pod, policy: &Policy) -> Result<Access, Rejection> {
    match names::annotation(&upper.metadata, names::API_ACCESS) {
        None => Ok(policy.access),
        Some("lower") => Ok(Access::Lower),
        Some("none") => Ok(Access::None),
        Some(other) => Err(Rejection(format!(
            "annotation {}: {other:?} is not offered: it is \"lower\" for the API server of the cluster that the pod runs in, or \
             \"none\"",
            names::API_ACCESS
        ))),
    }
}

/// Whether a volume was put into the pod by the admission above for the upper API server. The one below puts in its own.
pub(crate) fn is_api_access(volume: &Volume) -> bool {
    (volume.name.starts_with("kube-api-access-") && is_token(volume))
        || (volume.name.starts_with("default-token-") && volume.secret.is_some())
}

fn is_token(volume: &Volume) -> bool {
    let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    sources.into_iter().any(|source| source.service_account_token.is_some())
}

/// The names of volumes that the lower pod has not.
pub(super) fn removed(spec: &PodSpec, access: Access) -> BTreeSet<String> {
    let gone = |volume: &&Volume| {
        is_api_access(volume) || (access == Access::None && is_token(volume) && is_all_tokens(volume))
    };
    spec.volumes.iter().flatten().filter(gone).map(|volume| volume.name.clone()).collect()
}

/// Whether nothing is left of a volume without its tokens.
fn is_all_tokens(volume: &Volume) -> bool {
    let mut sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    sources.all(|source| source.service_account_token.is_some())
}
