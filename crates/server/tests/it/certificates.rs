//! Test code: certificate authorities and their certificates.

use std::sync::{Arc, LazyLock};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SigningKey as _, date_time_ymd,
};
use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    sign::CertifiedKey,
};
use x509_parser::{asn1_rs::Any, prelude::FromDer as _};

/// The CA of servers and clients.
pub(crate) static CA: LazyLock<TestCa> = LazyLock::new(|| TestCa::new("authority"));

pub(crate) struct TestCa {
    pub(crate) pem: String,
    pub(crate) der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
#[derive(Clone)]
pub(crate) struct TestCertificate {
    pub(crate) cert_pem: String,
    pub(crate) key_pem: String,
    pub(crate) chain: Vec<CertificateDer<'static>>,
    key: Vec<u8>,
}

// === impl TestCa ===

impl TestCa {
    pub(crate) fn new(name: &str) -> Self {
        Self::with(name, |params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained))
    }

    /// A CA of this name, with changes.
    pub(crate) fn with(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        let certificate = params.self_signed(&key).unwrap();
        Self { pem: certificate.pem(), der: certificate.der().clone(), issuer: Issuer::new(params, key) }
    }

    pub(crate) fn serving(&self) -> TestCertificate {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&params)
    }

    pub(crate) fn client(&self, user: &str, until: i32) -> TestCertificate {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }

    /// A client certificate of version 1, as plain `openssl x509 -req` makes it: without version and extensions.
    pub(crate) fn client_of_version_1(&self, user: &str, until: i32) -> TestCertificate {
        let certificate = self.client(user, until);
        let all = elements(&certificate.chain[0]);
        // The certificate proper begins with the version and ends with the extensions.
        let parts = elements(all[0]);
        let (body, algorithm) = (parts[1..7].concat(), all[1]);
        let body = element(0x30, &body);
        let signature = [&[0], self.issuer.key().sign(&body).unwrap().as_slice()].concat();
        let whole = element(0x30, &[&body, algorithm, &element(0x03, &signature)].concat());
        TestCertificate { chain: vec![CertificateDer::from(whole)], ..certificate }
    }

    fn sign(&self, params: &CertificateParams) -> TestCertificate {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        TestCertificate {
            cert_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            chain: vec![certificate.der().clone()],
            key: key.serialize_der(),
        }
    }
}

// === impl TestCertificate ===

impl TestCertificate {
    /// This certificate with the key of another.
    pub(crate) fn with_key_of(&self, other: &Self) -> Self {
        Self { key: other.key.clone(), ..self.clone() }
    }

    /// The pair, even if it does not match.
    pub(crate) fn certified_key(&self) -> Arc<CertifiedKey> {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.clone()));
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let key = provider.key_provider.load_private_key(key).unwrap();
        Arc::new(CertifiedKey::new(self.chain.clone(), key))
    }
}

/// The elements in a DER sequence.
fn elements(sequence: &[u8]) -> Vec<&[u8]> {
    let (_, sequence) = Any::from_der(sequence).unwrap();
    let (mut found, mut rest) = (Vec::new(), sequence.data);
    while !rest.is_empty() {
        let (next, _) = Any::from_der(rest).unwrap();
        found.push(&rest[..rest.len() - next.len()]);
        rest = next;
    }
    found
}

/// A DER element with this tag.
fn element(tag: u8, contents: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(contents.len()).unwrap().to_be_bytes();
    let length = match (high, low) {
        (0, ..0x80) => vec![low],
        (0, _) => vec![0x81, low],
        _ => vec![0x82, high, low],
    };
    [&[tag], &length[..], contents].concat()
}
