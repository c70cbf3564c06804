//! The authorities whose client certificates count: from a file, or as the cluster publishes them.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::RwLock;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, UnixTime, pem::PemObject as _},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tracing::{debug, info, warn};
use vk_kube::{Client, Kind, Objects};

use super::{
    Error,
    files::{RELOAD_PERIOD, text},
    provider,
};

/// Where every API server publishes the authority of its clients.
const PUBLISHED: (&str, &str, &str) = ("kube-system", "extension-apiserver-authentication", "client-ca-file");
/// How often the published authority is read: it changes about once in years.
const PUBLISHED_PERIOD: Duration = Duration::from_mins(1);
/// The same for one who may not read it, should that change.
const REFUSED_PERIOD: Duration = Duration::from_mins(10);
/// The same while the API server cannot be asked.
const TROUBLE_PERIOD: Duration = Duration::from_secs(5);

/// The authorities in force. Clones share them. None at first: then no client certificate counts.
#[derive(Clone, Default)]
pub struct Authorities(Arc<RwLock<Option<Known>>>);

struct Known {
    pem: Vec<u8>,
    verifier: Arc<dyn ClientCertVerifier>,
}

// === impl Authorities ===

impl Authorities {
    /// Replaces them by those in this text. Tells whether that changed anything.
    pub fn replace(&self, pem: &[u8]) -> Result<bool, String> {
        if self.0.read().as_ref().is_some_and(|known| known.pem == pem) {
            return Ok(false);
        }
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| format!("is not PEM: {error}"))?;
            roots
                .add(certificate)
                .map_err(|error| format!("holds a certificate that cannot be used: {error}"))?;
        }
        if roots.is_empty() {
            return Err("holds no certificate in PEM".to_owned());
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| error.to_string())?;
        *self.0.write() = Some(Known { pem: pem.to_owned(), verifier });
        Ok(true)
    }

    /// Whether these certificates are a client's of one of the authorities at this time; the first is the client's own.
    pub fn vouch_for(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Result<(), String> {
        let Some((own, between)) = chain.split_first() else { return Err("no certificate".to_owned()) };
        let verifier = self.0.read().as_ref().map(|known| Arc::clone(&known.verifier));
        let verifier = verifier.ok_or_else(|| "no authority of clients is known".to_owned())?;
        let since_epoch = Duration::from_secs(u64::try_from(now.as_second()).unwrap_or_default());
        verifier
            .verify_client_cert(own, between, UnixTime::since_unix_epoch(since_epoch))
            .map(drop)
            .map_err(|error| error.to_string())
    }

    /// Those in a file.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let authorities = Self::default();
        authorities
            .replace(&text(path)?)
            .map_err(|reason| Error::Malformed { path: path.to_owned(), reason })?;
        Ok(authorities)
    }

    /// Keeps up with a file, for ever.
    pub async fn follow_file(self, path: PathBuf) {
        let mut seen = Vec::new();
        loop {
            tokio::time::sleep(RELOAD_PERIOD).await;
            let now = text(&path).unwrap_or_default();
            if now == seen {
                continue;
            }
            let file = path.display();
            match self.replace(&now) {
                Ok(true) => info!(%file, "the authorities of clients were exchanged"),
                Ok(false) => {}
                Err(reason) => {
                    warn!(%file, reason, "the authorities of clients cannot be used: the earlier ones stay");
                }
            }
            seen = now;
        }
    }

    /// Keeps up with what the cluster publishes, for ever.
    pub async fn follow_cluster(self, client: Client) {
        let (namespace, name, key) = PUBLISHED;
        let maps = Objects::<ConfigMap>::namespaced(client, namespace);
        let mut told = false;
        loop {
            let wait = match maps.get(name).await {
                Ok(map) => {
                    let pem = map.data.as_ref().and_then(|data| data.get(key)).map_or("", String::as_str);
                    match self.replace(pem.as_bytes()) {
                        Ok(true) => {
                            info!(namespace, name, "the cluster's authorities of clients are in force");
                        }
                        Ok(false) => {}
                        Err(reason) => {
                            warn!(
                                namespace,
                                name, key, reason, "the cluster's authorities of clients cannot be used"
                            );
                        }
                    }
                    PUBLISHED_PERIOD
                }
                Err(error) if matches!(error.kind, Kind::Forbidden | Kind::NotFound) => {
                    if !std::mem::replace(&mut told, true) {
                        warn!(
                            %error,
                            "client certificates do not count: bind the Role extension-apiserver-authentication-reader \
                             of kube-system to our user, or give the authorities with --client-verify-ca"
                        );
                    }
                    REFUSED_PERIOD
                }
                Err(error) => {
                    debug!(%error, "the cluster's authorities of clients cannot be read now");
                    TROUBLE_PERIOD
                }
            };
            tokio::time::sleep(wait).await;
        }
    }
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorities").field("known", &self.0.read().is_some()).finish()
    }
}
