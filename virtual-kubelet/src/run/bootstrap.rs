//! TLS bootstrapping: a node requests a client certificate with a bootstrap token, then uses and renews that certificate.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use rand::{SeedableRng as _, rngs::StdRng};
use tokio::{sync::watch, time::Instant};
use tracing::{info, warn};
use vk_kube::{
    Client, ClientOptions, ConfigError, Kind, Metrics,
    csr::{self, CertificateSpec, CertificateStore, Renewer},
    kubeconfig::{self, ClientCredential},
};
use vk_supervisor::{Backoff, Clock, Supervisor, task};

use super::connection_check;
use crate::{
    cli::Failure,
    config::{EffectiveConfig, Problem},
};

/// Bootstrap state of a node and where it is stored.
pub(super) struct Bootstrap {
    node: String,
    /// Credentials for the certificate request.
    token: ClientOptions,
    /// The kubeconfig with the node's certificate.
    kubeconfig: PathBuf,
    store: CertificateStore,
    clock: Clock,
    limit: Option<Duration>,
}

// === impl Bootstrap ===

impl Bootstrap {
    /// `None` if bootstrapping is not configured.
    pub(super) fn new(config: &EffectiveConfig, clock: Clock) -> Result<Option<Self>, Failure> {
        let (Some(token), [node]) = (&config.bootstrap_kubeconfig, config.nodes.as_slice()) else {
            return Ok(None);
        };
        // Paths in a kubeconfig must be absolute.
        let folder = std::path::absolute(config.state_dir.join("pki")).map_err(|error| {
            refused("stateDir", format!("{} has no absolute path: {error}", config.state_dir.display()))
        })?;
        let named = |kind: &str| folder.join(format!("{}.{kind}", node.name));
        Ok(Some(Self {
            node: node.name.clone(),
            token: ClientOptions { kubeconfig: Some(token.clone()), server: config.api_server.clone() },
            kubeconfig: config.kubeconfig.clone().unwrap_or_else(|| named("kubeconfig")),
            store: CertificateStore::new(named("client.pem")),
            clock,
            limit: config.startup_timeout,
        }))
    }

    /// Ensures that there is a kubeconfig with a valid certificate and returns its path. Waits for the approval of the
    /// certificate without a time limit.
    pub(super) async fn identity(
        &self,
        supervisor: &Supervisor,
        metrics: &Metrics,
    ) -> Result<&Path, Failure> {
        let path = self.kubeconfig.as_path();
        match kubeconfig::client_credential(path).map_err(|error| unusable("kubeconfig", &error))? {
            ClientCredential::Certificate { pair, .. } if !pair.is_expired(self.clock.now()) => {
                info!(kubeconfig = %path.display(), until = %pair.not_after(), "the client certificate is valid; no bootstrap needed");
                return Ok(path);
            }
            ClientCredential::Certificate { pair, .. } => {
                warn!(kubeconfig = %path.display(), since = %pair.not_after(), "the client certificate has expired; bootstrapping again");
            }
            ClientCredential::Damaged { reason } => {
                warn!(kubeconfig = %path.display(), reason, "the client certificate is not usable; bootstrapping again");
            }
            ClientCredential::Missing => {}
            // A kubelet would overwrite it.
            ClientCredential::Other => {
                let message = format!(
                    "{} exists with credentials other than a certificate: remove bootstrapKubeconfig to use it, or name a file \
                     that may be overwritten",
                    path.display()
                );
                return Err(refused("kubeconfig", message));
            }
        }
        let wanted = CertificateSpec::client(&self.node);
        let stored = self.store.load().ok().flatten();
        if stored.is_none_or(|pair| pair.is_expired(self.clock.now()) || pair.mismatch(&wanted).is_some()) {
            self.ask(&wanted, supervisor, metrics).await?;
        }
        let bootstrap = self.token.kubeconfig.as_deref().unwrap_or_else(|| Path::new(""));
        kubeconfig::write(path, bootstrap, self.store.path())
            .map_err(|error| unusable("bootstrapKubeconfig", &error))?;
        info!(kubeconfig = %path.display(), certificate = %self.store.path().display(), "the node has its own credentials");
        Ok(path)
    }

