//! Certificate authorities: what clients trust, and what issues leaves.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData as _,
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::certificate::X509Certificate;

use super::{CA_BACKDATE, CA_LIFETIME, after, before};

/// The certificate of a CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) certificate: CertificateDer<'static>,
    public_key: Vec<u8>,
    pub(super) not_before: Timestamp,
    pub(super) not_after: Timestamp,
}

/// A CA with its key.
pub(super) struct SigningAuthority {
    pub(super) authority: Authority,
    pub(super) issuer: Issuer<'static, KeyPair>,
    /// PEM.
    pub(super) key: String,
}

// === impl Authority ===

impl Authority {
    fn parse(certificate: CertificateDer<'static>) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).ok()?;
        let (not_before, not_after) = validity(&parsed)?;
        let public_key = parsed.public_key().raw.to_vec();
        parsed.is_ca().then_some(())?;
        Some(Self { certificate, public_key, not_before, not_after })
    }

    /// The CAs of a bundle, each once. What is not one is left out.
    pub(super) fn parse_bundle(pem: &str) -> Vec<Self> {
        let certificates = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok);
        let mut bundle = Vec::new();
        for authority in certificates.filter_map(Self::parse) {
            if !bundle.contains(&authority) {
                bundle.push(authority);
            }
        }
        bundle
    }

    /// The bundle as it is stored and printed.
    pub(super) fn bundle_pem<'a>(bundle: impl IntoIterator<Item = &'a Self>) -> String {
        bundle.into_iter().map(Self::pem).collect()
    }

    fn pem(&self) -> String {
        let base64 = STANDARD.encode(&self.certificate);
        let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
        let mut rest = base64.as_str();
        while !rest.is_empty() {
            let (line, after) = rest.split_at(rest.len().min(64));
            pem.push_str(line);
            pem.push('\n');
            rest = after;
        }
        pem + "-----END CERTIFICATE-----\n"
    }

    /// Whether clients whose clocks show this time trust it.
    pub(super) fn is_valid(&self, now: Timestamp) -> bool {
        self.not_before <= now && now < self.not_after
    }

    /// When it was created, if placement has created it.
    pub(super) fn created(&self) -> Timestamp {
        after(self.not_before, CA_BACKDATE)
    }
}

// === impl SigningAuthority ===

impl SigningAuthority {
    pub(super) fn create(now: Timestamp) -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        // Each CA has a name of its own, so that verifiers find the right one.
        let name = format!("virtual-kubelet-placement-ca@{}", now.as_second());
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        set_validity(&mut params, before(now, CA_BACKDATE), after(now, CA_LIFETIME));
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.self_signed(&key)?;
        let pem = key.serialize_pem();
        let authority =
            Authority::parse(certificate.der().clone()).ok_or(rcgen::Error::CouldNotParseCertificate)?;
        Ok(Self { authority, issuer: Issuer::new(params, key), key: pem })
    }

    /// The CA of a bundle that has this key.
    pub(super) fn find(bundle: &[Authority], key: &str) -> Option<Self> {
        let parsed = KeyPair::from_pem(key).ok()?;
        let public_key = parsed.subject_public_key_info();
        let authority = bundle.iter().find(|authority| authority.public_key == public_key)?.clone();
        let issuer = Issuer::from_ca_cert_der(&authority.certificate, parsed).ok()?;
        Some(Self { authority, issuer, key: key.to_owned() })
    }
}

/// The validity period of a certificate.
pub(super) fn validity(certificate: &X509Certificate<'_>) -> Option<(Timestamp, Timestamp)> {
    let validity = certificate.validity();
    let time = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    Some((time(validity.not_before)?, time(validity.not_after)?))
}

/// Sets the validity period of a certificate that is to be issued.
pub(super) fn set_validity(params: &mut CertificateParams, not_before: Timestamp, not_after: Timestamp) {
    let time = |time: Timestamp| {
        // Years before 1970 are not needed.
        let seconds = time.as_second().try_into().unwrap_or_default();
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    params.not_before = time(not_before);
    params.not_after = time(not_after);
}
