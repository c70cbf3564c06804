//! A webhook that the API server can call.

use std::{fs, sync::Arc};

use axum::Router;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use vk_server::{
    ConnectionLimits, serve_tls,
    tls::{self, ServingCertificate, certificate_files::CertificateFiles},
};
use vk_supervisor::{Supervisor, task};
use vk_testing::ControlPlane;

/// Serves a router until it is dropped.
pub(crate) struct Server {
    pub(crate) url: String,
    _supervisor: Supervisor,
}

// === impl Server ===

impl Server {
    /// Starts a server with a certificate of the cluster's CA.
    pub(crate) async fn start(cluster: &ControlPlane, router: Router) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let certificate = cluster.serving_certificate("placement", &["127.0.0.1"]).unwrap();
        let files =
            CertificateFiles { cert: folder.path().join("tls.crt"), key: folder.path().join("tls.key") };
        fs::write(&files.cert, &certificate.cert_pem).unwrap();
        fs::write(&files.key, &certificate.key_pem).unwrap();
        Self::serve(ServingCertificate::new(files.read().unwrap()), router).await
    }

    /// Starts a server with this certificate, on a port of its own.
    pub(crate) async fn serve(certificate: ServingCertificate, router: Router) -> Self {
        Self::serve_with(tls::server_config(certificate).unwrap(), router).await
    }

    pub(crate) async fn serve_with(config: Arc<ServerConfig>, router: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let supervisor = Supervisor::new();
        let served = serve_tls(listener, config, router, ConnectionLimits::default(), supervisor.clone());
        supervisor.spawn("webhook", task::Kind::Critical, served);
        Self { url, _supervisor: supervisor }
    }
}
