//! API calls on the lower cluster.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use vk_kube::{Error, Kind as ErrorKind, Patch};

use super::{
    Inner, Kind, LowerCall,
    build::observe,
    copy_state::Deletion,
    diff::CopyKey,
    kind::CopiedObject,
    state_machine::{CallOutcome, Event},
};
use crate::{dependencies::dependencies, lower_cluster::ObjectUse, namespace_removal, owner_config_map};

/// Executes a call and reports its outcome to the state machine.
pub(super) async fn execute(inner: Arc<Inner>, key: CopyKey, call: LowerCall) {
    let limiter = inner.lower.write_limiter();
    let _permit = match call {
        // Mostly answered from memory, and never a write: it waits for none.
        LowerCall::CheckUse(_) => None,
        // Thousands of calls may be due at once.
        _ => Some(limiter.acquire().await),
    };
    let answer = match key.kind {
        Kind::ConfigMap => execute_for::<ConfigMap>(&inner, &key, call).await,
        Kind::Secret => execute_for::<Secret>(&inner, &key, call).await,
        Kind::ServiceAccount => execute_for::<ServiceAccount>(&inner, &key, call).await,
        Kind::Claim => execute_for::<PersistentVolumeClaim>(&inner, &key, call).await,
    };
    inner.handle(Event::CallFinished(key, answer));
}

/// Makes sure that a lower namespace exists and contains the owner ConfigMap.
pub(super) async fn ensure_namespace(inner: Arc<Inner>, below: String, above: String) {
    let (lower, owner) = (&inner.lower, &inner.owner);
    let ensure = async {
        owner_config_map::ensure_namespace(lower, &below, &above, owner).await?;
        let reference = owner_config_map::ensure(lower, &below, owner).await?;
        inner.marks.check_namespace_stays(lower, &below, owner).await?;
        Ok(reference)
    };
    let answer = ensure.await;
    inner.handle(Event::NamespaceEnsured(below, answer));
}

/// Removes what we have in a lower namespace that nobody uses.
pub(super) async fn retire_namespace(inner: Arc<Inner>, below: String) {
    let answer = namespace_removal::retire(&inner.lower, &below, &inner.owner, &inner.marks).await;
    inner.handle(Event::NamespaceRetired(below, answer));
}

async fn execute_for<K: CopiedObject>(
    inner: &Inner,
    key: &CopyKey,
    call: LowerCall,
) -> Result<CallOutcome, Error> {
    let objects = K::objects(inner.lower.clone(), Some(&key.namespace));
    let found = |object: &K| CallOutcome::Object(Some(Box::new(observe(object, &inner.owner))));
    match call {
        LowerCall::Create(desired, owner_reference) => {
            let mut object: K = serde_json::from_str(&desired.body)
                .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
            object.metadata_mut().owner_references =
                owner_reference.map(|owner_reference| vec![owner_reference]);
            objects.create(&object).await.map(|object| found(&object))
        }
        LowerCall::Patch(before, desired) => {
            let patch = before.patch(key.kind, &desired);
            objects.patch(&key.name, Patch::Json(&patch)).await.map(|object| found(&object))
        }
        LowerCall::Delete(Deletion { uid, unused_version }) => {
            let deleted = match unused_version {
                // It may have waited for other writes since the use check.
                Some(_) if inner.lower_cluster.is_known_to_be_used(key, ObjectUse::Optional) => {
                    return Ok(CallOutcome::InUse(true));
                }
                Some(version) => objects.delete_version(&key.name, &uid, &version.to_string()).await,
                None => objects.delete(&key.name, &uid).await,
            };
            match deleted {
                Err(error) if error.kind == ErrorKind::NotFound => Ok(CallOutcome::Object(None)),
                answer => answer.map(|()| CallOutcome::Deleting),
            }
        }
        LowerCall::Read => match objects.get(&key.name).await {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(CallOutcome::Object(None)),
            answer => answer.map(|object| found(&object)),
        },
        LowerCall::CheckUse(check) => {
            inner.lower_cluster.is_used(key, check.by).await.map(CallOutcome::InUse)
        }
    }
}

/// Whether a lower pod refers to an object of its namespace.
pub(crate) fn references(pod: &Pod, kind: Kind, name: &str) -> bool {
    let needs = dependencies(pod);
    match kind {
        Kind::ConfigMap => needs.config_maps.contains(name),
        Kind::Secret => needs.secrets.contains(name),
        Kind::ServiceAccount => needs.service_account.as_deref() == Some(name),
        Kind::Claim => needs.claims.contains(name),
    }
}
