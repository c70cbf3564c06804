//! What every lower object of a virtual node hangs on: one ConfigMap in each lower namespace.
//!
//! A lower pod has it as its controller, so that nobody below takes the pod for his own by its labels, and a drain below treats it as
//! one that somebody looks after. Whoever deletes the anchor has the lower cluster clean up after us.

use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use vk_kube::{Client, Error, Kind, Objects};

use crate::names::{self, Owner};

/// What the anchor of a virtual node is called, in every namespace.
pub fn name(owner: &Owner) -> String {
    let sum = names::sha256_hex(format!("{}/{}", owner.origin, owner.node).as_bytes());
    format!("vk-anchor-{}", &sum[..16])
}

/// Sees to it that there is an anchor in a lower namespace, and answers the reference to it that pods have. Other objects have the
/// same without `controller`.
pub async fn ensure(lower: &Client, namespace: &str, owner: &Owner) -> Result<OwnerReference, Error> {
    let objects: Objects<ConfigMap> = Objects::namespaced(lower.clone(), namespace);
    let name = name(owner);
    let found = match objects.get(&name).await {
        Err(error) if error.kind == Kind::NotFound => match objects.create(&forge(&name, owner)).await {
            // Somebody was faster: another process of ours.
            Err(error) if error.kind == Kind::AlreadyExists => objects.get(&name).await?,
            made => made?,
        },
        found => found?,
    };
    reference(&found.metadata, namespace, owner)
}

/// Sees to it that there is a lower namespace. To find one there is as good as to make it, whoever made it.
pub async fn ensure_namespace(lower: &Client, below: &str, above: &str, owner: &Owner) -> Result<(), Error> {
    let objects: Objects<Namespace> = Objects::cluster(lower.clone());
    match objects.get(below).await {
        Err(error) if error.kind == Kind::NotFound => {
            let metadata = ObjectMeta {
                name: Some(below.to_owned()),
                labels: Some([(names::ORIGIN.to_owned(), owner.origin.clone())].into()),
                annotations: Some([(names::ORIGIN_NAMESPACE.to_owned(), above.to_owned())].into()),
                ..ObjectMeta::default()
            };
            match objects.create(&Namespace { metadata, ..Namespace::default() }).await {
                Err(error) if error.kind == Kind::AlreadyExists => Ok(()),
                made => made.map(drop),
            }
        }
        // Who has rights in some namespaces alone was given those that there are.
        Err(error) if error.kind == Kind::Forbidden => Ok(()),
        found => found.map(drop),
    }
}

fn forge(name: &str, owner: &Owner) -> ConfigMap {
    let labels = [(names::ORIGIN, owner.origin.clone()), (names::NODE, owner.node_label())];
    let about = "All that this virtual node has in this namespace goes when this ConfigMap is deleted.";
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

fn reference(found: &ObjectMeta, namespace: &str, owner: &Owner) -> Result<OwnerReference, Error> {
    let name = name(owner);
    if !owner.owns(found) {
        let message = format!(
            "ConfigMap {namespace}/{name} is not ours, though it has the name of our anchor: rename or delete it"
        );
        return Err(Error::new(Kind::Invalid, message));
    }
    if found.deletion_timestamp.is_some() {
        let message = format!("the anchor {namespace}/{name} is being deleted, and all that hangs on it");
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

    fn owner() -> Owner {
        Owner { origin: "upper".to_owned(), node: "vk".to_owned() }
    }

    #[test]
    fn every_virtual_node_of_every_cluster_has_an_anchor_of_its_own() {
        let other_node = Owner { node: "other".to_owned(), ..owner() };
        let other_origin = Owner { origin: "other".to_owned(), ..owner() };
        assert_ne!(name(&owner()), name(&other_node));
        assert_ne!(name(&owner()), name(&other_origin));
        assert!(name(&Owner { node: "n".repeat(253), ..owner() }).len() < 63);
    }

    #[test]
    fn pods_are_controlled_by_an_anchor_of_ours_alone() {
        let mut made = forge(&name(&owner()), &owner()).metadata;
        made.uid = Some("u1".to_owned());
        let reference_to = reference(&made, "default", &owner()).unwrap();
        assert_eq!((reference_to.uid.as_str(), reference_to.controller), ("u1", Some(true)));
        assert_eq!(reference_to.block_owner_deletion, Some(false));
        let foreign = ObjectMeta { labels: None, ..made.clone() };
        let error = reference(&foreign, "default", &owner()).unwrap_err();
        assert!(error.message.contains("not ours"), "{error}");
        let other = Owner { node: "other".to_owned(), ..owner() };
        assert!(reference(&made, "default", &other).is_err(), "another node's");
    }
}