    async fn ask(
        &self,
        wanted: &CertificateSpec,
        supervisor: &Supervisor,
        metrics: &Metrics,
    ) -> Result<(), Failure> {
        // A child supervisor, because the token is not needed afterwards.
        let asking = supervisor.child();
        let asked = async {
            let client = self
                .token
                .connect(&asking, metrics.clone())
                .await
                .map_err(|error| unusable("bootstrapKubeconfig", &error))?;
            let hint = "the token in the bootstrap kubeconfig is unknown or has expired; create a new one";
            let identity =
                connection_check::wait_for_api_server(&client, self.limit, hint, &self.clock).await?;
            info!(
                server = client.server(),
                user = identity.user,
                node = self.node,
                "asking for a client certificate"
            );
            self.obtain(&client, wanted).await
        };
        let asked = asked.await;
        asking.stop();
        asked
    }

    /// Requests the certificate until there is a decision. Waiting for approval is not an error; a missing permission is one,
    /// after the time limit.
    async fn obtain(&self, client: &Client, wanted: &CertificateSpec) -> Result<(), Failure> {
        let mut deadline = self.limit.map(|limit| Instant::now() + limit);
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        let mut rng = StdRng::from_rng(&mut rand::rng());
        loop {
            let mut sent = false;
            let tell = |name: &str| {
                sent = true;
                info!(request = name, "waiting for the client certificate");
            };
            let obtained = csr::obtain(client, wanted, &self.store, &self.clock, tell).await;
            let Err(error) = obtained else { return Ok(()) };
            if sent {
                deadline = self.limit.map(|limit| Instant::now() + limit);
            }
            let lasting = match (&error, error.api()) {
                (_, Some(Kind::Unauthorized)) => {
                    Some("the bootstrap token is unknown or has expired; create a new one")
                }
                (csr::Error::Denied { .. }, _) => Some("restart to request again"),
                (csr::Error::Failed { .. } | csr::Error::Unusable { .. }, _) => {
                    Some("see the controller manager's log")
                }
                (csr::Error::File { .. }, _) => Some("see stateDir"),
                _ => None,
            };
            if let Some(hint) = lasting {
                return Err(anyhow::anyhow!("bootstrap node {}: {error} ({hint})", self.node).into());
            }
            let asked = match &error {
                csr::Error::Api { error, .. } => error.retry_after,
                _ => None,
            };
            let wait = backoff.next(asked, &mut rng);
            if deadline.is_some_and(|deadline| Instant::now() + wait > deadline) {
                let hint = match error.api() {
                    Some(Kind::Forbidden) => {
                        "bind the token's group to the ClusterRole system:node-bootstrapper"
                    }
                    _ => "increase --startup-timeout",
                };
                return Err(anyhow::anyhow!("bootstrap node {}: {error} ({hint})", self.node).into());
            }
            warn!(%error, "no client certificate yet; retrying");
            tokio::time::sleep(wait).await;
        }
    }

    /// Renews the certificate while the process runs, if we stored it. The client reads the new one from the file.
    pub(super) async fn keep(self, client: Client, supervisor: &Supervisor, metrics: Metrics) {
        let ours = match kubeconfig::client_credential(&self.kubeconfig) {
            Ok(ClientCredential::Certificate { file, .. }) => {
                file.is_some_and(|file| file == self.store.path())
            }
            _ => false,
        };
        if !ours {
            info!(kubeconfig = %self.kubeconfig.display(), "the client certificate is not ours to renew");
            return;
        }
        let (sender, wanted) = watch::channel(CertificateSpec::client(&self.node));
        let mut renewer = Renewer::new(client, wanted, self.store, self.clock);
        // kubeadm removes the bootstrap kubeconfig. Without it an expired certificate cannot be replaced.
        match self.token.connect(supervisor, metrics).await {
            Ok(fallback) => renewer = renewer.with_fallback(fallback),
            Err(error) => info!(%error, "the bootstrap kubeconfig is not there for later"),
        }
        let guard = supervisor.clone();
        supervisor.spawn("client certificate", task::Kind::Work, async move {
            tokio::select! {
                () = renewer.run() => {}
                () = guard.stopping() => {}
            }
            drop(sender);
        });
    }
}

fn unusable(key: &str, error: &ConfigError) -> Failure {
    refused(key, error.to_string())
}

fn refused(key: &str, message: String) -> Failure {
    Failure::Configuration(vec![Problem::new(key, message)])
}
