//! The kinds of objects that are copied, and which of their fields a copy contains.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use k8s_openapi::{
    Metadata,
    api::core::v1::{
        ConfigMap, PersistentVolumeClaim, PersistentVolumeClaimSpec, Secret, ServiceAccount,
        TypedLocalObjectReference, TypedObjectReference,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde_json::{Value, json};
use vk_kube::{Client, Objects, objects::Object};

use crate::{dependencies::Dependencies, names};

/// The type of Secrets that an API server fills in for its own service accounts.
const ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";
const OPAQUE: &str = "Opaque";
/// The annotation that named the class of a claim before there was a field for it.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// A kind of objects that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// ConfigMaps.
    ConfigMap,
    /// Secrets.
    Secret,
    /// Service accounts. A node may not watch them, and a pod is only admitted if its account exists, so a bare account is created.
    ServiceAccount,
    /// PersistentVolumeClaims. They outlive pods: a copy is deleted together with the upper claim.
    Claim,
}

/// Facts beside the upper object that a copy depends on.
#[derive(Clone, Copy, Debug)]
pub struct CopyContext<'a> {
    /// Names of StorageClasses in the lower cluster; classes that are not listed keep their names.
    pub storage_classes: &'a BTreeMap<String, String>,
    /// Whether the volume that a claim is bound to exists in the lower cluster.
    pub has_volume: bool,
    /// Whether the claim that a claim is cloned from has a copy of ours in the lower cluster.
    pub has_source: bool,
    /// The labels and annotations that the copy keeps.
    pub metadata: &'a KeptMetadata,
}

/// The keys of labels and annotations that copies keep. Others are left out, because they can mean something to controllers of the lower
/// cluster: there are labels that make a Secret the credentials of a cluster, or of a deployment tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptMetadata {
    /// Keys of labels.
    pub labels: BTreeSet<String>,
    /// Keys of annotations.
    pub annotations: BTreeSet<String>,
}

/// A type of objects that can be copied.
pub trait CopiedObject: Object + Metadata<Ty = ObjectMeta> + Default {
    /// The kind of this type.
    const COPY_KIND: Kind;

    /// The API of this type, in one namespace or (`None`) in all.
    fn objects(client: Client, namespace: Option<&str>) -> Objects<Self>;

    /// The copy, without metadata.
    #[must_use]
    fn to_copy(&self, context: CopyContext<'_>) -> Self;

    /// The mutable content.
    fn content(&self) -> Value;

    /// A fingerprint of the part that can never change; empty if there is no such part.
    fn immutable_part(&self) -> String {
        String::new()
    }

    /// Whether the content is marked as immutable.
    fn is_immutable(&self) -> bool {
        false
    }

    /// The volume that a claim is bound to.
    fn volume(&self) -> Option<&str> {
        None
    }

    /// The claim of the same namespace that a claim is cloned from.
    fn source_claim(&self) -> Option<&str> {
        None
    }

    /// The object as a claim, if it is one.
    fn as_claim(&self) -> Option<&PersistentVolumeClaim> {
        None
    }

    /// Drops metadata that is not needed. The last applied configuration can be as large as the object.
    fn trim(&mut self) {
        let metadata = self.metadata_mut();
        metadata.managed_fields = None;
        if let Some(annotations) = &mut metadata.annotations {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
}

// === impl Kind ===

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::ConfigMap, Self::Secret, Self::ServiceAccount, Self::Claim];

    /// JSON pointers to the mutable content.
    pub(super) fn content(self) -> &'static [&'static str] {
        match self {
            Self::ConfigMap => &["/data", "/binaryData", "/immutable"],
            Self::Secret => &["/data", "/immutable"],
            Self::ServiceAccount => &[],
            Self::Claim => &["/spec/resources/requests", "/spec/volumeAttributesClassName"],
        }
    }

    /// Whether copies are owned by the owner ConfigMap and deleted with it. Data in volumes must not be.
    pub(super) fn has_owner(self) -> bool {
        self != Self::Claim
    }

    /// Whether copies are deleted when no pod needs them any more.
    pub(super) fn is_removed_with_pods(self) -> bool {
        self != Self::Claim
    }

    /// Whether the upper object is watched.
    pub(super) fn is_watched(self) -> bool {
        self != Self::ServiceAccount
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::ServiceAccount => "ServiceAccount",
            Self::Claim => "PersistentVolumeClaim",
        })
    }
}

/// The constructor of [`Objects`], which is the same for each type.
macro_rules! objects {
    () => {
        fn objects(client: Client, namespace: Option<&str>) -> Objects<Self> {
            match namespace {
                Some(namespace) => Objects::namespaced(client, namespace),
                None => Objects::all(client),
            }
        }
    };
}

impl CopiedObject for ConfigMap {
    const COPY_KIND: Kind = Kind::ConfigMap;

    objects!();

    fn to_copy(&self, _facts: CopyContext<'_>) -> Self {
        Self {
            data: self.data.clone(),
            binary_data: self.binary_data.clone(),
            immutable: self.immutable,
            ..Self::default()
        }
    }

