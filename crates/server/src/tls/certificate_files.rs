//! A serving certificate from files, reloaded when they change.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};
use tracing::{info, warn};

use super::{Error, ServingCertificate, provider};

/// How often the files are compared with those in use. Unlike file notifications this works on every file system, and through the
/// symlinks that Kubernetes swaps when a Secret changes.
pub(crate) const RELOAD_PERIOD: Duration = Duration::from_secs(5);

/// The files of a certificate chain and its key, both in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, followed by intermediate CAs.
    pub cert: PathBuf,
    /// The key.
    pub key: PathBuf,
}

// === impl CertificateFiles ===

impl CertificateFiles {
    /// Reads the files. The error names the bad file and the reason.
    pub fn read(&self) -> Result<Arc<CertifiedKey>, Error> {
        let (cert, key) = (read_file(&self.cert)?, read_file(&self.key)?);
        self.parse(&cert, &key)
    }

    fn parse(&self, cert: &[u8], key: &[u8]) -> Result<Arc<CertifiedKey>, Error> {
        let malformed = |path: &Path, reason: String| Error::Malformed { path: path.to_owned(), reason };
        let chain = CertificateDer::pem_slice_iter(cert)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| malformed(&self.cert, format!("is not PEM: {error}")))?;
        if chain.is_empty() {
            return Err(malformed(&self.cert, "holds no certificate in PEM".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| malformed(&self.key, format!("holds no private key in PEM: {error}")))?;
        CertifiedKey::from_der(chain, key, &provider()).map(Arc::new).map_err(|error| {
            let why = match error {
                rustls::Error::InconsistentKeys(_) => {
                    format!("does not belong to the certificate in {}", self.cert.display())
                }
                error => error.to_string(),
            };
            malformed(&self.key, why)
        })
    }

    /// Reloads the serving certificate when the files change, forever. Unusable files are logged, and the certificate is kept.
    pub async fn follow(self, serving: ServingCertificate) {
        let mut seen = self.contents();
        loop {
            tokio::time::sleep(RELOAD_PERIOD).await;
            let now = self.contents();
            if now == seen {
                continue;
            }
            // Two files cannot be replaced at once: a mismatch is usually half of a change, and the other half triggers another
            // reload.
            match self.read() {
                Ok(certificate) => {
                    serving.replace(certificate);
                    info!(file = %self.cert.display(), "the serving certificate was reloaded");
                }
                Err(error) => {
                    warn!(%error, "the serving certificate changed and cannot be used: keeping the old one");
                }
            }
            seen = now;
        }
    }

    /// The contents. Unreadable files count as empty.
    fn contents(&self) -> [Vec<u8>; 2] {
        [&self.cert, &self.key].map(|path| fs::read(path).unwrap_or_default())
    }
}

pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|reason| Error::Unreadable { path: path.to_owned(), reason })
}
