//! PersistentVolumeClaims of pods and the volumes they are bound to. A node may read but not watch them.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use vk_kube::{Client, Kind, Objects};
use vk_provider::{
    Error, Result, error,
    resolve::{Claim, Reference, ReferenceKind},
};

use super::read_error_kind;

/// Reads a claim and its volume.
pub(super) async fn read(client: &Client, namespace: &str, name: &str) -> Result<Claim> {
    let reference = || Reference::new(ReferenceKind::PersistentVolumeClaim, namespace, name);
    let unbound =
        |reason: &str| Error::new(error::Kind::Unresolved(reference()), format!("claim {name:?}: {reason}"));
    let claims = Objects::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
    let claim = claims.get(name).await.map_err(|error| match error.kind {
        Kind::NotFound => unbound("it does not exist"),
        _ => failed("PersistentVolumeClaim", name, error),
    })?;
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(unbound("it is being deleted"));
    }
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let bound_to = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let (Some("Bound"), Some(bound_to)) = (phase, bound_to) else {
        return Err(unbound("it is not bound to a volume yet"));
    };
    let volumes = Objects::<PersistentVolume>::all(client.clone());
    let volume = volumes.get(bound_to).await.map_err(|error| match error.kind {
        Kind::NotFound => unbound("its volume does not exist"),
        _ => failed("PersistentVolume", bound_to, error),
    })?;
    // A volume bound to an earlier claim of the same name has someone else's data.
    let owner = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()).and_then(|it| it.uid.as_ref());
    if owner != claim.metadata.uid.as_ref() {
        return Err(unbound("its volume is bound to another claim"));
    }
    Ok(Claim { claim: Arc::new(claim), volume: Arc::new(volume) })
}

fn failed(kind: &str, name: &str, error: vk_kube::Error) -> Error {
    Error::new(read_error_kind(&error), format!("read {kind} {name}")).caused_by(error)
}
