//! Client certificates that are required in the handshake.

use std::{fmt, iter, sync::Arc};

use jiff::Timestamp;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};

use super::{KeyPossessionVerifier, client_ca::ClientCa};
use crate::auth::UserInfo;

/// Accepts certificates of trusted CAs with one of some common names, and nobody without one.
pub(super) struct RequiredClient {
    pub(super) possession: KeyPossessionVerifier,
    pub(super) client_ca: ClientCa,
    pub(super) names: &'static [&'static str],
}

/// Why a client certificate is refused.
#[derive(Debug, thiserror::Error)]
enum RefusedClient {
    #[error("{0}")]
    NotVerified(String),
    #[error("the client certificate is that of {found:?}, and must be that of {}", expected.join(" or "))]
    OtherName { found: String, expected: &'static [&'static str] },
}

// === impl RequiredClient ===

impl RequiredClient {
    fn verify(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<(), RefusedClient> {
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let now = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
        self.client_ca.verify(chain, now).map_err(RefusedClient::NotVerified)?;
        let user = chain.first().and_then(UserInfo::from_certificate).unwrap_or_default();
        if self.names.contains(&user.name.as_str()) {
            Ok(())
        } else {
            Err(RefusedClient::OtherName { found: user.name, expected: self.names })
        }
    }
}

impl fmt::Debug for RequiredClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequiredClient").field("names", &self.names).finish_non_exhaustive()
    }
}

impl ClientCertVerifier for RequiredClient {
    fn client_auth_mandatory(&self) -> bool {
        true
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.possession.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let chain: Vec<_> = iter::once(leaf).chain(intermediates).cloned().collect();
        match self.verify(&chain, now) {
            Ok(()) => Ok(ClientCertVerified::assertion()),
            Err(refused) => Err(CertificateError::Other(OtherError(Arc::new(refused))).into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.possession.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.possession.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.possession.supported_verify_schemes()
    }
}
