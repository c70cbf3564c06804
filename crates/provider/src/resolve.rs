//! Objects that a pod refers to, resolved on demand: environment, files, tokens, credentials.
//!
//! The core implements [`Resolver`]; a provider calls it and needs no API client of its own. Resolution is lazy: an object
//! is read only when a provider asks for it, and only objects that the pod refers to can be read.

use std::{collections::BTreeMap, fmt, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret, Service},
    node::v1::RuntimeClass,
};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use crate::{Result, quantity::Quantity};

/// Resolves the objects that one pod refers to.
///
/// Methods may be called at any time and concurrently; after the pod was deleted they return `NotFound`. Dropping a
/// call or a stream is safe and stops the reads behind it. A missing mandatory object is the error kind
/// [`Unresolved`](crate::error::Kind::Unresolved): return it from `create_pod`, and the core waits for the object. A
/// missing optional object is not an error. `Denied` means that the node may not read the object, `Unavailable` that the
/// API server did not answer.
#[async_trait]
pub trait Resolver: Send + Sync + 'static {
    /// Environment, command and arguments of a container, resolved and expanded, for one start: call it again for
    /// each restart, but not for an update. `facts` are the values that are known at that time.
    async fn container(&self, name: &str, facts: &Facts) -> Result<ContainerInputs>;

    /// The files of a configMap, secret, downwardAPI or projected volume: a complete set as soon as it is available, then a
    /// new complete set for each change. The error `Unresolved` does not end the stream.
    /// Other kinds of volume return `Unsupported`. `tokens` is the lifetime of the ServiceAccount tokens among the files.
    fn volume(&self, name: &str, tokens: TokenLifetime) -> BoxStream<'static, Result<FileSet>>;

    /// A ConfigMap that the pod refers to.
    async fn config_map(&self, name: &str) -> Result<Arc<ConfigMap>>;

    /// A Secret that the pod refers to.
    async fn secret(&self, name: &str) -> Result<Arc<Secret>>;

    /// The services of the pod's namespace that have a cluster IP, with only names, addresses and ports filled in.
    async fn services(&self) -> Result<Vec<Arc<Service>>>;

    /// Requests a token of the pod's ServiceAccount, bound to the pod. Not cached: the caller keeps it until it expires.
    async fn token(&self, request: &TokenRequest) -> Result<Token>;

    /// Registry credentials from the pod's `imagePullSecrets` that match the image, best match first; empty for an
    /// anonymous pull.
    async fn pull_credentials(&self, image: &str) -> Result<Vec<PullCredentials>>;

    /// A PersistentVolumeClaim of the pod with its PersistentVolume. `Unresolved` until it is bound.
    async fn claim(&self, name: &str) -> Result<Claim>;

    /// The pod's RuntimeClass, if it has one.
    async fn runtime_class(&self) -> Result<Option<Arc<RuntimeClass>>>;

    /// The node that the pod is bound to.
    fn node(&self) -> NodeFacts;

    /// Waits until it is worth retrying after `Unresolved`: until the object exists, with its key if the reference names
    /// one. For kinds that a node cannot watch, a few seconds.
    async fn appeared(&self, reference: &Reference);
}

/// Values that are known only when a container starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Addresses of the pod, primary first.
    pub pod_ips: Vec<IpAddr>,
    /// Addresses of the host, primary first.
    pub host_ips: Vec<IpAddr>,
    /// Paths of the pod's emptyDir volumes on this host, by volume name, for `fileKeyRef`. If empty, a container that refers
    /// to a file is `Unsupported`.
    pub volumes: BTreeMap<String, PathBuf>,
}

/// Resolved environment, command and arguments of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerInputs {
    /// The variables, in the kubelet's order.
    pub env: Vec<Variable>,
    /// The command with `$(VAR)` expanded; `None` for the image's entry point.
    pub command: Option<CommandLine>,
    /// The arguments with `$(VAR)` expanded; `None` for those of the image.
    pub args: Option<CommandLine>,
}

impl ContainerInputs {
    /// Whether a value depends on an address that is not known yet.
    pub fn is_deferred(&self) -> bool {
        let lines = [&self.command, &self.args].into_iter().flatten();
        self.env.iter().any(|variable| variable.deferred.is_some())
            || lines.into_iter().any(|line| line.deferred.is_some())
    }
}

