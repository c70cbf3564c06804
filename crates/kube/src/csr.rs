//! Certificates from the cluster: asked for by a CertificateSigningRequest, kept in a file, renewed before they expire.
//!
//! As the kubelet has it: the key never leaves this machine, the subject is the node's, and a certificate is replaced
//! when 70 to 90 per cent of its life are over, so that nodes that came together do not come back together.

mod pair;
mod renewer;
mod request;
mod store;

use std::{collections::BTreeSet, io, net::IpAddr, path::PathBuf, time::Duration};

use crate::Kind;

pub use self::{
    pair::Pair,
    renewer::{RenewalStatus, Renewer},
    request::obtain,
    store::Store,
};

/// Who signs, and so what the certificate is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signer {
    /// The node's identity towards the API server. The controller manager approves it where the roles are bound.
    KubeletClient,
    /// The kubelet API. Nobody approves it by himself: somebody has to check the addresses.
    KubeletServing,
}

/// The certificate that a node wants. Its subject is `system:node:NODE` of `system:nodes`, which both signers demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSpec {
    /// What it is for.
    pub signer: Signer,
    /// The node.
    pub node: String,
    /// Host names in it. None for a client.
    pub names: BTreeSet<String>,
    /// Addresses in it. None for a client.
    pub addresses: BTreeSet<IpAddr>,
    /// How long it should live, at least ten minutes. The signer may shorten it; `None` leaves it to the signer.
    pub lifetime: Option<Duration>,
}

/// Why there is no certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The API server does not take the request, or does not show it.
    #[error("cannot {operation} a certificate signing request: {error}")]
    Api {
        /// What was tried.
        operation: &'static str,
        /// What came of it.
        error: crate::Error,
    },
    /// Somebody said no.
    #[error("certificate signing request {name} was denied: {reason}")]
    Denied {
        /// The request.
        name: String,
        /// What the one who denied it says.
        reason: String,
    },
    /// The signer cannot sign it.
    #[error("certificate signing request {name} was not signed: {reason}")]
    Failed {
        /// The request.
        name: String,
        /// What the signer says.
        reason: String,
    },
    /// Somebody deleted it, as the controller manager does with those that nobody decides about for a day.
    #[error("certificate signing request {name} was deleted before it was decided")]
    Gone {
        /// The request.
        name: String,
    },
    /// Another request has its name.
    #[error("certificate signing request {name} is there already and asks for something else")]
    Taken {
        /// The name.
        name: String,
    },
    /// What was issued is not what was asked for.
    #[error("the certificate for request {name} cannot be used: {reason}")]
    Unfit {
        /// The request.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// What should be a certificate with its key is none.
    #[error("not a certificate with its key: {reason}")]
    Malformed {
        /// What is wrong.
        reason: String,
    },
    /// A key or a request cannot be made.
    #[error("cannot make a certificate signing request: {reason}")]
    Unmade {
        /// What the library says.
        reason: String,
    },
    /// The file cannot be read or written.
    #[error("cannot {operation} {}: {reason}", path.display())]
    File {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
}

// === impl Signer ===

impl Signer {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::KubeletClient => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::KubeletServing => "kubernetes.io/kubelet-serving",
        }
    }

    /// A word for names and messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::KubeletClient => "client",
            Self::KubeletServing => "serving",
        }
    }

    /// What the signer insists on. Key encipherment is for RSA, and our keys are not.
    pub(crate) fn usages(self) -> [&'static str; 2] {
        match self {
            Self::KubeletClient => ["digital signature", "client auth"],
            Self::KubeletServing => ["digital signature", "server auth"],
        }
    }
}

// === impl CertificateSpec ===

impl CertificateSpec {
    /// The identity of a node.
    pub fn client(node: impl Into<String>) -> Self {
        Self {
            signer: Signer::KubeletClient,
            node: node.into(),
            names: BTreeSet::new(),
            addresses: BTreeSet::new(),
            lifetime: None,
        }
    }

    /// What the kubelet API of a node shows. There must be a name or an address.
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

    /// The user that the certificate stands for.
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

    /// What kind of answer the API server gave, if it was its answer that stands in the way.
    pub fn api(&self) -> Option<Kind> {
        match self {
            Self::Api { error, .. } => Some(error.kind),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
