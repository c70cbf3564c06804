//! A node's certificate with its private key.

use std::{collections::BTreeSet, fmt, net::IpAddr, sync::Arc};

use jiff::Timestamp;
use rustls::{
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};
use x509_parser::{
    certification_request::X509CertificationRequest,
    extensions::{GeneralName, ParsedExtension, SubjectAlternativeName},
    prelude::FromDer as _,
    x509::X509Name,
};

use super::{CertificateSpec, Error};

/// The group of all nodes, which is the organisation in their certificates.
pub(super) const ORGANIZATION: &str = "system:nodes";

/// A certificate with its chain and the matching private key. Cheap to clone.
#[derive(Clone)]
pub struct NodeCertificate(Arc<Inner>);

struct Inner {
    /// The certificate chain and the key.
    pem: String,
    certified_key: Arc<CertifiedKey>,
    not_before: Timestamp,
    not_after: Timestamp,
    names: SubjectNames,
}

/// The subject and the alternative names of a certificate or a signing request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SubjectNames {
    common_name: String,
    organizations: BTreeSet<String>,
    dns: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
}

// === impl NodeCertificate ===

impl NodeCertificate {
    /// Parses a PEM text with both, in any order. They must match.
    pub fn from_pem(pem: &str) -> Result<Self, Error> {
        let malformed = |reason: String| Error::Malformed { reason };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|error| malformed(format!("the certificate is not PEM: {error}")))?;
        let leaf = chain.first().cloned().ok_or_else(|| malformed("there is no certificate".to_owned()))?;
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| malformed(format!("there is no key: {error}")))?;
        let certified = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())
            .map_err(|error| malformed(error.to_string()))?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&leaf)
            .map_err(|error| malformed(format!("the certificate cannot be read: {error}")))?;
        let time = |time: x509_parser::time::ASN1Time| {
            Timestamp::from_second(time.timestamp())
                .map_err(|error| malformed(format!("the certificate's time cannot be read: {error}")))
        };
        let alternative = parsed
            .subject_alternative_name()
            .map_err(|error| malformed(format!("the certificate's names cannot be read: {error}")))?;
        Ok(Self(Arc::new(Inner {
            pem: pem.to_owned(),
            not_before: time(parsed.validity().not_before)?,
            not_after: time(parsed.validity().not_after)?,
            names: SubjectNames::read(parsed.subject(), alternative.map(|extension| extension.value)),
            certified_key: Arc::new(certified),
        })))
    }

    /// The certificate chain and the key in PEM.
    pub fn pem(&self) -> &str {
        &self.0.pem
    }

    /// The certificate and key for rustls.
    pub fn certified_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0.certified_key)
    }

    /// The start of the validity period.
    pub fn not_before(&self) -> Timestamp {
        self.0.not_before
    }

    /// The end of the validity period.
    pub fn not_after(&self) -> Timestamp {
        self.0.not_after
    }

    /// Whether the validity period is over.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now >= self.0.not_after
    }

    /// Whether the subject is this node.
    pub fn belongs_to(&self, spec: &CertificateSpec) -> bool {
        self.0.names.common_name == spec.user()
    }

    /// Why it does not satisfy the spec, or `None` if it does. It may hold more names than the spec.
    pub fn mismatch(&self, spec: &CertificateSpec) -> Option<String> {
        self.0.names.mismatch(spec)
    }
}

impl fmt::Debug for NodeCertificate {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeCertificate")
            .field("names", &self.0.names)
            .field("not_before", &self.0.not_before)
            .field("not_after", &self.0.not_after)
            .finish_non_exhaustive()
    }
}

impl PartialEq for NodeCertificate {
    fn eq(&self, other: &Self) -> bool {
        self.0.pem == other.0.pem
    }
}

// === impl SubjectNames ===

impl SubjectNames {
    /// Parses a signing request in DER: the names and the public key.
    pub(super) fn of_request(der: &[u8]) -> Option<(Self, Vec<u8>)> {
        let (_, request) = X509CertificationRequest::from_der(der).ok()?;
        let info = &request.certification_request_info;
        let alternative =
            request.requested_extensions().into_iter().flatten().find_map(|extension| match extension {
                ParsedExtension::SubjectAlternativeName(names) => Some(names),
                _ => None,
            });
        Some((Self::read(&info.subject, alternative), info.subject_pki.raw.to_vec()))
    }

    fn read(subject: &X509Name<'_>, alternative: Option<&SubjectAlternativeName<'_>>) -> Self {
        let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            attribute.as_str().map(str::to_owned).unwrap_or_default()
        };
        let mut names = Self {
            common_name: subject.iter_common_name().next().map(text).unwrap_or_default(),
            organizations: subject.iter_organization().map(text).collect(),
            ..Self::default()
        };
        for name in alternative.into_iter().flat_map(|names| &names.general_names) {
            match name {
                GeneralName::DNSName(name) => drop(names.dns.insert((*name).to_owned())),
                GeneralName::IPAddress(bytes) => names.addresses.extend(address(bytes)),
                _ => {}
            }
        }
        names
    }

    /// Why they do not satisfy the spec, or `None` if they do.
    pub(super) fn mismatch(&self, spec: &CertificateSpec) -> Option<String> {
        let user = spec.user();
        if self.common_name != user {
            return Some(format!("its subject is {:?}, not {user:?}", self.common_name));
        }
        if !self.organizations.contains(ORGANIZATION) {
            return Some(format!("its organisation is not {ORGANIZATION}"));
        }
        let names = spec.names.difference(&self.dns).cloned();
        let addresses = spec.addresses.difference(&self.addresses).map(ToString::to_string);
        let missing: Vec<String> = names.chain(addresses).collect();
        (!missing.is_empty()).then(|| format!("it does not hold {}", missing.join(", ")))
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    four.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}
