//! The objects found in the lower cluster, and the plan for their removal.

use k8s_openapi::{
    Metadata,
    api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, ServiceAccount},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use vk_kube::{Error, Objects, Selector};

use super::{DetachOptions, LowerObject};
use crate::{
    copies::{self, kind::CopiedObject},
    names::{self, OwnerId, label},
    owner_config_map,
    status::has_ended,
};

pub(super) const POD: &str = "Pod";
pub(super) const CONFIG_MAP: &str = "ConfigMap";
pub(super) const SECRET: &str = "Secret";
pub(super) const SERVICE_ACCOUNT: &str = "ServiceAccount";

/// All objects of one upper cluster.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    pub(super) pods: Vec<Pod>,
    pub(super) config_maps: Vec<ConfigMap>,
    pub(super) secrets: Vec<Secret>,
    pub(super) accounts: Vec<ServiceAccount>,
    pub(super) claims: Vec<PersistentVolumeClaim>,
}

/// An object to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnedObject {
    pub(super) item: LowerObject,
    pub(super) uid: String,
    /// Whether it is already being deleted.
    pub(super) going: bool,
}

/// A copy that another virtual node needs as well.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Handover {
    pub(super) item: LowerObject,
    pub(super) version: String,
    /// The new owners.
    pub(super) owners: Vec<OwnerReference>,
    pub(super) why: String,
}

/// What to do with the inventory.
#[derive(Debug, Default, PartialEq)]
pub(super) struct DetachPlan {
    /// To be done first.
    pub(super) handovers: Vec<Handover>,
    /// Deleted one step after the other. Claims come first: they stay until no pod uses them, and only the pods show that they are ours.
    /// Then the owner ConfigMaps, so that the lower cluster cleans up even if this process dies.
    pub(super) steps: [Vec<OwnedObject>; 4],
    /// What stays, and why.
    pub(super) left: Vec<(LowerObject, String)>,
}

// === impl Inventory ===

impl Inventory {
    /// Lists all objects.
    pub(super) async fn read(options: &DetachOptions) -> Result<Self, Error> {
        let scopes = match &options.namespaces {
            Some(namespaces) => namespaces.iter().map(|name| Some(name.as_str())).collect(),
            None => vec![None],
        };
        let mut found = Self::default();
        for scope in scopes {
            let pods = match scope {
                Some(namespace) => Objects::namespaced(options.lower.clone(), namespace),
                None => Objects::all(options.lower.clone()),
            };
            found.pods.extend(pods.list(&selector(&options.owner)).await?.objects);
            found.config_maps.extend(list(options, scope).await?);
            found.secrets.extend(list(options, scope).await?);
            found.accounts.extend(list(options, scope).await?);
            found.claims.extend(list(options, scope).await?);
        }
        Ok(found)
    }

    /// Plans the removal of a virtual node.
    pub(super) fn plan(&self, owner: &OwnerId, keep_claims: bool) -> DetachPlan {
        let mut plan = DetachPlan::default();
        let [claims, owner_maps, pods, copies] = &mut plan.steps;
        pods.extend(self.pods.iter().filter(|pod| owner.owns(&pod.metadata)).map(object));
        owner_maps.extend(self.config_maps.iter().filter(|map| owner.owns(&map.metadata)).map(object));
        self.copies(&self.config_maps, owner, copies, &mut plan.handovers);
        self.copies(&self.secrets, owner, copies, &mut plan.handovers);
        self.copies(&self.accounts, owner, copies, &mut plan.handovers);
        for claim in &self.claims {
            match self.why_kept(claim, owner, keep_claims) {
                None => claims.push(object(claim)),
                Some(why) => plan.left.push((object(claim).item, why)),
            }
        }
        plan
    }

    /// All objects.
    pub(super) fn objects_listed(&self) -> impl Iterator<Item = OwnedObject> {
        let pods = self.pods.iter().map(object);
        let config_maps = self.config_maps.iter().map(object).chain(self.secrets.iter().map(object));
        pods.chain(config_maps).chain(self.accounts.iter().map(object)).chain(self.claims.iter().map(object))
    }

    /// Another virtual node of the upper cluster with objects in a namespace.
    pub(super) fn other_node(&self, owner: &OwnerId, namespace: &str) -> Option<&str> {
        let marked =
            self.pods.iter().map(|pod| &pod.metadata).chain(self.config_maps.iter().map(|map| &map.metadata));
        let mut here =
            marked.filter(|meta| meta.namespace.as_deref() == Some(namespace) && !owner.owns(meta));
        here.find_map(|meta| label(meta, names::NODE))
    }

