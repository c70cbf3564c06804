//! A caller who is known.

use std::collections::BTreeMap;

use rustls::pki_types::CertificateDer;
use serde::Serialize;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The group of all who are not anonymous.
const AUTHENTICATED: &str = "system:authenticated";

/// A user as Kubernetes knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct User {
    /// The name.
    pub name: String,
    /// The UID, where there is one.
    pub uid: Option<String>,
    /// The groups.
    pub groups: Vec<String>,
    /// What else the authenticator says of them.
    pub extra: BTreeMap<String, Vec<String>>,
}

// === impl User ===

impl User {
    /// The user that a client certificate names: by its common name, with its organisations as groups. `None` for one
    /// without a name. That somebody vouches for the certificate is for the caller to see.
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
        let groups = groups.map(str::to_owned).collect();
        (!name.is_empty()).then(|| Self { name, groups, ..Self::default() }.authenticated())
    }

    /// The same, in the group of all who are not anonymous.
    #[must_use]
    pub(crate) fn authenticated(mut self) -> Self {
        if !self.groups.iter().any(|group| group == AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}