/// A resolved environment variable.
#[derive(Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value. May be secret, so `Debug` omits it.
    pub value: String,
    /// Where the value comes from: the most sensitive origin of everything that was expanded into it.
    pub origin: Origin,
    /// Set if the value depends on an address that [`Facts`] did not have. The address is missing from `value`.
    pub deferred: Option<Deferred>,
}

/// A resolved command, or resolved arguments.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// The words. May contain secrets, so `Debug` omits them.
    pub words: Vec<String>,
    /// The most sensitive origin of everything that was expanded into a word.
    pub origin: Origin,
    /// Set if a word depends on an address that [`Facts`] did not have.
    pub deferred: Option<Deferred>,
}

/// Where a value comes from. The most sensitive origin is the greatest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The pod's spec.
    #[default]
    Literal,
    /// A field of the pod, or a resource of a container.
    Field,
    /// A Service of the namespace.
    Service,
    /// A ConfigMap, or a ClusterTrustBundle.
    ConfigMap,
    /// A file that a container wrote (`fileKeyRef`).
    File,
    /// A Secret, or a ServiceAccount token. Nothing of it may be in a status, event, annotation, error or log of the provider.
    Secret,
}

/// A value that cannot be known yet. Until then no container starts with the value: the provider resolves it again when the address
/// is known, passes the field on to a backend that has field references, or refuses the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deferred {
    /// The field of the pod that is missing, such as `status.podIP`.
    pub field: String,
    /// Whether the field is the whole value, so that a backend with field references of its own can use one.
    pub whole: bool,
}

/// The lifetime of ServiceAccount tokens in the files of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TokenLifetime {
    /// What the pod's spec says. The stream has a new file set in time.
    #[default]
    Specified,
    /// The longest that the API server grants, for backends that cannot replace a file of a running pod. A token that the API
    /// server extends anyway (the default lifetime, for its own audience) is requested as the spec says.
    Longest,
}

/// All files of a volume at one point in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSet {
    /// Files by path in the volume: relative, normalised, without `..`.
    pub files: BTreeMap<String, File>,
    /// When the first token among the files expires; `None` if nothing expires. The stream has a new set before that.
    pub expires: Option<Timestamp>,
}

/// One file of a [`FileSet`].
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    /// The content. May be secret, so `Debug` omits it.
    pub content: Bytes,
    /// Permission bits, such as `0o644`.
    pub mode: u32,
    /// The user that must own the file. As with a kubelet, tokens and trust bundles of a pod whose containers all run as the
    /// same user have mode `0o600` and belong to that user. `None` for the user that writes the file.
    pub owner: Option<u32>,
    /// Where the content comes from.
    pub origin: Origin,
}

/// A request for a ServiceAccount token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenRequest {
    /// The audience; `None` for the API server's own. A node may only request audiences that a volume of the pod names.
    pub audience: Option<String>,
    /// The requested lifetime; the API server may shorten it.
    pub lifetime: Option<Duration>,
}

/// A ServiceAccount token.
#[derive(Clone, Debug)]
pub struct Token {
    /// The token itself.
    pub token: SecretString,
    /// When it expires.
    pub expires: Timestamp,
}

/// Credentials for a registry.
#[derive(Clone, Debug)]
pub struct PullCredentials {
    /// The registry that they are for: the key of the entry in the pull secret, such as `registry.example/team`.
    pub registry: String,
    /// How to log in there.
    pub login: RegistryLogin,
}

/// A way to log in to a registry.
#[derive(Clone, Debug)]
pub enum RegistryLogin {
    /// User name and password.
    Basic {
        /// The user.
        username: String,
        /// The password.
        password: SecretString,
    },
    /// An identity token, exchanged at the registry's authorisation server.
    IdentityToken(SecretString),
    /// A bearer token, sent to the registry as it is.
    RegistryToken(SecretString),
}

/// A claim and its volume.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The PersistentVolumeClaim.
    pub claim: Arc<PersistentVolumeClaim>,
    /// The PersistentVolume that it is bound to.
    pub volume: Arc<PersistentVolume>,
}

/// The node that a pod is bound to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    /// The node's name.
    pub name: String,
    /// The node's addresses, primary first.
    pub ips: Vec<IpAddr>,
    /// Allocatable resources, by name.
    pub allocatable: BTreeMap<String, Quantity>,
}

/// An object that a pod refers to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reference {
    /// Its kind.
    pub kind: ReferenceKind,
    /// Its namespace; empty for cluster-scoped kinds.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// The missing key, if the object exists without it.
    pub key: Option<Box<str>>,
    /// The volume of the pod that needs it; `None` if a container needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<Box<str>>,
}

