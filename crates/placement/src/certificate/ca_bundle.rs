//! What clients need to know of the certificates.

use k8s_openapi::api::core::v1::Secret;
use vk_kube::{Client, Error, Kind, Objects};

use super::{
    SECRET, ServedNames,
    authority::Authority,
    contents::{CA_CRT, Contents},
    leaf::Leaf,
};

/// Why there is no bundle of CAs.
#[derive(Debug, thiserror::Error)]
pub enum CaBundleError {
    /// There is no Secret.
    #[error(
        "there is no Secret {namespace}/{SECRET}: start `virtual-kubelet placement` with its extender or webhook first, which creates it, or \
         name the file of your CA"
    )]
    Missing {
        /// The namespace of placement.
        namespace: String,
    },
    /// The Secret has no CA.
    #[error(
        "{CA_CRT} in the Secret {namespace}/{SECRET} has no CA: the process that leads placement repairs it; or name the file of your CA"
    )]
    Malformed {
        /// The namespace of placement.
        namespace: String,
    },
    /// The Secret cannot be read.
    #[error(
        "cannot read the CA in the Secret {namespace}/{SECRET}: {error}; use credentials that may, or name the file of your CA"
    )]
    Unreadable {
        /// The namespace of placement.
        namespace: String,
        /// Why.
        error: Error,
    },
}

/// The CAs in the Secret, in PEM, for clients of the extender and the webhook. During a rotation there are two.
pub async fn ca_bundle(client: &Client, namespace: &str) -> Result<String, CaBundleError> {
    let contents = read(client, namespace).await?;
    of_contents(&contents).ok_or_else(|| CaBundleError::Malformed { namespace: namespace.to_owned() })
}

/// The names that the certificate in the Secret is for. `None` if there is no usable certificate.
pub async fn issued_names(client: &Client, namespace: &str) -> Result<Option<ServedNames>, CaBundleError> {
    let contents = read(client, namespace).await?;
    Ok(Leaf::parse(&contents.leaf, &contents.leaf_key).ok().map(|leaf| leaf.names))
}

/// Reads the Secret.
pub(super) async fn read(client: &Client, namespace: &str) -> Result<Contents, CaBundleError> {
    let namespace = namespace.to_owned();
    let secrets = Objects::<Secret>::namespaced(client.clone(), &namespace);
    match secrets.get(SECRET).await {
        Ok(secret) => Ok(Contents::of(&secret)),
        Err(error) if error.kind == Kind::NotFound => Err(CaBundleError::Missing { namespace }),
        Err(error) => Err(CaBundleError::Unreadable { namespace, error }),
    }
}

/// `None` if there is no CA.
pub(super) fn of_contents(contents: &Contents) -> Option<String> {
    let bundle = Authority::parse_bundle(&contents.bundle);
    (!bundle.is_empty()).then(|| Authority::bundle_pem(&bundle))
}
