//! Node certificates from the cluster: requested with a CertificateSigningRequest, kept in a file, renewed before they expire.
//!
//! As in the kubelet, the key never leaves this host, the subject is the node, and a certificate is replaced after 70 to 90 per
//! cent of its lifetime, so that nodes that started together do not renew together.

mod certificate;
mod renewer;
mod request;
mod store;

use std::{collections::BTreeSet, io, net::IpAddr, path::PathBuf, time::Duration};

use crate::Kind;

pub use self::{
    certificate::NodeCertificate,
    renewer::{RenewalStatus, Renewer},
    request::obtain,
    store::CertificateStore,
};

/// The signer, which determines the certificate's purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signer {
    /// Signs the node's identity towards the API server. The controller manager approves it if the roles are bound.
    KubeletClient,
    /// Signs the kubelet API's certificate. Kubernetes does not approve these: somebody has to check the addresses.
    KubeletServing,
}

/// The certificate that a node needs. Its subject is `system:node:NODE` in `system:nodes`, as both signers require.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSpec {
    /// The signer.
    pub signer: Signer,
    /// The node's name.
    pub node: String,
    /// DNS names. Empty for a client certificate.
    pub names: BTreeSet<String>,
    /// IP addresses. Empty for a client certificate.
    pub addresses: BTreeSet<IpAddr>,
    /// The requested lifetime, at least ten minutes. The signer may shorten it, and decides if this is `None`.
    pub lifetime: Option<Duration>,
}

/// Why there is no certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The API server rejected the request, or does not let us read it.
    #[error("cannot {operation} a certificate signing request: {error}")]
    Api {
        /// The operation that failed.
        operation: &'static str,
        /// The API server's error.
        error: crate::Error,
    },
    /// The request was denied.
    #[error("certificate signing request {name} was denied: {reason}")]
    Denied {
        /// The request.
        name: String,
        /// The reason and message of the `Denied` condition.
        reason: String,
    },
    /// The signer failed to sign the request.
    #[error("certificate signing request {name} was not signed: {reason}")]
    Failed {
        /// The request.
        name: String,
        /// The reason and message of the `Failed` condition.
        reason: String,
    },
    /// The request was deleted. The controller manager deletes requests that are undecided for a day.
    #[error("certificate signing request {name} was deleted before it was approved or denied")]
    Deleted {
        /// The request.
        name: String,
    },
    /// Another request has the name.
    #[error("certificate signing request {name} exists already and is for another certificate")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The issued certificate is not the requested one.
    #[error("the certificate for request {name} cannot be used: {reason}")]
    Unusable {
        /// The request.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A PEM text does not hold a certificate and its key.
    #[error("not a certificate with its key: {reason}")]
    Malformed {
        /// What is wrong with it.
        reason: String,
    },
    /// A key or a request could not be generated.
    #[error("cannot generate a certificate signing request: {reason}")]
    Generate {
        /// The library's error.
        reason: String,
    },
    /// The file cannot be read or written.
    #[error("cannot {operation} {}: {reason}", path.display())]
    File {
        /// The operation that failed.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The I/O error.
        reason: String,
    },
}

// === impl Signer ===

impl Signer {
    /// The signer's name in the Kubernetes API.
    pub fn name(self) -> &'static str {
        match self {
            Self::KubeletClient => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::KubeletServing => "kubernetes.io/kubelet-serving",
        }
    }

    /// `client` or `serving`, for object names, messages and metrics.
    pub fn purpose(self) -> &'static str {
        match self {
            Self::KubeletClient => "client",
            Self::KubeletServing => "serving",
        }
    }

    /// The usages that the signer requires. Key encipherment is for RSA keys; ours are ECDSA.
    pub(crate) fn usages(self) -> [&'static str; 2] {
        match self {
            Self::KubeletClient => ["digital signature", "client auth"],
            Self::KubeletServing => ["digital signature", "server auth"],
        }
    }
}

// === impl CertificateSpec ===

impl CertificateSpec {
    /// The certificate with which a node authenticates to the API server.
    pub fn client(node: impl Into<String>) -> Self {
        Self {
            signer: Signer::KubeletClient,
            node: node.into(),
            names: BTreeSet::new(),
            addresses: BTreeSet::new(),
            lifetime: None,
        }
    }

    /// The certificate of a node's kubelet API. It needs at least one name or address.
    pub fn serving(
        node: impl Into<String>,
        names: impl IntoIterator<Item = String>,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        Self {
            signer: Signer::KubeletServing,
            names: names.into_iter().collect(),
            addresses: addresses.into_iter().collect(),
            ..Self::client(node)
        }
    }

    /// The user that the certificate authenticates.
    pub fn user(&self) -> String {
        format!("system:node:{}", self.node)
    }
}

// === impl Error ===

impl Error {
    fn file(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::File { operation, path, reason: error.to_string() }
    }

    /// The kind of the API server's error, if the API server caused this error.
    pub fn api(&self) -> Option<Kind> {
        match self {
            Self::Api { error, .. } => Some(error.kind),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
