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
    /// Other kinds of volume return `Unsupported`.
    fn volume(&self, name: &str) -> BoxStream<'static, Result<FileSet>>;

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
#[derive(Clone, PartialEq, Eq)]
pub struct ContainerInputs {
    /// Names and values, in the kubelet's order. May contain secrets, so `Debug` omits the values.
    pub env: Vec<(String, String)>,
    /// The command with `$(VAR)` expanded; `None` for the image's entry point.
    pub command: Option<Vec<String>>,
    /// The arguments with `$(VAR)` expanded; `None` for those of the image.
    pub args: Option<Vec<String>>,
}

/// All files of a volume at one point in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSet {
    /// Files by path in the volume: relative, normalised, without `..`.
    pub files: BTreeMap<String, File>,
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
pub enum PullCredentials {
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

impl fmt::Debug for ContainerInputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.env.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("ContainerInputs").field("env", &names).finish_non_exhaustive()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({} bytes, mode {:o})", self.content.len(), self.mode)
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
    fn debug_output_shows_no_secret() {
        let inputs = ContainerInputs {
            env: vec![("PASSWORD".into(), "hunter2".into())],
            command: None,
            args: Some(vec!["--password=hunter2".into()]),
        };
        let file = File { content: Bytes::from_static(b"hunter2"), mode: 0o600, owner: None };
        let shown = format!("{inputs:?} {file:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
