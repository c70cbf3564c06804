//! Calls below.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use vk_kube::{Error, Kind as ErrorKind, Objects, Patch, Selector};

use super::{
    Call, Inner, Kind,
    build::observe,
    diff::CopyKey,
    kind::CopiedObject,
    state_machine::{CallOutcome, Event},
};
use crate::{dependencies::dependencies, names::ORIGIN, owner_config_map};

/// Makes a call, and tells how it ended.
pub(super) async fn execute(inner: Arc<Inner>, key: CopyKey, call: Call) {
    let answer = match key.kind {
        Kind::ConfigMap => execute_for::<ConfigMap>(&inner, &key, call).await,
        Kind::Secret => execute_for::<Secret>(&inner, &key, call).await,
        Kind::ServiceAccount => execute_for::<ServiceAccount>(&inner, &key, call).await,
        Kind::Claim => execute_for::<PersistentVolumeClaim>(&inner, &key, call).await,
    };
    inner.handle(Event::CallFinished(key, answer));
}

/// Sees to it that there is a namespace, and our anchor in it.
pub(super) async fn ensure_namespace(inner: Arc<Inner>, below: String, above: String) {
    let handle_namespace_result = async {
        owner_config_map::ensure_namespace(&inner.lower, &below, &above, &inner.owner).await?;
        owner_config_map::ensure(&inner.lower, &below, &inner.owner).await
    };
    let answer = handle_namespace_result.await;
    inner.handle(Event::NamespaceEnsured(below, answer));
}

async fn execute_for<K: CopiedObject>(
    inner: &Inner,
    key: &CopyKey,
    call: Call,
) -> Result<CallOutcome, Error> {
    let objects = K::objects(inner.lower.clone(), Some(&key.namespace));
    let found = |object: &K| CallOutcome::Object(Some(Box::new(observe(object, &inner.owner))));
    match call {
        Call::Create(desired, anchor) => {
            let mut object: K = serde_json::from_str(&desired.body)
                .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
            object.metadata_mut().owner_references = anchor.map(|anchor| vec![anchor]);
            objects.create(&object).await.map(|object| found(&object))
        }
        Call::Patch(before, desired) => {
            let patch = before.patch(key.kind, &desired);
            objects.patch(&key.name, Patch::Json(&patch)).await.map(|object| found(&object))
        }
        Call::Delete(uid) => match objects.delete(&key.name, &uid).await {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(CallOutcome::Object(None)),
            answer => answer.map(|()| CallOutcome::Deleting),
        },
        Call::Read => match objects.get(&key.name).await {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(CallOutcome::Object(None)),
            answer => answer.map(|object| found(&object)),
        },
        Call::CheckUse => is_used(inner, key).await.map(CallOutcome::InUse),
    }
}

/// Whether a pod of our upper cluster names it, of whichever virtual node. One that has ended does not.
async fn is_used(inner: &Inner, key: &CopyKey) -> Result<bool, Error> {
    let pods: Objects<Pod> = Objects::namespaced(inner.lower.clone(), &key.namespace);
    let labels = Some(format!("{ORIGIN}={}", inner.owner.origin));
    let pods = pods.list(&Selector { fields: None, labels }).await?.objects;
    Ok(pods.iter().filter(|pod| !has_ended(pod)).any(|pod| references(pod, key.kind, &key.name)))
}

/// Whether a lower pod names an object of its namespace.
pub(crate) fn references(pod: &Pod, kind: Kind, name: &str) -> bool {
    let needs = dependencies(pod);
    match kind {
        Kind::ConfigMap => needs.config_maps.contains_key(name),
        Kind::Secret => needs.secrets.contains_key(name),
        Kind::ServiceAccount => needs.service_account.as_deref() == Some(name),
        Kind::Claim => needs.claims.contains(name),
    }
}

/// Whether a pod needs nothing any more.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
