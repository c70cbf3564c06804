//! The objects that a resolution needs. They are fetched first, so that the rest of the resolution needs no network:
//! [`RequiredObjects`] lists what to fetch, and [`FetchedObjects`] holds the result.

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

/// The objects that were fetched for one resolution. `Debug` only shows names, because they may contain secrets.
#[derive(Clone, Default)]
pub(crate) struct FetchedObjects {
    /// ConfigMaps of the pod's namespace by name; `None` if it does not exist.
    pub config_maps: BTreeMap<String, Option<Arc<ConfigMap>>>,
    /// Secrets of the pod's namespace by name; `None` if it does not exist.
    pub secrets: BTreeMap<String, Option<Arc<Secret>>>,
    /// Services of the pod's namespace, and `kubernetes` of the namespace `default`. Others are ignored.
    pub services: Vec<Arc<Service>>,
    /// `spec.trustBundle` of every matching ClusterTrustBundle; empty if none matches.
    pub trust_bundles: BTreeMap<TrustBundleKey, Vec<String>>,
    /// Tokens of the pod's ServiceAccount.
    pub tokens: BTreeMap<TokenKey, Token>,
}

/// The objects that a resolution needs, and no others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequiredObjects {
    /// ConfigMaps by name.
    pub config_maps: BTreeMap<String, Requirement>,
    /// Secrets by name.
    pub secrets: BTreeMap<String, Requirement>,
    /// Whether the services of the pod's namespace are needed.
    pub services: bool,
    /// Whether the service `kubernetes` of the namespace `default` is needed.
    pub kubernetes_service: bool,
    /// ServiceAccount tokens.
    pub tokens: BTreeSet<TokenKey>,
    /// ClusterTrustBundles.
    pub trust_bundles: BTreeMap<TrustBundleKey, Requirement>,
}

/// How an object is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Requirement {
    /// Whether every reference to it is optional.
    pub optional: bool,
}

/// Identifies a token of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TokenKey {
    /// The audience; `None` for the API server's default.
    pub audience: Option<String>,
    /// The requested lifetime in seconds.
    pub expiration_seconds: Option<i64>,
}

/// Selects ClusterTrustBundles.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TrustBundleKey {
    /// By name.
    Name(String),
    /// By signer and labels.
    Signer {
        /// `spec.signerName`.
        signer: String,
        /// Label selector in the API server's query syntax; empty matches all, `None` matches nothing.
        selector: Option<String>,
    },
}

/// A problem that does not prevent the resolution but is reported as an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResolveWarning {
    /// An optional object, or an optional key, is missing.
    MissingOptional(Reference),
    /// Keys that were skipped because the name or value is not valid in an environment.
    SkippedKeys {
        /// The object with the keys.
        source: Reference,
        /// The names, sorted.
        names: Vec<String>,
    },
}

impl RequiredObjects {
    pub(super) fn config_map(&mut self, name: &str, optional: bool) {
        add(&mut self.config_maps, name, optional);
    }

    pub(super) fn secret(&mut self, name: &str, optional: bool) {
        add(&mut self.secrets, name, optional);
    }

    /// A selector that matches nothing is not fetched.
    pub(super) fn trust_bundle(&mut self, key: TrustBundleKey, optional: bool) {
        if matches!(key, TrustBundleKey::Signer { selector: None, .. }) {
            return;
        }
        let requirement = self.trust_bundles.entry(key).or_insert(Requirement { optional: true });
        requirement.optional &= optional;
    }
}

/// Adds an object. Empty names are skipped: a read without a name would be a list.
fn add(required: &mut BTreeMap<String, Requirement>, name: &str, optional: bool) {
    if !name.is_empty() {
        let requirement = required.entry(name.to_owned()).or_insert(Requirement { optional: true });
        requirement.optional &= optional;
    }
}

impl FetchedObjects {
    /// The ConfigMap; `None` with a warning if it is optional and missing.
    pub(super) fn config_map(
        &self,
        pod: &Pod,
        name: &str,
        optional: bool,
        warnings: &mut Vec<ResolveWarning>,
    ) -> Result<Option<&ConfigMap>> {
        let reference = || Reference::new(ReferenceKind::ConfigMap, namespace(pod), name);
        found(&self.config_maps, name, optional, reference, "configmap", warnings)
    }

    /// The Secret; `None` with a warning if it is optional and missing.
    pub(super) fn secret(
        &self,
        pod: &Pod,
        name: &str,
        optional: bool,
        warnings: &mut Vec<ResolveWarning>,
    ) -> Result<Option<&Secret>> {
        let reference = || Reference::new(ReferenceKind::Secret, namespace(pod), name);
        found(&self.secrets, name, optional, reference, "secret", warnings)
    }
}

impl fmt::Debug for FetchedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchedObjects")
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
    warnings: &mut Vec<ResolveWarning>,
) -> Result<Option<&'a T>> {
    match objects.get(name) {
        Some(Some(object)) => Ok(Some(object)),
        None if !name.is_empty() => Err(Error::internal(format!("{kind} {name:?} was not fetched"))),
        Some(None) | None if optional => {
            add_warning(warnings, ResolveWarning::MissingOptional(reference()));
            Ok(None)
        }
        // The kubelet's message, which people search for.
        Some(None) | None => Err(unresolved(reference(), format!("{kind} {name:?} not found"))),
    }
}

/// Adds a warning unless it is there already.
pub(super) fn add_warning(warnings: &mut Vec<ResolveWarning>, warning: ResolveWarning) {
    if !warnings.contains(&warning) {
        warnings.push(warning);
    }
}

/// The error for a mandatory reference that cannot be resolved.
pub(super) fn unresolved(reference: Reference, message: String) -> Error {
    Error::new(Kind::Unresolved(reference), message)
}

/// The pod's namespace.
pub(super) fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}
