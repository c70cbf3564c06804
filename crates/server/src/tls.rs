//! TLS: the node's serving certificate, which can be replaced at any time, and client certificates.

pub mod certificate_files;
pub mod client_ca;
mod legacy_certificate;
mod required_client;
pub mod self_signed;

use std::{
    fmt, io,
    path::PathBuf,
    sync::{Arc, LazyLock},
};

use parking_lot::RwLock;
use rustls::{
    DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, UnixTime},
    server::{
        ClientHello, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};
use tokio::sync::watch;

use self::{client_ca::ClientCa, legacy_certificate::LegacyCertificate, required_client::RequiredClient};

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        reason: io::Error,
    },
    /// A file holds no usable certificate or key.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A certificate cannot be generated.
    #[error("cannot generate a certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// A certificate and its key do not match.
    #[error("the certificate cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
}

/// The node's serving certificate. Clones share it. A replacement affects new connections only.
#[derive(Clone)]
pub struct ServingCertificate {
    current: Arc<RwLock<Arc<CertifiedKey>>>,
    /// The fingerprint of its key.
    key: watch::Sender<Option<Arc<str>>>,
}

// === impl ServingCertificate ===

impl ServingCertificate {
    /// Serves this certificate.
    pub fn new(certificate: Arc<CertifiedKey>) -> Self {
        let key = watch::Sender::new(fingerprint(&certificate));
        Self { current: Arc::new(RwLock::new(certificate)), key }
    }

    /// Replaces the certificate.
    pub fn replace(&self, certificate: Arc<CertifiedKey>) {
        let key = fingerprint(&certificate);
        let mut current = self.current.write();
        *current = certificate;
        // Under the lock, so that of two replacements both see the same one last.
        self.key.send_if_modified(|known| std::mem::replace(known, key.clone()) != key);
    }

    /// The current certificate.
    pub fn current(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.current.read())
    }

    /// Follows the [fingerprint](vk_kube::key_fingerprint) of the certificate's key.
    pub fn key(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.key.subscribe()
    }
}

fn fingerprint(certificate: &CertifiedKey) -> Option<Arc<str>> {
    vk_kube::key_fingerprint(certificate.end_entity_cert().ok()?).map(Arc::from)
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl fmt::Debug for ServingCertificate {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingCertificate").field("certificates", &self.current().cert.len()).finish()
    }
}

/// The TLS configuration of a node's listener: TLS 1.2 or newer, with HTTP/2 or HTTP/1.1.
///
/// A client certificate is requested but optional, and verified with each request, as in the kubelet: a caller with a token may have
/// any certificate or none, an expired certificate is rejected on an open connection too, and a replaced CA takes effect at
/// once.
pub fn config(serving: ServingCertificate) -> Result<Arc<ServerConfig>, Error> {
    let provider = provider();
    let verifier = Arc::new(KeyPossessionVerifier { provider: Arc::clone(&provider) });
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(serving));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The TLS configuration of a listener without client certificates: TLS 1.2 or newer, with HTTP/1.1, which is what the API server speaks to
/// webhooks.
pub fn server_config(serving: ServingCertificate) -> Result<Arc<ServerConfig>, Error> {
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    Ok(http1(builder.with_no_client_auth().with_cert_resolver(Arc::new(serving))))
}

/// Like [`server_config`], for clients of which each needs a certificate: of these CAs, with one of these common names. Others get no
/// connection, and while no CA is trusted nobody does. Replaced CAs affect new connections only.
pub fn server_config_for(
    serving: ServingCertificate,
    client_ca: ClientCa,
    names: &'static [&'static str],
) -> Result<Arc<ServerConfig>, Error> {
    let provider = provider();
    let possession = KeyPossessionVerifier { provider: Arc::clone(&provider) };
    let verifier = Arc::new(RequiredClient { possession, client_ca, names });
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(http1(builder.with_client_cert_verifier(verifier).with_cert_resolver(Arc::new(serving))))
}

fn http1(mut config: ServerConfig) -> Arc<ServerConfig> {
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));
    Arc::clone(&PROVIDER)
}

/// Verifies only that the client has the key of its certificate.
#[derive(Debug)]
struct KeyPossessionVerifier {
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for KeyPossessionVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// None: clients need not guess which CAs are trusted.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        match LegacyCertificate::parse(certificate) {
            Some(legacy) => legacy.verify_tls12_signature(message, signed, algorithms),
            None => verify_tls12_signature(message, certificate, signed, algorithms),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        match LegacyCertificate::parse(certificate) {
            Some(legacy) => legacy.verify_tls13_signature(message, signed, algorithms),
            None => verify_tls13_signature(message, certificate, signed, algorithms),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
