//! The certificate that the servers present.

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    sign::CertifiedKey,
};
use x509_parser::extensions::GeneralName;

use super::{
    LEAF_BACKDATE, LEAF_LIFETIME, ServedNames, after,
    authority::{Authority, SigningAuthority, set_validity, validity},
    before,
};
use crate::policy::NAME;

/// A certificate with its key.
#[derive(Clone)]
pub(super) struct Leaf {
    pub(super) certified_key: Arc<CertifiedKey>,
    pub(super) names: ServedNames,
    pub(super) not_after: Timestamp,
}

// === impl Leaf ===

impl Leaf {
    /// Issues one, as PEM: the certificate and its key.
    pub(super) fn issue(
        signer: &SigningAuthority,
        names: &ServedNames,
        now: Timestamp,
    ) -> Result<(String, String), rcgen::Error> {
        let mut params = CertificateParams::new(names.dns.iter().cloned().collect::<Vec<_>>())?;
        params.subject_alt_names.extend(names.addresses.iter().copied().map(SanType::IpAddress));
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, NAME);
        set_validity(&mut params, before(now, LEAF_BACKDATE), Self::end(signer, now));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.signed_by(&key, &signer.issuer)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// When one that is issued now expires: not after its CA.
    pub(super) fn end(signer: &SigningAuthority, now: Timestamp) -> Timestamp {
        after(now, LEAF_LIFETIME).min(signer.authority.not_after)
    }

    /// Parses a certificate and its key. The error says what is wrong with them, and nothing of what they contain.
    pub(super) fn parse(certificate: &str, key: &str) -> Result<Self, String> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|error| format!("the certificate is not PEM: {error}"))?;
        let first = chain.first().cloned().ok_or("there is no certificate")?;
        let key =
            PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| "there is no private key in PEM")?;
        let certified_key = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())
            .map_err(|error| format!("the certificate and its key cannot be used: {error}"))?;
        let unreadable = || "the certificate cannot be read".to_owned();
        let (_, parsed) = x509_parser::parse_x509_certificate(&first).map_err(|_| unreadable())?;
        let (_, not_after) = validity(&parsed).ok_or_else(unreadable)?;
        let alternative = parsed.subject_alternative_name().map_err(|_| unreadable())?;
        let mut names = ServedNames::default();
        for name in alternative.into_iter().flat_map(|extension| &extension.value.general_names) {
            match name {
                GeneralName::DNSName(name) => drop(names.dns.insert((*name).to_owned())),
                GeneralName::IPAddress(bytes) => names.addresses.extend(address(bytes)),
                _ => {}
            }
        }
        Ok(Self { certified_key: Arc::new(certified_key), names, not_after })
    }

    /// Why clients that trust these CAs, and call the server by these names, would not accept it. `None` if they would.
    pub(super) fn problem(
        &self,
        bundle: &[Authority],
        names: &ServedNames,
        now: Timestamp,
    ) -> Option<String> {
        if self.names != *names {
            return Some(format!("it is for {}", self.names));
        }
        let server_names = names.dns.iter().map(|name| ServerName::try_from(name.as_str()));
        let addresses = names.addresses.iter().map(|address| Ok(ServerName::from(*address)));
        for name in server_names.chain(addresses) {
            let name = name.map_err(|error| error.to_string());
            if let Err(error) = name.and_then(|name| self.verify(bundle, &name, now)) {
                return Some(error);
            }
        }
        None
    }

    /// Verifies it as a client does.
    pub(super) fn verify(
        &self,
        bundle: &[Authority],
        name: &ServerName<'_>,
        now: Timestamp,
    ) -> Result<(), String> {
        let mut roots = RootCertStore::empty();
        // The expiry of a root is not checked below.
        for authority in bundle.iter().filter(|authority| authority.is_valid(now)) {
            roots.add(authority.certificate.clone()).map_err(|error| error.to_string())?;
        }
        let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| error.to_string())?;
        let now =
            UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().try_into().unwrap_or_default()));
        let (leaf, chain) = self.certified_key.cert.split_first().ok_or("there is no certificate")?;
        verifier.verify_server_cert(leaf, chain, name, &[], now).map(drop).map_err(|error| error.to_string())
    }
}

impl fmt::Debug for Leaf {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaf")
            .field("names", &self.names)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    four.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}
