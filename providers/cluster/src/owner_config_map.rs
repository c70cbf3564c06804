//! The owner ConfigMap: one per virtual node and lower namespace, which owns every other lower object of the node.
//!
//! It is the controller of the lower pods, so that no lower ReplicaSet adopts them by their labels and `kubectl drain` treats them as
//! managed. When it is deleted, the garbage collector of the lower cluster removes everything that it owns.

use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use vk_kube::{Client, Error, Kind, Objects, Selector};

use crate::names::{self, OwnerId};

/// The name of the owner ConfigMap, which is the same in every namespace.
pub fn name(owner: &OwnerId) -> String {
    let hash = names::sha256_hex(format!("{}/{}", owner.origin, owner.node).as_bytes());
    format!("vk-anchor-{}", &hash[..16])
}

/// Makes sure that the owner ConfigMap exists, and returns the owner reference for pods. Other objects use it without `controller`.
pub async fn ensure(lower: &Client, namespace: &str, owner: &OwnerId) -> Result<OwnerReference, Error> {
    let objects: Objects<ConfigMap> = Objects::namespaced(lower.clone(), namespace);
    let name = name(owner);
    let found = match objects.get(&name).await {
        Err(error) if error.kind == Kind::NotFound => match objects.create(&build(&name, owner)).await {
            // Another process of ours was faster.
            Err(error) if error.kind == Kind::AlreadyExists => objects.get(&name).await?,
            made => made?,
        },
        found => found?,
    };
    reference(&found.metadata, namespace, owner)
}

/// All owner ConfigMaps in a namespace: those of other upper clusters too, whose pods would be deleted with it.
pub(crate) async fn list(lower: &Client, namespace: &str) -> Result<Vec<ConfigMap>, Error> {
    let maps: Objects<ConfigMap> = Objects::namespaced(lower.clone(), namespace);
    let labels = Some(names::NODE.to_owned());
    Ok(maps.list(&Selector { fields: None, labels }).await?.objects)
}

/// The name of the virtual node that an owner ConfigMap belongs to, for messages.
pub(crate) fn node_of(map: &ConfigMap) -> &str {
    map.data.as_ref().and_then(|data| data.get("node")).map_or("another one", String::as_str)
}

/// Whether a lower namespace was created for this upper cluster.
pub(crate) fn is_created_by(owner: &OwnerId, namespace: &ObjectMeta) -> bool {
    owner.is_origin_of(namespace) && names::annotation(namespace, names::ORIGIN_NAMESPACE).is_some()
}

/// Makes sure that a lower namespace exists. A namespace that somebody else created is fine.
pub async fn ensure_namespace(
    lower: &Client,
    lower_name: &str,
    upper_name: &str,
    owner: &OwnerId,
) -> Result<(), Error> {
    let objects: Objects<Namespace> = Objects::all(lower.clone());
    match objects.get(lower_name).await {
        Err(error) if error.kind == Kind::NotFound => {
            let metadata = ObjectMeta {
                name: Some(lower_name.to_owned()),
                labels: Some([(names::ORIGIN.to_owned(), owner.origin.clone())].into()),
                annotations: Some([(names::ORIGIN_NAMESPACE.to_owned(), upper_name.to_owned())].into()),
                ..ObjectMeta::default()
            };
            match objects.create(&Namespace { metadata, ..Namespace::default() }).await {
                Err(error) if error.kind == Kind::AlreadyExists => Ok(()),
                made => made.map(drop),
            }
        }
        // A process with permissions in some namespaces only relies on existing ones.
        Err(error) if error.kind == Kind::Forbidden => Ok(()),
        found => found.map(drop),
    }
}

fn build(name: &str, owner: &OwnerId) -> ConfigMap {
    let labels = [(names::ORIGIN, owner.origin.clone()), (names::NODE, owner.node_label())];
    let about = "Deleting this ConfigMap deletes everything that this virtual node has in this namespace.";
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
            ..ObjectMeta::default()
        },
        data: Some(
            [("node", owner.node.as_str()), ("about", about)].map(|(a, b)| (a.into(), b.into())).into(),
        ),
        ..ConfigMap::default()
    }
}

fn reference(found: &ObjectMeta, namespace: &str, owner: &OwnerId) -> Result<OwnerReference, Error> {
    let name = name(owner);
    if !owner.owns(found) {
        let message = format!(
            "ConfigMap {namespace}/{name} has the name of our owner ConfigMap but is not ours: rename or delete it"
        );
        return Err(Error::new(Kind::Invalid, message));
    }
    if found.deletion_timestamp.is_some() {
        let message = format!(
            "owner ConfigMap {namespace}/{name} is being deleted together with everything that it owns"
        );
        return Err(Error::new(Kind::Conflict, message));
    }
    Ok(OwnerReference {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        name,
        uid: found.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> OwnerId {
        OwnerId { origin: "upper".to_owned(), node: "vk".to_owned() }
    }

    #[test]
    fn the_name_is_unique_per_cluster_and_node() {
        let other_node = OwnerId { node: "other".to_owned(), ..owner() };
        let other_origin = OwnerId { origin: "other".to_owned(), ..owner() };
        assert_ne!(name(&owner()), name(&other_node));
        assert_ne!(name(&owner()), name(&other_origin));
        assert!(name(&OwnerId { node: "n".repeat(253), ..owner() }).len() < 63);
    }

    #[test]
    fn a_foreign_config_map_never_becomes_the_owner() {
        let mut made = build(&name(&owner()), &owner()).metadata;
        made.uid = Some("u1".to_owned());
        let reference_to = reference(&made, "default", &owner()).unwrap();
        assert_eq!((reference_to.uid.as_str(), reference_to.controller), ("u1", Some(true)));
        assert_eq!(reference_to.block_owner_deletion, Some(false));
        let foreign = ObjectMeta { labels: None, ..made.clone() };
        let error = reference(&foreign, "default", &owner()).unwrap_err();
        assert!(error.message.contains("not ours"), "{error}");
        let other = OwnerId { node: "other".to_owned(), ..owner() };
        assert!(reference(&made, "default", &other).is_err(), "another node's");
    }
}
