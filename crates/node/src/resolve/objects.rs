//! What is read beforehand, so that the rest of resolution needs no network: a question says what it [`Needs`], and is
//! then answered from [`Objects`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use vk_provider::{
    Error, Result,
    error::Kind,
    resolve::{Reference, ReferenceKind, Token},
};

/// The objects that one question was allowed to see. May hold secrets: `Debug` shows names only.
#[derive(Clone, Default)]
pub(crate) struct Objects {
    /// ConfigMaps of the pod's namespace by name; `None` where there is none of that name.
    pub config_maps: BTreeMap<String, Option<Arc<ConfigMap>>>,
    /// Secrets of the pod's namespace by name; `None` where there is none of that name.
    pub secrets: BTreeMap<String, Option<Arc<Secret>>>,
    /// Services: those of the pod's namespace, and `kubernetes` of the namespace `default`. More do no harm.
    pub services: Vec<Arc<Service>>,
    /// The text (`spec.trustBundle`) of every ClusterTrustBundle that fits; empty where none does.
    pub trust_bundles: BTreeMap<TrustKey, Vec<String>>,
    /// Tokens of the pod's ServiceAccount.
    pub tokens: BTreeMap<TokenKey, Token>,
}

/// What a question has to have read before it can be answered, and nothing beyond.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// ConfigMaps by name.
    pub config_maps: BTreeMap<String, Need>,
    /// Secrets by name.
    pub secrets: BTreeMap<String, Need>,
    /// Whether the services of the pod's namespace count.
    pub services: bool,
    /// Whether the service `kubernetes` of the namespace `default` counts.
    pub kubernetes_service: bool,
    /// Tokens to ask for.
    pub tokens: BTreeSet<TokenKey>,
    /// ClusterTrustBundles to look for.
    pub trust_bundles: BTreeMap<TrustKey, Need>,
}

/// How much an object is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Whether every use of it says that it may be missing.
    pub optional: bool,
}

/// What tells one token of a pod from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TokenKey {
    /// The audience; `None` for the API server's own.
    pub audience: Option<String>,
    /// The life to ask for, in seconds.
    pub expiration_seconds: Option<i64>,
}

/// Which ClusterTrustBundles are meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TrustKey {
    /// The one of this name.
    Name(String),
    /// All of a signer whose labels fit.
    Signer {
        /// `spec.signerName`.
        signer: String,
        /// The labels, written as the API server takes them in `labelSelector=`; empty for all. `None` fits nothing.
        selector: Option<String>,
    },
}

/// Something that people should hear of although the question could be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Remark {
    /// An object, or where the reference names a key only that key, is missing and need not be there.
    Missing(Reference),
    /// Keys that gave no variable: the name or the value cannot stand in an environment.
    Skipped {
        /// The object that they are in.
        source: Reference,
        /// The names, sorted.
        names: Vec<String>,
    },
}

impl Needs {
    pub(super) fn config_map(&mut self, name: &str, optional: bool) {
        note(&mut self.config_maps, name, optional);
    }

    pub(super) fn secret(&mut self, name: &str, optional: bool) {
        note(&mut self.secrets, name, optional);
    }

    /// A selector that fits nothing needs no reading.
    pub(super) fn trust_bundle(&mut self, key: TrustKey, optional: bool) {
        if matches!(key, TrustKey::Signer { selector: None, .. }) {
            return;
        }
        let need = self.trust_bundles.entry(key).or_insert(Need { optional: true });
        need.optional &= optional;
    }
}

/// An object without a name is never asked for: a read without a name would be a list.
fn note(needs: &mut BTreeMap<String, Need>, name: &str, optional: bool) {
    if !name.is_empty() {
        let need = needs.entry(name.to_owned()).or_insert(Need { optional: true });
        need.optional &= optional;
    }
}

impl Objects {
    /// The ConfigMap, or `None` where it is optional and missing, with a remark.
    pub(super) fn config_map(
        &self,
        pod: &Pod,
        name: &str,
        optional: bool,
        remarks: &mut Vec<Remark>,
    ) -> Result<Option<&ConfigMap>> {
        let reference = || Reference::new(ReferenceKind::ConfigMap, namespace(pod), name);
        found(&self.config_maps, name, optional, reference, "configmap", remarks)
    }

    /// The Secret, or `None` where it is optional and missing, with a remark.
    pub(super) fn secret(
        &self,
        pod: &Pod,
        name: &str,
        optional: bool,
        remarks: &mut Vec<Remark>,
    ) -> Result<Option<&Secret>> {
        let reference = || Reference::new(ReferenceKind::Secret, namespace(pod), name);
        found(&self.secrets, name, optional, reference, "secret", remarks)
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects")
            .field("config_maps", &self.config_maps.keys())
            .field("secrets", &self.secrets.keys())
            .finish_non_exhaustive()
    }
}

fn found<'a, T>(
    objects: &'a BTreeMap<String, Option<Arc<T>>>,
    name: &str,
    optional: bool,
    reference: impl Fn() -> Reference,
    kind: &str,
    remarks: &mut Vec<Remark>,
) -> Result<Option<&'a T>> {
    match objects.get(name) {
        Some(Some(object)) => Ok(Some(object)),
        None if !name.is_empty() => Err(Error::internal(format!("{kind} {name:?} was not read"))),
        Some(None) | None if optional => {
            remark(remarks, Remark::Missing(reference()));
            Ok(None)
        }
        // The words of the kubelet, on which people search.
        Some(None) | None => Err(unresolved(reference(), format!("{kind} {name:?} not found"))),
    }
}

/// Says a thing once.
pub(super) fn remark(remarks: &mut Vec<Remark>, remark: Remark) {
    if !remarks.contains(&remark) {
        remarks.push(remark);
    }
}

/// The error for a mandatory reference that leads nowhere.
pub(super) fn unresolved(reference: Reference, message: String) -> Error {
    Error::new(Kind::Unresolved(reference), message)
}

/// The pod's namespace.
pub(super) fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}
