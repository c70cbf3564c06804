//! Authentication and authorization of callers.

pub mod attributes;
mod authenticator;
mod authorizer;
mod cache;
pub mod review;

use std::{collections::BTreeMap, time::Duration};

use rustls::pki_types::CertificateDer;
use serde::Serialize;
use x509_parser::prelude::{FromDer as _, X509Certificate};

pub use self::{
    attributes::RequestAttributes,
    authenticator::Authenticator,
    authorizer::Authorizer,
    review::{ApiReviewer, Reviewer},
};

/// Cached tokens, and cached authorization decisions.
const CACHE_SIZE: usize = 4096;
/// Concurrent reviews of one kind.
const CONCURRENT_REVIEWS: usize = 32;

/// How long answers of the API server are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheTtls {
    /// The user of a token.
    pub token: Duration,
    /// An access that is allowed.
    pub authorized: Duration,
    /// An access that is denied.
    pub unauthorized: Duration,
}

/// The group of all authenticated users.
const AUTHENTICATED: &str = "system:authenticated";

/// A Kubernetes user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UserInfo {
    /// The name.
    pub name: String,
    /// The UID, if any.
    pub uid: Option<String>,
    /// The groups.
    pub groups: Vec<String>,
    /// Extra information from the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}

// === impl UserInfo ===

impl UserInfo {
    /// The user in a client certificate: the common name, with the organisations as groups. `None` without a name. The caller
    /// must verify the certificate.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
        let groups = groups.map(str::to_owned).collect();
        (!name.is_empty()).then(|| Self { name, groups, ..Self::default() }.with_authenticated_group())
    }

    /// Adds the group of all authenticated users.
    #[must_use]
    pub(crate) fn with_authenticated_group(mut self) -> Self {
        if !self.groups.iter().any(|group| group == AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}

#[cfg(test)]
mod tests;