    fn content(&self) -> Value {
        let data = self.data.as_ref().filter(|data| !data.is_empty());
        let binary = self.binary_data.as_ref().filter(|data| !data.is_empty());
        json!([data, binary, self.is_immutable()])
    }

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl CopiedObject for Secret {
    const COPY_KIND: Kind = Kind::Secret;

    objects!();

    fn to_copy(&self, _facts: CopyContext<'_>) -> Self {
        // The lower API server would reject a token of a foreign account, or fill the Secret with another token.
        let type_ = self.type_.as_deref().filter(|type_| *type_ != ACCOUNT_TOKEN).unwrap_or(OPAQUE);
        Self {
            data: self.data.clone(),
            immutable: self.immutable,
            type_: Some(type_.to_owned()),
            ..Self::default()
        }
    }

    fn content(&self) -> Value {
        json!([self.data.as_ref().filter(|data| !data.is_empty()), self.is_immutable()])
    }

    fn immutable_part(&self) -> String {
        self.type_.clone().unwrap_or_else(|| OPAQUE.to_owned())
    }

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl CopiedObject for ServiceAccount {
    const COPY_KIND: Kind = Kind::ServiceAccount;

    objects!();

    fn to_copy(&self, _facts: CopyContext<'_>) -> Self {
        Self::default()
    }

    fn content(&self) -> Value {
        Value::Null
    }
}

impl CopiedObject for PersistentVolumeClaim {
    const COPY_KIND: Kind = Kind::Claim;

    objects!();

    fn to_copy(&self, context: CopyContext<'_>) -> Self {
        let mut spec = self.spec.clone().unwrap_or_default();
        let class = names::annotation(&self.metadata, CLASS).map(str::to_owned).or(spec.storage_class_name);
        spec.storage_class_name =
            class.map(|class| context.storage_classes.get(&class).cloned().unwrap_or(class));
        spec.volume_name = spec.volume_name.filter(|_| context.has_volume);
        spec.data_source = spec.data_source.filter(is_claim).filter(|_| context.has_source);
        spec.data_source_ref = spec.data_source_ref.filter(is_claim_here).filter(|_| context.has_source);
        Self { spec: Some(spec), ..Self::default() }
    }

    fn content(&self) -> Value {
        let spec = self.spec.as_ref();
        let requests = spec.and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
        json!([
            requests,
            spec.and_then(|spec: &PersistentVolumeClaimSpec| spec.volume_attributes_class_name.as_ref())
        ])
    }

    /// A claim that was deleted and created again in the upper cluster is another claim and must not get the data of the old volume.
    fn immutable_part(&self) -> String {
        let uid = names::annotation(&self.metadata, names::ORIGIN_UID);
        uid.unwrap_or_default().to_owned()
    }

    /// Everybody can name any volume in a claim. Only the upper cluster's administrators can create the volume that it is bound to.
    fn volume(&self) -> Option<&str> {
        let bound = self.status.as_ref()?.phase.as_deref() == Some("Bound");
        self.spec.as_ref()?.volume_name.as_deref().filter(|name| bound && !name.is_empty())
    }

    fn as_claim(&self) -> Option<&PersistentVolumeClaim> {
        Some(self)
    }

    fn source_claim(&self) -> Option<&str> {
        let spec = self.spec.as_ref()?;
        let source = spec.data_source.as_ref().filter(|source| is_claim(source)).map(|source| &source.name);
        let reference = spec.data_source_ref.as_ref().filter(|source| is_claim_here(source));
        source.or_else(|| reference.map(|source| &source.name)).map(String::as_str)
    }
}

/// Snapshots and other sources do not exist in the lower cluster.
fn is_claim(source: &TypedLocalObjectReference) -> bool {
    source.api_group.as_deref().unwrap_or_default().is_empty() && source.kind == "PersistentVolumeClaim"
}

fn is_claim_here(source: &TypedObjectReference) -> bool {
    source.api_group.as_deref().unwrap_or_default().is_empty()
        && source.kind == "PersistentVolumeClaim"
        && source.namespace.is_none()
}

impl Dependencies {
    /// Whether the pod can run without an object that it refers to.
    pub(crate) fn is_optional(&self, kind: Kind, name: &str) -> bool {
        match kind {
            Kind::ConfigMap => self.optional_config_maps.contains(name),
            Kind::Secret => self.optional_secrets.contains(name),
            Kind::ServiceAccount | Kind::Claim => false,
        }
    }
}

/// The objects that a pod refers to.
pub(crate) fn referenced_objects(dependencies: &Dependencies) -> impl Iterator<Item = (Kind, &str)> {
    let config_maps = dependencies.config_maps.iter().map(|name| (Kind::ConfigMap, name));
    let secrets = dependencies.secrets.iter().map(|name| (Kind::Secret, name));
    let claims = dependencies.claims.iter().map(|name| (Kind::Claim, name));
    let accounts = dependencies.service_account.iter().map(|name| (Kind::ServiceAccount, name));
    config_maps.chain(secrets).chain(claims).chain(accounts).map(|(kind, name)| (kind, name.as_str()))
}
