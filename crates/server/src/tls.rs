//! TLS: the certificate that a node shows, which can be exchanged at any time, and what clients show in return.

pub mod clients;
pub mod files;
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

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// A file holds no certificate or key that can be used.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A certificate cannot be made.
    #[error("cannot make a certificate: {0}")]
    Making(#[from] rcgen::Error),
    /// A certificate and its key cannot be used together.
    #[error("the certificate cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
}

/// The certificate that a node shows. Clones share it. A connection keeps the one it was opened with.
#[derive(Clone)]
pub struct Serving(Arc<RwLock<Arc<CertifiedKey>>>);

// === impl Serving ===

impl Serving {
    /// Begins with this one.
    pub fn new(certificate: Arc<CertifiedKey>) -> Self {
        Self(Arc::new(RwLock::new(certificate)))
    }

    /// Shows another one from now on.
    pub fn replace(&self, certificate: Arc<CertifiedKey>) {
        *self.0.write() = certificate;
    }

    /// The one that is shown now.
    pub fn current(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0.read())
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl fmt::Debug for Serving {
    /// Not the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").field("certificates", &self.current().cert.len()).finish()
    }
}

/// How a node's listener speaks TLS: 1.2 or newer, HTTP/2 or HTTP/1.1.
///
/// A client certificate is asked for and not demanded, and whose it is, and whether it counts, is decided with each request
/// (as the kubelet does): a caller with a token may have any certificate or none, a certificate that has expired does not
/// count on a connection that is still open, and authorities that are exchanged are in force at once.
pub fn config(serving: Serving) -> Result<Arc<ServerConfig>, Error> {
    let provider = provider();
    let verifier = Arc::new(Possession { provider: Arc::clone(&provider) });
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(serving));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));
    Arc::clone(&PROVIDER)
}

/// Sees to it that whoever shows a certificate has its key, and to nothing else.
#[derive(Debug)]
struct Possession {
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for Possession {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// None: a client shall not have to guess which authorities count.
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
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