    fn copies<K: CopiedObject>(
        &self,
        all: &[K],
        owner: &OwnerId,
        copies: &mut Vec<OwnedObject>,
        handovers: &mut Vec<Handover>,
    ) {
        let owner_name = owner_config_map::name(owner);
        let is_ours = |one: &OwnerReference| one.kind == CONFIG_MAP && one.name == owner_name;
        for copy in all {
            let meta = copy.metadata();
            let owners = meta.owner_references.as_deref().unwrap_or_default();
            if !owners.iter().any(is_ours) {
                continue;
            }
            let Some(user) = self.user::<K>(meta, owner) else {
                copies.push(object(copy));
                continue;
            };
            let other = label(&user.metadata, names::NODE).unwrap_or_default();
            let mut owners: Vec<OwnerReference> =
                owners.iter().filter(|one| !is_ours(one)).cloned().collect();
            owners.extend(self.owner_of(other, meta.namespace.as_deref()));
            handovers.push(Handover {
                item: object(copy).item,
                version: meta.resource_version.clone().unwrap_or_default(),
                owners,
                why: format!("pods of virtual node {other} use it: handed over to that node"),
            });
        }
    }

    /// A pod of another virtual node of the upper cluster that refers to an object.
    fn user<K: CopiedObject>(&self, meta: &ObjectMeta, owner: &OwnerId) -> Option<&Pod> {
        let name = meta.name.as_deref().unwrap_or_default();
        let others = self.pods.iter().filter(|pod| !owner.owns(&pod.metadata));
        let here = others.filter(|pod| pod.metadata.namespace == meta.namespace);
        // Other copies that an ended pod refers to can be made again, but not the data in a volume.
        let counts = |pod: &&Pod| K::COPY_KIND == copies::Kind::Claim || !has_ended(pod);
        here.filter(counts).find(|pod| copies::references(pod, K::COPY_KIND, name))
    }

    /// The reference to the owner ConfigMap of another virtual node.
    fn owner_of(&self, node: &str, namespace: Option<&str>) -> Option<OwnerReference> {
        let found =
            self.config_maps.iter().map(|map| &map.metadata).find(|meta| {
                meta.namespace.as_deref() == namespace && label(meta, names::NODE) == Some(node)
            })?;
        Some(OwnerReference {
            api_version: "v1".to_owned(),
            kind: CONFIG_MAP.to_owned(),
            name: found.name.clone()?,
            uid: found.uid.clone()?,
            controller: None,
            block_owner_deletion: Some(false),
        })
    }

    /// Why a claim stays; `None` if it can be deleted. Claims have no label of a virtual node, because their pods can move between nodes.
    /// If there is another node, only the claims are deleted that our pods alone use.
    fn why_kept(&self, claim: &PersistentVolumeClaim, owner: &OwnerId, keep_claims: bool) -> Option<String> {
        let meta = &claim.metadata;
        if keep_claims {
            return Some("claims are kept".to_owned());
        }
        if names::annotation(meta, names::ORIGIN_UID).is_none() {
            return Some("it is not marked as a copy".to_owned());
        }
        if let Some(user) = self.user::<PersistentVolumeClaim>(meta, owner) {
            let node = label(&user.metadata, names::NODE).unwrap_or_default();
            return Some(format!("pods of virtual node {node} use it"));
        }
        let other = self.other_node(owner, meta.namespace.as_deref().unwrap_or_default())?;
        let name = meta.name.as_deref().unwrap_or_default();
        let mut ours = self.pods.iter().filter(|pod| owner.owns(&pod.metadata));
        let used = ours.any(|pod| {
            pod.metadata.namespace == meta.namespace && copies::references(pod, copies::Kind::Claim, name)
        });
        (!used).then(|| format!("no pod uses it, and it may belong to virtual node {other}"))
    }
}

fn selector(owner: &OwnerId) -> Selector {
    Selector { fields: None, labels: Some(format!("{}={}", names::ORIGIN, owner.origin)) }
}

async fn list<K: CopiedObject>(options: &DetachOptions, namespace: Option<&str>) -> Result<Vec<K>, Error> {
    Ok(K::objects(options.lower.clone(), namespace).list(&selector(&options.owner)).await?.objects)
}

fn object<K: Metadata<Ty = ObjectMeta>>(object: &K) -> OwnedObject {
    let meta = object.metadata();
    OwnedObject {
        item: LowerObject {
            kind: K::KIND,
            namespace: meta.namespace.clone(),
            name: meta.name.clone().unwrap_or_default(),
        },
        uid: meta.uid.clone().unwrap_or_default(),
        going: meta.deletion_timestamp.is_some(),
    }
}
