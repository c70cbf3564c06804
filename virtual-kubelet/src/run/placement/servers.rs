//! The extender and the webhook, which every process serves, whether it leads or not.

use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use rustls::sign::CertifiedKey;
use tokio::{net::TcpSocket, sync::watch, time::Instant};
use tracing::{info, warn};
use vk_kube::Client;
use vk_placement::{
    ask::FitClient,
    certificate::{self, Maintainer},
    extender::{self, Extender},
    metrics::Metrics,
    names::SERVING_LEASE,
    webhook,
};
use vk_server::{
    ConnectionLimits, serve_tls,
    tls::{self, ServingCertificate, certificate_files::CertificateFiles, client_ca::ClientCa},
};
use vk_supervisor::{Clock, Supervisor, task};

use super::{Leadership, settings_check::SettingsCheck, spawn_until_stopped};
use crate::{
    cli::Failure,
    config::{Listen, Placement, Problem, Serving},
    run::listener::{BACKLOG, reserve, shown},
};

/// Ports and files that must be available before the process changes anything in the cluster.
pub(in crate::run) struct ServingResources {
    extender: Option<TcpSocket>,
    webhook: Option<TcpSocket>,
    /// The certificate in files, and the files.
    certificate: Option<(Arc<CertifiedKey>, CertificateFiles)>,
    /// The CAs of the extender's clients: of the file, or none yet.
    client_ca: ClientCa,
}

/// What is served on a port.
struct Server {
    name: &'static str,
    socket: TcpSocket,
    router: Router,
    /// Only clients with a certificate of these CAs are answered.
    client_ca: Option<ClientCa>,
}

// === impl ServingResources ===

impl ServingResources {
    /// Reserves the ports, retrying until the deadline, and reads the files, so that errors are reported at startup. Connections are refused until
    /// there is a certificate: a scheduler waits for a server that accepts and does not answer.
    pub(in crate::run) async fn open(placement: &Placement, deadline: Instant) -> Result<Self, Failure> {
        let Some(serving) = &placement.serving else {
            return Ok(Self {
                extender: None,
                webhook: None,
                certificate: None,
                client_ca: ClientCa::default(),
            });
        };
        let certificate = match &serving.certificate {
            Some(files) => {
                let read = files.read().map_err(|error| {
                    Failure::Configuration(vec![Problem::new("placement.tls.certFile", error.to_string())])
                });
                Some((read?, files.clone()))
            }
            None => None,
        };
        let client_ca = match &serving.client_ca {
            Some(path) => ClientCa::from_file(path).map_err(|error| {
                Failure::Configuration(vec![Problem::new("placement.tls.clientCaFile", error.to_string())])
            })?,
            None => ClientCa::default(),
        };
        let open = async |name: &str, address: Option<Listen>| match address {
            Some(address) => {
                let context = || format!("cannot listen on {} for the {name}", shown(address));
                reserve(address, deadline).await.with_context(context).map(Some)
            }
            None => Ok(None),
        };
        Ok(Self {
            extender: open("extender", serving.extender).await?,
            webhook: open("webhook", serving.webhook.as_ref().map(|webhook| webhook.listen)).await?,
            certificate,
            client_ca,
        })
    }

    /// Serves what is configured until the supervisor stops.
    pub(super) fn serve(
        self,
        placement: &Placement,
        client: &Client,
        fit_client: FitClient,
        metrics: Metrics,
        supervisor: &Supervisor,
    ) {
        let Some(serving) = &placement.serving else { return };
        let clock = Clock::system();
        let mut servers = Vec::new();
        if let Some(socket) = self.extender {
            let (client, namespace) = (client.clone(), placement.namespace.clone());
            let preference = placement.preference.clone();
            let extender = Extender::start(
                client.clone(),
                fit_client,
                preference,
                &namespace,
                metrics,
                clock.clone(),
                supervisor,
            );
            let client_ca = self.client_ca;
            match &serving.client_ca {
                Some(path) => {
                    let following = client_ca.clone().follow_file(path.clone());
                    spawn_until_stopped("extender client CA", following, supervisor);
                }
                None => follow_client_cas(&client_ca, client.clone(), namespace.clone(), supervisor),
            }
            let recording = extender.clone().record_calls(client, namespace, clock.clone());
            spawn_until_stopped("extender calls", recording, supervisor);
            let router = extender::router(extender);
            servers.push(Server { name: "extender", socket, router, client_ca: Some(client_ca) });
        }
        if let Some((socket, webhook)) = self.webhook.zip(serving.webhook.as_ref()) {
            let router = webhook::router(webhook.conversion.clone());
            servers.push(Server { name: "webhook", socket, router, client_ca: None });
        }
        let leadership = elect(placement, client, clock.clone(), supervisor);
        let certificate = if let Some((certificate, files)) = self.certificate {
            let serving = ServingCertificate::new(certificate);
            spawn_until_stopped("placement certificate", files.follow(serving.clone()), supervisor);
            watch::Sender::new(Some(serving)).subscribe()
        } else {
            maintain(placement, serving, client, clock, leadership, supervisor);
            follow(client.clone(), placement.namespace.clone(), supervisor)
        };
        for server in servers {
            let serving = server.serve(certificate.clone(), supervisor.clone());
            supervisor.spawn("placement server", task::Kind::Critical, serving);
        }
    }
}

