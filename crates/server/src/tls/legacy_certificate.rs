//! Client certificates of X.509 version 1, which plain `openssl x509 -req` makes. rustls refuses them, a kubelet does not.

use jiff::Timestamp;
use rustls::{
    CertificateError, DigitallySignedStruct, Error,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key},
    pki_types::{CertificateDer, SubjectPublicKeyInfoDer},
};
use x509_parser::{
    asn1_rs::Any,
    error::X509Error,
    oid_registry::{OID_X509_EXT_BASIC_CONSTRAINTS, OID_X509_EXT_EXTENDED_KEY_USAGE, OID_X509_EXT_KEY_USAGE},
    prelude::{ASN1Time, FromDer as _, SubjectPublicKeyInfo, X509Certificate, X509Version},
};

/// A certificate without extensions: of version 1, or of version 2, which nobody uses.
pub(super) struct LegacyCertificate<'a> {
    parsed: X509Certificate<'a>,
    /// The contents of the algorithm identifier of the signature.
    signature_algorithm: &'a [u8],
}

// === impl LegacyCertificate ===

impl<'a> LegacyCertificate<'a> {
    /// `None` for certificates of version 3, and for what is not a certificate.
    pub(super) fn parse(certificate: &'a CertificateDer<'_>) -> Option<Self> {
        let (rest, parsed) = X509Certificate::from_der(certificate).ok()?;
        let legacy = matches!(parsed.version(), X509Version::V1 | X509Version::V2);
        if !legacy || !rest.is_empty() || !parsed.extensions().is_empty() {
            return None;
        }
        // A certificate is a sequence of its contents, the algorithm, and the signature.
        let (_, all) = Any::from_der(certificate).ok()?;
        let (rest, _) = Any::from_der(all.data).ok()?;
        let (_, algorithm) = Any::from_der(rest).ok()?;
        Some(Self { parsed, signature_algorithm: algorithm.data })
    }

    /// Verifies the client's signature of a TLS 1.2 handshake.
    pub(super) fn verify_tls12_signature(
        &self,
        message: &[u8],
        signed: &DigitallySignedStruct,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = PublicKey::of(self.parsed.public_key());
        let mapped = algorithms.mapping.iter().filter(|(scheme, _)| *scheme == signed.scheme);
        let valid = mapped.flat_map(|(_, possible)| possible.iter()).any(|algorithm| {
            key.as_ref().is_some_and(|key| {
                algorithm.public_key_alg_id().as_ref() == key.algorithm
                    && algorithm.verify_signature(key.bits, message, signed.signature()).is_ok()
            })
        });
        if valid {
            Ok(HandshakeSignatureValid::assertion())
        } else {
            Err(CertificateError::BadSignature.into())
        }
    }

    /// Verifies the client's signature of a TLS 1.3 handshake.
    pub(super) fn verify_tls13_signature(
        &self,
        message: &[u8],
        signed: &DigitallySignedStruct,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(self.parsed.public_key().raw);
        verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
    }

    /// Verifies that one of the CAs has issued it and that it is valid at this time, by the rules of Go's crypto/x509. CAs
    /// that the client sends along are not considered.
    pub(super) fn verify(
        &self,
        authorities: &[CertificateDer<'_>],
        algorithms: &WebPkiSupportedAlgorithms,
        now: Timestamp,
    ) -> Result<(), String> {
        check_validity(&self.parsed, now)?;
        let mut reason = "of X.509 version 1, and not issued by a trusted CA itself".to_owned();
        for authority in authorities {
            let Ok((_, authority)) = X509Certificate::from_der(authority) else { continue };
            if authority.subject().as_raw() != self.parsed.issuer().as_raw() {
                continue;
            }
            match self.check_issuer(&authority, algorithms, now) {
                Ok(()) => return Ok(()),
                Err(error) => reason = format!("its CA: {error}"),
            }
        }
        Err(reason)
    }

    fn check_issuer(
        &self,
        authority: &X509Certificate<'_>,
        algorithms: &WebPkiSupportedAlgorithms,
        now: Timestamp,
    ) -> Result<(), String> {
        check_validity(authority, now)?;
        check_authority(authority)?;
        let key = PublicKey::of(authority.public_key()).ok_or("has no key")?;
        let tbs = &self.parsed.tbs_certificate;
        let signature = &self.parsed.signature_value.data;
        let signed = tbs.signature == self.parsed.signature_algorithm
            && algorithms.all.iter().any(|algorithm| {
                algorithm.signature_alg_id().as_ref() == self.signature_algorithm
                    && algorithm.public_key_alg_id().as_ref() == key.algorithm
                    && algorithm.verify_signature(key.bits, tbs.as_ref(), signature).is_ok()
            });
        if signed { Ok(()) } else { Err("did not sign it, or with an unsupported algorithm".to_owned()) }
    }
}

/// A public key, and the contents of its algorithm identifier.
struct PublicKey<'a> {
    algorithm: &'a [u8],
    bits: &'a [u8],
}

// === impl PublicKey ===

impl<'a> PublicKey<'a> {
    fn of(info: &'a SubjectPublicKeyInfo<'_>) -> Option<Self> {
        let (_, all) = Any::from_der(info.raw).ok()?;
        let (_, algorithm) = Any::from_der(all.data).ok()?;
        Some(Self { algorithm: algorithm.data, bits: &info.subject_public_key.data })
    }
}

fn check_validity(certificate: &X509Certificate<'_>, now: Timestamp) -> Result<(), String> {
    let now = ASN1Time::from_timestamp(now.as_second()).map_err(|error| error.to_string())?;
    let validity = certificate.validity();
    if validity.is_valid_at(now) {
        return Ok(());
    }
    Err(format!("valid from {} to {}", validity.not_before, validity.not_after))
}

/// Whether a certificate may issue client certificates. A CA of version 1 may.
fn check_authority(authority: &X509Certificate<'_>) -> Result<(), String> {
    let malformed = |error: X509Error| error.to_string();
    let constraints = authority.basic_constraints().map_err(malformed)?;
    let is_ca = constraints.map(|constraints| constraints.value.ca);
    if is_ca == Some(false) || (is_ca.is_none() && authority.version() == X509Version::V3) {
        return Err("is not a CA".to_owned());
    }
    let usage = authority.key_usage().map_err(malformed)?;
    if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
        return Err("may not sign certificates".to_owned());
    }
    let purposes = authority.extended_key_usage().map_err(malformed)?;
    if purposes.is_some_and(|purposes| !purposes.value.any && !purposes.value.client_auth) {
        return Err("may not issue client certificates".to_owned());
    }
    let checked = [OID_X509_EXT_BASIC_CONSTRAINTS, OID_X509_EXT_KEY_USAGE, OID_X509_EXT_EXTENDED_KEY_USAGE];
    let mut critical = authority.extensions().iter().filter(|extension| extension.critical);
    let unknown = critical.find(|extension| !checked.contains(&extension.oid));
    match unknown {
        Some(extension) => Err(format!("has the critical extension {}", extension.oid)),
        None => Ok(()),
    }
}
