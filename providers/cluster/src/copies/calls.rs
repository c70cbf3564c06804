//! API calls on the lower cluster.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use tokio::{sync::Mutex, time::Instant};
use vk_kube::{Error, Kind as ErrorKind, Objects, Patch, Selector};

use super::{
    Inner, Kind, LowerCall,
    build::observe,
    diff::CopyKey,
    kind::CopiedObject,
    kind::referenced_objects,
    state_machine::{CallOutcome, Event},
};
use crate::{
    dependencies::dependencies, names::ORIGIN, namespace_removal, owner_config_map, status::has_ended,
};

/// For how long a list of pods answers the question which copies are in use: a sweep asks it for thousands of copies at once.
const USE_LIST_TTL: Duration = Duration::from_secs(2);

/// What pods of a lower namespace refer to, and when they were listed. The lock is held while pods are listed: one list at a time.
#[derive(Debug, Default)]
pub(super) struct UseLists(Mutex<HashMap<String, (Instant, ObjectNames)>>);

/// Objects of a namespace.
type ObjectNames = BTreeSet<(Kind, String)>;

/// Executes a call and reports its outcome to the state machine.
pub(super) async fn execute(inner: Arc<Inner>, key: CopyKey, call: LowerCall) {
    // Thousands of calls may be due at once.
    let limiter = inner.lower.write_limiter();
    let _permit = limiter.acquire().await;
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
    let handle_namespace_result = async {
        owner_config_map::ensure_namespace(&inner.lower, &below, &above, &inner.owner).await?;
        owner_config_map::ensure(&inner.lower, &below, &inner.owner).await
    };
    let answer = handle_namespace_result.await;
    inner.handle(Event::NamespaceEnsured(below, answer));
}

/// Removes what we have in a lower namespace that nobody uses.
pub(super) async fn retire_namespace(inner: Arc<Inner>, below: String) {
    let answer = namespace_removal::retire(&inner.lower, &below, &inner.owner).await;
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
        LowerCall::Delete(uid) => match objects.delete(&key.name, &uid).await {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(CallOutcome::Object(None)),
            answer => answer.map(|()| CallOutcome::Deleting),
        },
        LowerCall::Read => match objects.get(&key.name).await {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(CallOutcome::Object(None)),
            answer => answer.map(|object| found(&object)),
        },
        LowerCall::CheckUse => is_used(inner, key).await.map(CallOutcome::InUse),
    }
}

/// Whether a pod of the same upper cluster refers to the copy, on any of its virtual nodes. Pods that have ended do not count. The API
/// server is asked only if the watch shows none.
async fn is_used(inner: &Inner, key: &CopyKey) -> Result<bool, Error> {
    if inner.lower_cluster.is_referenced(key) {
        return Ok(true);
    }
    let mut lists = inner.use_lists.0.lock().await;
    lists.retain(|_, (listed, _)| listed.elapsed() < USE_LIST_TTL);
    if !lists.contains_key(&key.namespace) {
        let pods: Objects<Pod> = Objects::namespaced(inner.lower.clone(), &key.namespace);
        let labels = Some(format!("{ORIGIN}={}", inner.owner.origin));
        let listed = Instant::now();
        let pods = pods.list(&Selector { fields: None, labels }).await?.objects;
        let mut used = BTreeSet::new();
        for pod in pods.iter().filter(|pod| !has_ended(pod)) {
            let needs = dependencies(pod);
            used.extend(referenced_objects(&needs).map(|(kind, name)| (kind, name.to_owned())));
        }
        lists.insert(key.namespace.clone(), (listed, used));
    }
    let used =
        lists.get(&key.namespace).is_some_and(|(_, used)| used.contains(&(key.kind, key.name.clone())));
    Ok(used)
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
