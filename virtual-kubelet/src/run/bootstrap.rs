//! A node that gets its identity from the cluster: by a bootstrap token it asks for a client certificate, and from then on
//! it lives by that and renews it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use rand::{SeedableRng as _, rngs::StdRng};
use tokio::{sync::watch, time::Instant};
use tracing::{info, warn};
use vk_kube::{
    Client, ConfigError, Kind, Metrics, Source,
    csr::{self, CertificateSpec, Renewer, Store},
    kubeconfig::{self, ClientCredential},
};
use vk_supervisor::{Backoff, Clock, Supervisor, task};

use super::contact;
use crate::{
    cli::Failure,
    config::{EffectiveConfig, Problem},
};

/// What a node that bootstraps keeps, and where.
pub(super) struct Bootstrap {
    node: String,
    /// By which it asks while it has no certificate.
    token: Source,
    /// By which it lives.
    kubeconfig: PathBuf,
    store: Store,
    clock: Clock,
    limit: Option<Duration>,
}

// === impl Bootstrap ===

impl Bootstrap {
    /// If the configuration wants it.
    pub(super) fn new(config: &EffectiveConfig, clock: Clock) -> Result<Option<Self>, Failure> {
        let (Some(token), [node]) = (&config.bootstrap_kubeconfig, config.nodes.as_slice()) else {
            return Ok(None);
        };
        // What stands in the kubeconfig is read from another folder.
        let folder = std::path::absolute(config.state_dir.join("pki")).map_err(|error| {
            refused("stateDir", format!("{} has no absolute path: {error}", config.state_dir.display()))
        })?;
        let named = |kind: &str| folder.join(format!("{}.{kind}", node.name));
        Ok(Some(Self {
            node: node.name.clone(),
            token: Source { kubeconfig: Some(token.clone()), server: config.api_server.clone() },
            kubeconfig: config.kubeconfig.clone().unwrap_or_else(|| named("kubeconfig")),
            store: Store::new(named("client.pem")),
            clock,
            limit: config.startup_timeout,
        }))
    }

    /// Sees to it that there is a kubeconfig with a certificate that is valid, and answers where it is. Waits for as long as
    /// it takes until somebody has approved the certificate.
    pub(super) async fn identity(
        &self,
        supervisor: &Supervisor,
        metrics: &Metrics,
    ) -> Result<&Path, Failure> {
        let path = self.kubeconfig.as_path();
        match kubeconfig::client_credential(path).map_err(|error| unusable("kubeconfig", &error))? {
            ClientCredential::Certificate { pair, .. } if !pair.expired(self.clock.now()) => {
                info!(kubeconfig = %path.display(), until = %pair.not_after(), "there is a valid client certificate: no bootstrap");
                return Ok(path);
            }
            ClientCredential::Certificate { pair, .. } => {
                warn!(kubeconfig = %path.display(), since = %pair.not_after(), "the client certificate has expired: bootstrapping again");
            }
            ClientCredential::Damaged { reason } => {
                warn!(kubeconfig = %path.display(), reason, "the client certificate cannot be used: bootstrapping again");
            }
            ClientCredential::Missing => {}
            // A kubelet would write over it.
            ClientCredential::Other => {
                let message = format!(
                    "{} is there and holds other credentials than a certificate: leave bootstrapKubeconfig out to use it, or \
                     name a file that may be written",
                    path.display()
                );
                return Err(refused("kubeconfig", message));
            }
        }
        let wanted = CertificateSpec::client(&self.node);
        let stored = self.store.load().ok().flatten();
        if stored.is_none_or(|pair| pair.expired(self.clock.now()) || pair.lacks(&wanted).is_some()) {
            self.ask(&wanted, supervisor, metrics).await?;
        }
        let bootstrap = self.token.kubeconfig.as_deref().unwrap_or_else(|| Path::new(""));
        kubeconfig::write(path, bootstrap, self.store.path())
            .map_err(|error| unusable("bootstrapKubeconfig", &error))?;
        info!(kubeconfig = %path.display(), certificate = %self.store.path().display(), "the node has an identity of its own");
        Ok(path)
    }

    async fn ask(
        &self,
        wanted: &CertificateSpec,
        supervisor: &Supervisor,
        metrics: &Metrics,
    ) -> Result<(), Failure> {
        // Its tasks end with it: nobody needs the token any more afterwards.
        let asking = supervisor.child();
        let asked = async {
            let client = self
                .token
                .connect(&asking, metrics.clone())
                .await
                .map_err(|error| unusable("bootstrapKubeconfig", &error))?;
            let hint = "the token in the bootstrap kubeconfig is unknown or has expired: write another";
            let identity = contact::first(&client, self.limit, hint, &self.clock).await?;
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

    /// Asks until there is an answer. That nobody decides is no failure; that nobody may ask is one, after some time.
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
                    Some("the bootstrap token is unknown or has expired: write another")
                }
                (csr::Error::Denied { .. }, _) => Some("start again to ask again"),
                (csr::Error::Failed { .. } | csr::Error::Unfit { .. }, _) => {
                    Some("see the controller manager's log")
                }
                (csr::Error::File { .. }, _) => Some("see stateDir"),
                _ => None,
            };
            if let Some(hint) = lasting {
                return Err(anyhow::anyhow!("node {} gets no identity: {error} ({hint})", self.node).into());
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
                    _ => "give it more time with --startup-timeout",
                };
                return Err(anyhow::anyhow!("node {} gets no identity: {error} ({hint})", self.node).into());
            }
            warn!(%error, "no client certificate: trying again");
            tokio::time::sleep(wait).await;
        }
    }

    /// Renews the certificate for as long as the process runs, if it is the one that we store. The client sees the new one in
    /// the file.
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
        // It may be gone by now, as kubeadm removes it. Then there is no way back from a certificate that has expired.
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
