//! A serving certificate from files, read again when they change.

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

use super::{Error, Serving, provider};

/// How often files are compared with what is in use. Unlike file notifications this works on every file system, and through
/// the symlinks that Kubernetes swaps when a Secret changes.
pub(crate) const RELOAD_PERIOD: Duration = Duration::from_secs(5);

/// A certificate with its chain, and its key, both in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The certificate, followed by the authorities between it and the root.
    pub cert: PathBuf,
    /// The key.
    pub key: PathBuf,
}

// === impl Files ===

impl Files {
    /// Reads them. The error says which file is wrong, and how.
    pub fn read(&self) -> Result<Arc<CertifiedKey>, Error> {
        let (cert, key) = (text(&self.cert)?, text(&self.key)?);
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

    /// Keeps a serving certificate up to date with the files, for ever. Files that cannot be used are told about, and the
    /// certificate stays as it is.
    pub async fn follow(self, serving: Serving) {
        let mut seen = self.contents();
        loop {
            tokio::time::sleep(RELOAD_PERIOD).await;
            let now = self.contents();
            if now == seen {
                continue;
            }
            // Two files cannot be exchanged at once: a pair that does not fit is most often half of a change, and is
            // looked at again when the other half comes.
            match self.read() {
                Ok(certificate) => {
                    serving.replace(certificate);
                    info!(file = %self.cert.display(), "the serving certificate was exchanged");
                }
                Err(error) => {
                    warn!(%error, "the serving certificate has changed and cannot be used: the earlier one stays");
                }
            }
            seen = now;
        }
    }

    /// What cannot be read counts as empty.
    fn contents(&self) -> [Vec<u8>; 2] {
        [&self.cert, &self.key].map(|path| fs::read(path).unwrap_or_default())
    }
}

pub(crate) fn text(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|reason| Error::Unreadable { path: path.to_owned(), reason })
}
