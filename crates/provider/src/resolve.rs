//! What a pod refers to, resolved on demand: environment, files, tokens, credentials.
//!
//! The core implements [`Resolver`]; a provider calls it and needs no API client of its own. Everything is lazy: only
//! what a provider asks for is read, and only objects that the pod refers to can be read.

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

/// Answers what one pod refers to.
///
/// Calls may come at any time and at the same time, also after the pod was deleted (then with `NotFound`). Dropping a
/// call or a stream is safe and stops the reads behind it. A missing mandatory object is the error kind
/// [`Unresolved`](crate::error::Kind::Unresolved): pass it on from `create_pod`, and the core waits for the object. A
/// missing optional one is no error. `Denied` means that the node may not read the object, `Unavailable` that the API
/// server could not be asked.
#[async_trait]
pub trait Resolver: Send + Sync + 'static {
    /// Environment, command and arguments of a container, resolved and expanded, for one start of it: call it again for
    /// each restart and not for an update. `facts` are what is known at that moment.
    async fn container(&self, name: &str, facts: &Facts) -> Result<ContainerInputs>;

    /// The files of a volume of kind configMap, secret, downwardAPI or projected: the first item as soon as it can be
    /// made, then a new whole set for each change, until dropped. The error `Unresolved` is an item and not the end.
    /// Other kinds of volume answer `Unsupported`.
    fn volume(&self, name: &str) -> BoxStream<'static, Result<FileSet>>;

    /// A ConfigMap that the pod refers to.
    async fn config_map(&self, name: &str) -> Result<Arc<ConfigMap>>;

    /// A Secret that the pod refers to.
    async fn secret(&self, name: &str) -> Result<Arc<Secret>>;

    /// The services of the pod's namespace that have a cluster IP: their names, addresses and ports, and nothing else.
    async fn services(&self) -> Result<Vec<Arc<Service>>>;

    /// A token of the pod's ServiceAccount, bound to the pod. Not cached: the caller keeps it until it expires.
    async fn token(&self, request: &TokenRequest) -> Result<Token>;

    /// Registry credentials from the pod's `imagePullSecrets` that fit the image, best match first; empty when the image
    /// is to be pulled anonymously.
    async fn pull_credentials(&self, image: &str) -> Result<Vec<PullCredentials>>;

    /// A PersistentVolumeClaim of the pod and the volume that it is bound to. `Unresolved` until it is bound.
    async fn claim(&self, name: &str) -> Result<Claim>;

    /// The pod's RuntimeClass; `None` when it names none.
    async fn runtime_class(&self) -> Result<Option<Arc<RuntimeClass>>>;

    /// Facts about the node that the pod is bound to.
    fn node(&self) -> NodeFacts;

    /// Resolves when it is worth asking again after an `Unresolved`: as soon as the object is there, with its key where the
    /// reference names one. For kinds that a node cannot watch, after a few seconds.
    async fn appeared(&self, reference: &Reference);
}

/// What is known when a container starts, and not before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Addresses of the pod, primary first.
    pub pod_ips: Vec<IpAddr>,
    /// Addresses of the host, primary first.
    pub host_ips: Vec<IpAddr>,
    /// Where the pod's emptyDir volumes are on this host, by the volume's name: a `fileKeyRef` is read there. A provider
    /// without such a place leaves it empty, and a container that refers to a file answers `Unsupported`.
    pub volumes: BTreeMap<String, PathBuf>,
}

/// What a container starts with.
#[derive(Clone, PartialEq, Eq)]
pub struct ContainerInputs {
    /// Name and value, in the kubelet's order. May hold secrets: not shown by `Debug`.
    pub env: Vec<(String, String)>,
    /// The command with `$(VAR)` expanded; `None` means the image's entry point.
    pub command: Option<Vec<String>>,
    /// The arguments with `$(VAR)` expanded; `None` means the image's.
    pub args: Option<Vec<String>>,
}

/// All files of a volume at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSet {
    /// Files by their path inside the volume: relative, normalised, never with `..`.
    pub files: BTreeMap<String, File>,
}

/// One file of a [`FileSet`].
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    /// The content. May be secret: not shown by `Debug`.
    pub content: Bytes,
    /// Permission bits, such as `0o644`.
    pub mode: u32,
    /// The user who must own it, where a kubelet gives it to one: tokens and trust bundles of a pod whose containers all
    /// run as the same user have mode `0o600` and belong to that user. `None` leaves it to who writes the file.
    pub owner: Option<u32>,
}

/// A request for a ServiceAccount token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenRequest {
    /// The audience; the API server's own where empty. A node may only ask for audiences that a volume of the pod names.
    pub audience: Option<String>,
    /// How long it shall live; the API server may answer with a shorter time.
    pub lifetime: Option<Duration>,
}

/// A ServiceAccount token.
#[derive(Clone, Debug)]
pub struct Token {
    /// The token itself.
    pub token: SecretString,
    /// When it ends.
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

/// Facts about the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    /// The node's name.
    pub name: String,
    /// The node's addresses, primary first.
    pub ips: Vec<IpAddr>,
    /// What pods may use, by resource name.
    pub allocatable: BTreeMap<String, Quantity>,
}

/// An object that a pod refers to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reference {
    /// Its kind.
    pub kind: ReferenceKind,
    /// Its namespace; empty for kinds without one.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// The key in it, when the object is there and the key is not.
    pub key: Option<Box<str>>,
    /// The volume of the pod that needs it; `None` for what containers need to start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<Box<str>>,
}

/// The kinds of object that a pod can refer to.
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
    /// A file in a volume of the pod, named `VOLUME/PATH`: nothing that the API server could show.
    File,
}

// === impl Reference ===

impl Reference {
    /// A whole object.
    pub fn new(kind: ReferenceKind, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        let (namespace, name) = (namespace.into().into(), name.into().into());
        Self { kind, namespace, name, key: None, volume: None }
    }

    /// A key of the object.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into().into());
        self
    }

    /// Needed by this volume.
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
    fn a_reference_reads_as_a_sentence_part() {
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