/// Elects the process that issues certificates, and compares the settings with its own.
fn elect(placement: &Placement, client: &Client, clock: Clock, supervisor: &Supervisor) -> Leadership {
    let leadership = Leadership::elect(placement, SERVING_LEASE, client, clock, supervisor);
    let check = SettingsCheck {
        client: client.clone(),
        namespace: placement.namespace.clone(),
        lease: SERVING_LEASE,
        own: placement.serving_summary().unwrap_or_default(),
        gates: None,
        leading: leadership.leading.clone(),
    };
    spawn_until_stopped("serving settings", check.run(), supervisor);
    leadership
}

/// Issues and renews the certificate while this process leads.
fn maintain(
    placement: &Placement,
    serving: &Serving,
    client: &Client,
    clock: Clock,
    leadership: Leadership,
    supervisor: &Supervisor,
) {
    let maintainer = Maintainer {
        client: client.fenced(leadership.fence),
        namespace: placement.namespace.clone(),
        names: serving.names(&placement.namespace),
        webhook: serving.webhook.is_some(),
        clock,
    };
    let running = maintainer.run_while_leading(leadership.leading, supervisor.clone());
    supervisor.spawn("placement certificates", task::Kind::Critical, running);
}

/// Follows the certificate in the Secret. `None` until there is one.
fn follow(
    client: Client,
    namespace: String,
    supervisor: &Supervisor,
) -> watch::Receiver<Option<ServingCertificate>> {
    let (leaf, mut leaves) = watch::channel(None);
    spawn_until_stopped("placement certificate", certificate::follow(client, namespace, leaf), supervisor);
    let (sender, receiver) = watch::channel(None::<ServingCertificate>);
    let replacing = async move {
        while leaves.changed().await.is_ok() {
            let Some(leaf) = leaves.borrow_and_update().clone() else { continue };
            let serving = sender.borrow().clone();
            match serving {
                Some(serving) => serving.replace(leaf),
                None => drop(sender.send_replace(Some(ServingCertificate::new(leaf)))),
            }
        }
    };
    spawn_until_stopped("placement certificate", replacing, supervisor);
    receiver
}

/// Accepts clients of the CAs in the Secret. Nobody until there are some.
fn follow_client_cas(client_ca: &ClientCa, client: Client, namespace: String, supervisor: &Supervisor) {
    let (sender, mut bundles) = watch::channel(None::<String>);
    let following = certificate::follow_cas(client, namespace, sender);
    spawn_until_stopped("extender client CA", following, supervisor);
    let client_ca = client_ca.clone();
    let replacing = async move {
        while bundles.changed().await.is_ok() {
            let Some(bundle) = bundles.borrow_and_update().clone() else { continue };
            if let Err(error) = client_ca.replace(bundle.as_bytes()) {
                warn!(%error, "cannot use the CAs of placement for clients of the extender");
            }
        }
    };
    spawn_until_stopped("extender client CA", replacing, supervisor);
}

// === impl Server ===

impl Server {
    /// Serves from when there is a certificate until the supervisor stops.
    async fn serve(
        self,
        mut certificate: watch::Receiver<Option<ServingCertificate>>,
        supervisor: Supervisor,
    ) -> anyhow::Result<()> {
        let serving = tokio::select! {
            certificate = certificate.wait_for(Option::is_some) => certificate.ok().and_then(|it| it.clone()),
            () = supervisor.stopping() => None,
        };
        let Some(serving) = serving else { return Ok(()) };
        let name = self.name;
        let tls = match self.client_ca {
            Some(client_ca) => tls::server_config_for(serving, client_ca, &extender::CLIENT_NAMES),
            None => tls::server_config(serving),
        };
        let tls = tls.context("configure TLS")?;
        let listener = self.socket.listen(BACKLOG).with_context(|| format!("listen for the {name}"))?;
        info!(address = %listener.local_addr()?, "serving the {name}");
        Ok(serve_tls(listener, tls, self.router, ConnectionLimits::default(), supervisor).await?)
    }
}
