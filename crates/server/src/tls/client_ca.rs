//! The CA of client certificates, from a file or from the cluster.

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
    certificate_files::{RELOAD_PERIOD, read_file},
    legacy_certificate::LegacyCertificate,
    provider,
};

/// The ConfigMap in which every API server publishes the CA of its clients.
const CA_CONFIG_MAP: (&str, &str, &str) =
    ("kube-system", "extension-apiserver-authentication", "client-ca-file");
/// How often the ConfigMap is read: it changes once in years.
const CLUSTER_PERIOD: Duration = Duration::from_mins(1);
/// How often it is read without permission, in case that changes.
const FORBIDDEN_PERIOD: Duration = Duration::from_mins(10);
/// How often it is read while the API server is unavailable.
const UNAVAILABLE_PERIOD: Duration = Duration::from_secs(5);

/// The trusted client CAs. Clones share them. Empty at first: then all client certificates are rejected.
#[derive(Clone, Default)]
pub struct ClientCa(Arc<RwLock<Option<Arc<TrustedRoots>>>>);

struct TrustedRoots {
    pem: Vec<u8>,
    certificates: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

// === impl ClientCa ===

impl ClientCa {
    /// Replaces the CAs by those in a PEM text. Returns whether anything changed.
    pub fn replace(&self, pem: &[u8]) -> Result<bool, String> {
        if self.0.read().as_ref().is_some_and(|trusted| trusted.pem == pem) {
            return Ok(false);
        }
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| format!("is not PEM: {error}"))?;
        for certificate in &certificates {
            roots
                .add(certificate.clone())
                .map_err(|error| format!("holds a certificate that cannot be used: {error}"))?;
        }
        if roots.is_empty() {
            return Err("holds no certificate in PEM".to_owned());
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| error.to_string())?;
        *self.0.write() = Some(Arc::new(TrustedRoots { pem: pem.to_owned(), certificates, verifier }));
        Ok(true)
    }

    /// Verifies a client's certificate chain at this time; the first is the client's own.
    pub fn verify(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Result<(), String> {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return Err("no certificate".to_owned());
        };
        let trusted = self.0.read().clone().ok_or_else(|| "no client CA is trusted yet".to_owned())?;
        if let Some(legacy) = LegacyCertificate::parse(leaf) {
            let algorithms = provider().signature_verification_algorithms;
            return legacy.verify(&trusted.certificates, &algorithms, now);
        }
        let since_epoch = Duration::from_secs(u64::try_from(now.as_second()).unwrap_or_default());
        trusted
            .verifier
            .verify_client_cert(leaf, intermediates, UnixTime::since_unix_epoch(since_epoch))
            .map(drop)
            .map_err(|error| error.to_string())
    }

    /// Reads the CAs from a file.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let client_ca = Self::default();
        client_ca
            .replace(&read_file(path)?)
            .map_err(|reason| Error::Malformed { path: path.to_owned(), reason })?;
        Ok(client_ca)
    }

    /// Reloads the CAs when the file changes, forever.
    pub async fn follow_file(self, path: PathBuf) {
        let mut seen = Vec::new();
        loop {
            tokio::time::sleep(RELOAD_PERIOD).await;
            let now = read_file(&path).unwrap_or_default();
            if now == seen {
                continue;
            }
            let file = path.display();
            match self.replace(&now) {
                Ok(true) => info!(%file, "the client CAs were reloaded"),
                Ok(false) => {}
                Err(reason) => {
                    warn!(%file, reason, "the client CAs changed and cannot be used: keeping the old ones");
                }
            }
            seen = now;
        }
    }

    /// Reloads the CAs when the cluster's ConfigMap changes, forever.
    pub async fn follow_cluster(self, client: Client) {
        let (namespace, name, key) = CA_CONFIG_MAP;
        let maps = Objects::<ConfigMap>::namespaced(client, namespace);
        let mut warned = false;
        loop {
            let wait = match maps.get(name).await {
                Ok(map) => {
                    let pem = map.data.as_ref().and_then(|data| data.get(key)).map_or("", String::as_str);
                    match self.replace(pem.as_bytes()) {
                        Ok(true) => {
                            info!(namespace, name, "using the cluster's client CAs");
                        }
                        Ok(false) => {}
                        Err(reason) => {
                            warn!(namespace, name, key, reason, "the cluster's client CAs cannot be used");
                        }
                    }
                    CLUSTER_PERIOD
                }
                Err(error) if matches!(error.kind, Kind::Forbidden | Kind::NotFound) => {
                    if !std::mem::replace(&mut warned, true) {
                        warn!(
                            %error,
                            "client certificates are rejected: bind the Role extension-apiserver-authentication-reader \
                             of kube-system to our user, or set --client-verify-ca"
                        );
                    }
                    FORBIDDEN_PERIOD
                }
                Err(error) => {
                    debug!(%error, "cannot read the cluster's client CAs");
                    UNAVAILABLE_PERIOD
                }
            };
            tokio::time::sleep(wait).await;
        }
    }
}

impl fmt::Debug for ClientCa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCa").field("trusted", &self.0.read().is_some()).finish()
    }
}
