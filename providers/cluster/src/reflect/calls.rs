//! Calls below.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use vk_kube::{Error, Kind as ErrorKind, Objects, Patch, Selector};

use super::{
    Call, Kind, Shared,
    forge::find,
    kind::Reflected,
    machine::{Answer, Event},
    twin::Place,
};
use crate::{anchor, dependencies::dependencies, names::ORIGIN};

/// Makes a call, and tells how it ended.
pub(super) async fn run(shared: Arc<Shared>, place: Place, call: Call) {
    let answer = match place.kind {
        Kind::ConfigMap => made::<ConfigMap>(&shared, &place, call).await,
        Kind::Secret => made::<Secret>(&shared, &place, call).await,
        Kind::ServiceAccount => made::<ServiceAccount>(&shared, &place, call).await,
        Kind::Claim => made::<PersistentVolumeClaim>(&shared, &place, call).await,
    };
    shared.tell(Event::Answer(place, answer));
}

/// Sees to it that there is a namespace, and our anchor in it.
pub(super) async fn settle(shared: Arc<Shared>, below: String, above: String) {
    let settled = async {
        anchor::ensure_namespace(&shared.lower, &below, &above, &shared.owner).await?;
        anchor::ensure(&shared.lower, &below, &shared.owner).await
    };
    let answer = settled.await;
    shared.tell(Event::Settled(below, answer));
}

async fn made<K: Reflected>(shared: &Shared, place: &Place, call: Call) -> Result<Answer, Error> {
    let objects = K::objects(shared.lower.clone(), Some(&place.namespace));
    let found = |object: &K| Answer::Found(Some(Box::new(find(object, &shared.owner))));
    match call {
        Call::Create(forged, anchor) => {
            let mut object: K = serde_json::from_str(&forged.body)
                .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
            object.metadata_mut().owner_references = anchor.map(|anchor| vec![anchor]);
            objects.create(&object).await.map(|object| found(&object))
        }
        Call::Patch(before, forged) => {
            let patch = before.patch(place.kind, &forged);
            objects.patch(&place.name, Patch::Json(&patch)).await.map(|object| found(&object))
        }
        Call::Delete(uid) => match objects.delete(&place.name, &uid).await {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(Answer::Found(None)),
            answer => answer.map(|()| Answer::Deleted),
        },
        Call::Read => match objects.get(&place.name).await {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(Answer::Found(None)),
            answer => answer.map(|object| found(&object)),
        },
        Call::Survey => is_used(shared, place).await.map(Answer::Used),
    }
}

/// Whether a pod of our upper cluster names it, of whichever virtual node. One that has ended does not.
async fn is_used(shared: &Shared, place: &Place) -> Result<bool, Error> {
    let pods: Objects<Pod> = Objects::namespaced(shared.lower.clone(), &place.namespace);
    let labels = Some(format!("{ORIGIN}={}", shared.owner.origin));
    let pods = pods.list(&Selector { fields: None, labels }).await?.objects;
    Ok(pods.iter().filter(|pod| !has_ended(pod)).any(|pod| names(pod, place.kind, &place.name)))
}

/// Whether a lower pod names an object of its namespace.
pub(crate) fn names(pod: &Pod, kind: Kind, name: &str) -> bool {
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
    vk_provider::pod::is_terminal(pod)
}
