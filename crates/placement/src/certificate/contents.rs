//! The content of the Secret.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde_json::{Value, json};

use super::SECRET;

/// Fits a certificate with its key, and allows further keys.
const TYPE: &str = "kubernetes.io/tls";
pub(super) const CA_CRT: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const NEXT_CA_KEY: &str = "next-ca.key";
const TLS_CRT: &str = "tls.crt";
const TLS_KEY: &str = "tls.key";

/// The values of the Secret, in PEM. What is missing or not text is empty.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// All CAs that clients trust.
    pub(super) bundle: String,
    /// The key of the CA that issues leaves.
    pub(super) ca_key: String,
    /// The key of the CA that will issue leaves.
    pub(super) next_ca_key: String,
    pub(super) leaf: String,
    pub(super) leaf_key: String,
}

// === impl Contents ===

impl Contents {
    pub(super) fn of(secret: &Secret) -> Self {
        let value = |key: &str| {
            let value = secret.data.as_ref().and_then(|data| data.get(key));
            value.and_then(|ByteString(bytes)| String::from_utf8(bytes.clone()).ok()).unwrap_or_default()
        };
        Self {
            bundle: value(CA_CRT),
            ca_key: value(CA_KEY),
            next_ca_key: value(NEXT_CA_KEY),
            leaf: value(TLS_CRT),
            leaf_key: value(TLS_KEY),
        }
    }

    fn values(&self) -> [(&'static str, Option<ByteString>); 5] {
        let values = [
            (CA_CRT, &self.bundle),
            (CA_KEY, &self.ca_key),
            (NEXT_CA_KEY, &self.next_ca_key),
            (TLS_CRT, &self.leaf),
            (TLS_KEY, &self.leaf_key),
        ];
        values.map(|(key, value)| (key, (!value.is_empty()).then(|| ByteString(value.clone().into_bytes()))))
    }

    /// The Secret.
    pub(super) fn secret(&self, namespace: &str) -> Secret {
        let data: BTreeMap<_, _> =
            self.values().into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        let metadata = ObjectMeta {
            name: Some(SECRET.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        };
        Secret { metadata, type_: Some(TYPE.to_owned()), data: Some(data), ..Secret::default() }
    }

    /// A merge patch that makes this version of the Secret contain the values, and leaves keys of others alone.
    pub(super) fn patch(&self, current: &ObjectMeta) -> Value {
        let data: BTreeMap<_, _> = self.values().into();
        json!({"metadata": {"uid": current.uid, "resourceVersion": current.resource_version}, "data": data})
    }
}

impl fmt::Debug for Contents {
    /// Omits the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents")
            .field("bundle", &self.bundle)
            .field("leaf", &self.leaf)
            .finish_non_exhaustive()
    }
}
