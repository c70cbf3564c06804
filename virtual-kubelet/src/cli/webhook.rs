//! `virtual-kubelet webhook`.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use tokio::net::TcpListener;
use tracing::info;
use vk_placement::{convert::Settings, webhook};
use vk_server::{
    ConnectionLimits, serve_tls,
    tls::{self, ServingCertificate, certificate_files::CertificateFiles},
};
use vk_supervisor::{Supervisor, task};

use super::{Failure, Flags, load, output::print_diagnostic, placement::ConversionFlags};
use crate::{
    Registry,
    config::{Layer, Problem},
    run::Stop,
    telemetry,
};

/// The port, unless another is given.
pub(super) const DEFAULT_PORT: u16 = 8444;
/// How long open requests may take when the process stops.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// Serves the webhook that converts pods, for Kubernetes before 1.36. `placement print policy` prints its configuration.
#[derive(Debug, Args)]
pub(super) struct Webhook {
    /// Address to listen on
    #[arg(long, value_name = "IP", default_value_t = Ipv4Addr::UNSPECIFIED.into())]
    address: IpAddr,
    /// Port to listen on
    #[arg(long, value_name = "PORT", env = "VK_PLACEMENT_WEBHOOK_PORT", default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Certificate (PEM)
    #[arg(long, value_name = "PATH")]
    tlscert: Option<PathBuf>,
    /// Key of the certificate (PEM)
    #[arg(long, value_name = "PATH")]
    tlskey: Option<PathBuf>,
    /// Labels that mean nodes of the upper cluster, in addition to --upper-keys, separated by commas
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    ignore_selector_keys: Vec<String>,
    #[command(flatten)]
    conversion: ConversionFlags,
    #[command(flatten)]
    obsolete: ObsoleteFlags,
}

/// Flags of tensile-kube's webhook that have no effect.
#[derive(Debug, Args)]
struct ObsoleteFlags {
    #[arg(long = "CA", hide = true)]
    ca: Option<String>,
    #[arg(long, hide = true)]
    kubeconfig: Option<String>,
    #[arg(long, hide = true)]
    master: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    incluster: Option<String>,
}

// === impl Webhook ===

impl Webhook {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        // Nodes do not matter here, but a configuration has at least one.
        let provider = registry.names().first().copied().unwrap_or_default();
        let (base, _) = Layer::from_value(json!({ "provider": provider }));
        let config = load(&before, base, None, registry)?;
        let _telemetry = telemetry::init(&config.log).context("start logging")?;
        for warning in self.obsolete.warnings() {
            print_diagnostic("warning", &warning);
        }
        let files = self.certificate_files()?;
        let certificate = files.read().map_err(|error| problem("tlscert", error.to_string()))?;
        let serving = ServingCertificate::new(certificate);
        let tls = tls::server_config(serving.clone()).context("configure TLS")?;
        let address = SocketAddr::new(self.address, self.port);
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        let mut stop = Stop::listen()?;

        let supervisor = Supervisor::new();
        let guard = supervisor.clone();
        supervisor.spawn("certificate", task::Kind::Work, async move {
            tokio::select! {
                () = files.follow(serving) => {}
                () = guard.stopping() => {}
            }
        });
        let router = webhook::router(self.settings());
        let served = serve_tls(listener, tls, router, ConnectionLimits::default(), supervisor.clone());
        supervisor.spawn("webhook", task::Kind::Critical, served);
        info!(%address, "serving the webhook that converts pods");
        tokio::select! {
            signal = stop.signal() => info!(signal, "stopping"),
            () = supervisor.stopping() => {}
        }
        supervisor.shut_down(SHUTDOWN).await;
        Ok(())
    }

    fn certificate_files(&self) -> Result<CertificateFiles, Failure> {
        match (&self.tlscert, &self.tlskey) {
            (Some(cert), Some(key)) => Ok(CertificateFiles { cert: cert.clone(), key: key.clone() }),
            (None, _) => Err(problem("tlscert", NO_CERTIFICATE.to_owned())),
            (_, None) => Err(problem("tlskey", NO_CERTIFICATE.to_owned())),
        }
    }

    fn settings(&self) -> Settings {
        let mut settings = self.conversion.settings();
        settings.upper_keys.extend(self.ignore_selector_keys.iter().cloned());
        settings
    }
}

/// API servers call webhooks over TLS only.
const NO_CERTIFICATE: &str =
    "is not set: the API server calls webhooks over TLS only; set --tlscert and --tlskey to files in PEM";

fn problem(field: &str, message: String) -> Failure {
    Failure::Configuration(vec![Problem::new(field, message)])
}

// === impl ObsoleteFlags ===

impl ObsoleteFlags {
    fn warnings(&self) -> Vec<String> {
        const NO_CLIENT: &str = "the webhook makes no call to the API server";
        let flags = [
            ("CA", &self.ca, "the webhook reveals nothing, and does not ask who calls"),
            ("kubeconfig", &self.kubeconfig, NO_CLIENT),
            ("master", &self.master, NO_CLIENT),
            ("incluster", &self.incluster, NO_CLIENT),
        ];
        let given = flags.into_iter().filter(|(_, value, _)| value.is_some());
        given.map(|(name, _, why)| format!("--{name} does nothing: {why}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        webhook: Webhook,
    }

    fn parse(arguments: &[&str]) -> Webhook {
        Command::try_parse_from([&["webhook"], arguments].concat()).unwrap().webhook
    }

    #[test]
    fn flags_of_tensile_kube_are_accepted() {
        let webhook = parse(&[
            "--port=443",
            "--tlscert=/c",
            "--tlskey=/k",
            "--ignore-selector-keys=clusterID,pool",
            "--address=0.0.0.0",
            "--CA=/ca",
            "--kubeconfig=/config",
            "--master=https://m",
            "--incluster",
        ]);
        assert_eq!(webhook.port, 443);
        let settings = webhook.settings();
        assert!(["type", "clusterID", "pool"].iter().all(|key| settings.is_upper(key)));
        assert!(!settings.is_upper("disk"));
        let warnings = webhook.obsolete.warnings();
        assert_eq!(warnings.len(), 4);
        assert!(warnings.iter().all(|warning| warning.contains(" does nothing: ")), "{warnings:?}");
        assert_eq!(parse(&[]).obsolete.warnings(), [""; 0]);
    }

    #[test]
    fn a_certificate_is_needed() {
        for arguments in [&["--tlskey=/k"][..], &["--tlscert=/c"]] {
            let Err(Failure::Configuration(problems)) = parse(arguments).certificate_files() else {
                panic!("{arguments:?} is enough")
            };
            assert!(problems[0].to_string().contains("over TLS only"), "{problems:?}");
        }
        assert!(parse(&["--tlskey=/k", "--tlscert=/c"]).certificate_files().is_ok());
    }
}