/// The kind of an object that a pod refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ReferenceKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
    /// A Service.
    Service,
    /// A ServiceAccount.
    ServiceAccount,
    /// A PersistentVolumeClaim.
    PersistentVolumeClaim,
    /// A PersistentVolume.
    PersistentVolume,
    /// A RuntimeClass.
    RuntimeClass,
    /// A ClusterTrustBundle.
    ClusterTrustBundle,
    /// A file in a volume of the pod, named `VOLUME/PATH`. Not an API object.
    File,
}

// === impl ContainerInputs ===

impl ContainerInputs {
    /// Names and values of the variables, for a backend that needs nothing else of them.
    pub fn pairs(&self) -> Vec<(String, String)> {
        self.env.iter().map(|variable| (variable.name.clone(), variable.value.clone())).collect()
    }
}

// === impl Variable ===

impl Variable {
    /// A variable with a value that is known.
    pub fn new(name: impl Into<String>, value: impl Into<String>, origin: Origin) -> Self {
        Self { name: name.into(), value: value.into(), origin, deferred: None }
    }
}

// === impl CommandLine ===

impl CommandLine {
    /// Words that are known, from the pod's spec.
    pub fn literal(words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { words: words.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

// === impl File ===

impl File {
    /// A file that belongs to the user that writes it.
    pub fn new(content: impl Into<Bytes>, mode: u32, origin: Origin) -> Self {
        Self { content: content.into(), mode, owner: None, origin }
    }
}

// === impl PullCredentials ===

impl PullCredentials {
    /// A user name and a password.
    pub fn basic(
        registry: impl Into<String>,
        username: impl Into<String>,
        password: impl Into<SecretString>,
    ) -> Self {
        let login = RegistryLogin::Basic { username: username.into(), password: password.into() };
        Self { registry: registry.into(), login }
    }
}

// === impl Reference ===

impl Reference {
    /// A reference to an object.
    pub fn new(kind: ReferenceKind, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        let (namespace, name) = (namespace.into().into(), name.into().into());
        Self { kind, namespace, name, key: None, volume: None }
    }

    /// Adds a key of the object.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into().into());
        self
    }

    /// Adds the volume that needs it.
    #[must_use]
    pub fn of_volume(mut self, volume: impl Into<String>) -> Self {
        self.volume = Some(volume.into().into());
        self
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(key) = &self.key {
            write!(f, "key {key} of ")?;
        }
        write!(f, "{:?} ", self.kind)?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

// === Debug without secrets ===

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value: _, origin, deferred } = self;
        f.debug_struct("Variable")
            .field("name", name)
            .field("origin", origin)
            .field("deferred", deferred)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { words, origin, deferred } = self;
        write!(f, "CommandLine({} words, {origin:?}, {deferred:?})", words.len())
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({} bytes, mode {:o}, {:?})", self.content.len(), self.mode, self.origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_displayed_with_key_kind_and_name() {
        let secret = Reference::new(ReferenceKind::Secret, "shop", "db").key("password");
        assert_eq!(secret.to_string(), "key password of Secret shop/db");
        assert_eq!(
            Reference::new(ReferenceKind::RuntimeClass, "", "gvisor").to_string(),
            "RuntimeClass gvisor"
        );
    }

    #[test]
    fn debug_output_shows_names_and_origins_and_no_value() {
        let words = vec!["--password=hunter2".to_owned()];
        let inputs = ContainerInputs {
            env: vec![Variable::new("PASSWORD", "hunter2", Origin::Secret)],
            command: None,
            args: Some(CommandLine { words, origin: Origin::Secret, deferred: None }),
        };
        let content = Bytes::from_static(b"hunter2");
        let file = File { content, mode: 0o600, owner: None, origin: Origin::Secret };
        let shown = format!("{inputs:?} {file:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("PASSWORD") && shown.contains("Secret"), "{shown}");
    }

    #[test]
    fn a_secret_is_the_most_sensitive_origin() {
        use Origin::{ConfigMap, Field, File, Literal, Secret, Service};
        let origins = [Literal, Field, Service, ConfigMap, File];
        assert!(origins.iter().all(|origin| (*origin).max(Secret) == Secret && *origin != Secret));
        assert!(origins.is_sorted());
    }
}
