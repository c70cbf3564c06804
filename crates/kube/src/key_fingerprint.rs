//! Fingerprints of public keys.

use std::fmt::Write as _;

use rustls::pki_types::CertificateDer;

/// The fingerprint of a certificate's public key: `sha256:` and the digest of its SubjectPublicKeyInfo in hexadecimal, as in
/// `kubeadm join --discovery-token-ca-cert-hash`. `None` if the certificate cannot be parsed.
///
/// Unlike a fingerprint of the certificate it stays the same when a certificate is renewed for the same key.
pub fn key_fingerprint(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, parsed.public_key().raw);
    let mut text = "sha256:".to_owned();
    for byte in digest.as_ref() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, PublicKeyData as _};

    use super::*;

    fn certificate(name: &str, key: &KeyPair) -> CertificateDer<'static> {
        CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(key).unwrap().der().clone()
    }

    #[test]
    fn a_fingerprint_is_of_the_key_and_not_of_the_certificate() {
        let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let of = |name: &str, key: &KeyPair| key_fingerprint(&certificate(name, key)).unwrap();
        assert_eq!(of("a", &key), of("b", &key));
        assert_ne!(of("a", &key), of("a", &other));
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &key.subject_public_key_info());
        let digits: Vec<String> = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(of("a", &key), format!("sha256:{}", digits.concat()));
        assert_eq!(key_fingerprint(&CertificateDer::from(vec![1, 2, 3])), None);
    }
}
