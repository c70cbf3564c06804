//! The kinds of objects that pods need, and what copies of them contain.

use std::{collections::BTreeMap, fmt};

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

use crate::names;

/// The type of Secrets that an API server fills in itself, for the service accounts that it knows.
const ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";
const OPAQUE: &str = "Opaque";
/// How the class of a claim was said before it had a field.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// A kind of objects that are to_copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// ConfigMaps.
    ConfigMap,
    /// Secrets.
    Secret,
    /// Service accounts. A node may not watch them, and a pod that has one was let in because it is there: they are made bare.
    ServiceAccount,
    /// PersistentVolumeClaims. They outlive pods: a copy goes when the upper claim does.
    Claim,
}

/// What forging has to know beside the upper object.
#[derive(Clone, Copy, Debug)]
pub struct CopyContext<'a> {
    /// What StorageClasses are called below; others keep their names.
    pub storage_classes: &'a BTreeMap<String, String>,
    /// Whether there is a lower volume of the name that a claim is bound to.
    pub has_volume: bool,
}

/// What is to be known of a kind.
pub trait CopiedObject: Object + Metadata<Ty = ObjectMeta> + Default {
    /// Which it is.
    const COPY_KIND: Kind;

    /// Where objects of this kind are; `None` for all namespaces.
    fn objects(client: Client, namespace: Option<&str>) -> Objects<Self>;

    /// The copy, without metadata.
    #[must_use]
    fn to_copy(&self, context: CopyContext<'_>) -> Self;

    /// What it contains, as far as it can be changed.
    fn content(&self) -> Value;

    /// What of it can never change.
    fn immutable_part(&self) -> String {
        String::new()
    }

    /// Nothing that it contains changes any more.
    fn is_immutable(&self) -> bool {
        false
    }

    /// The volume that it is bound to.
    fn volume(&self) -> Option<&str> {
        None
    }

    /// Whether the copy has an annotation of the upper object.
    fn keeps_annotation(_key: &str) -> bool {
        true
    }
}

// === impl Kind ===

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::ConfigMap, Self::Secret, Self::ServiceAccount, Self::Claim];

    /// Where an object has what can be changed.
    pub(super) fn content(self) -> &'static [&'static str] {
        match self {
            Self::ConfigMap => &["/data", "/binaryData", "/immutable"],
            Self::Secret => &["/data", "/immutable"],
            Self::ServiceAccount => &[],
            Self::Claim => &["/spec/resources/requests", "/spec/volumeAttributesClassName"],
        }
    }

    /// Whether copies go with the anchor. What is in a volume must not.
    pub(super) fn has_owner(self) -> bool {
        self != Self::Claim
    }

    /// Whether copies go when no pod needs them any more.
    pub(super) fn is_removed_with_pods(self) -> bool {
        self != Self::Claim
    }

    /// Whether there is something to be read above.
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

/// Where the objects of a kind are: the same words for each kind.
macro_rules! objects {
    () => {
        fn objects(client: Client, namespace: Option<&str>) -> Objects<Self> {
            match namespace {
                Some(namespace) => Objects::namespaced(client, namespace),
                None => Objects::everywhere(client),
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
        // The lower server would refuse a token of an account that is not its own, or fill it with another one.
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

    fn keeps_annotation(key: &str) -> bool {
        !key.starts_with("kubernetes.io/service-account.")
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
        spec.data_source = spec.data_source.filter(is_claim);
        spec.data_source_ref = spec.data_source_ref.filter(is_claim_here);
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

    /// A claim that was deleted above and made anew is another one: what is in the old volume is none of its business.
    fn immutable_part(&self) -> String {
        let uid = names::annotation(&self.metadata, names::ORIGIN_UID);
        uid.unwrap_or_default().to_owned()
    }

    fn volume(&self) -> Option<&str> {
        self.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
    }

    /// A claim that says it is bound, to a volume that is not there, is lost.
    fn keeps_annotation(key: &str) -> bool {
        let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
        let of_volumes = prefix.starts_with("volume.") && prefix.ends_with("kubernetes.io");
        prefix != "pv.kubernetes.io" && !of_volumes
    }
}

/// Snapshots and the like are not known below.
fn is_claim(source: &TypedLocalObjectReference) -> bool {
    source.api_group.as_deref().unwrap_or_default().is_empty() && source.kind == "PersistentVolumeClaim"
}

fn is_claim_here(source: &TypedObjectReference) -> bool {
    source.api_group.as_deref().unwrap_or_default().is_empty()
        && source.kind == "PersistentVolumeClaim"
        && source.namespace.is_none()
}
