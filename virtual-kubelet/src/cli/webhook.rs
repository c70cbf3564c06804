//! `virtual-kubelet webhook`.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
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

use super::{
    Failure, Flags,
    connection::load_without_nodes,
    output::{obsolete_flags, print_diagnostic},
    placement::{ConversionFlags, PlacementFlags, TlsFlags, run_alone},
};
use crate::{
    Registry,
    config::{Layer, Listen, PlacementPart, Problem, ServerAddr, WEBHOOK_PORT},
    run::Stop,
    telemetry,
};

/// How long open requests may take when the process stops.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// Serves the webhook that converts pods, for Kubernetes before 1.36. `placement print policy` prints its configuration.
///
/// With a certificate in files it makes no call to the API server. Otherwise it is `placement --webhook-listen` alone, which issues the
/// certificate, and needs the permissions of `placement print rbac --webhook`.
#[derive(Debug, Args)]
pub(super) struct Webhook {
    /// Address to listen on
    #[arg(long, value_name = "IP", default_value_t = Ipv4Addr::UNSPECIFIED.into())]
    address: IpAddr,
    /// Port to listen on
    #[arg(long, value_name = "PORT", env = "VK_PLACEMENT_WEBHOOK_PORT", default_value_t = WEBHOOK_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    #[command(flatten)]
    tls: TlsFlags,
    /// Labels that mean nodes of the upper cluster, in addition to --upper-keys, separated by commas
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    ignore_selector_keys: Vec<String>,
    #[command(flatten)]
    conversion: ConversionFlags,
    /// Kubeconfig of the cluster, for the certificate that placement issues
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the Leases and the certificates of placement [default: kube-system]
    #[arg(long, value_name = "NAME", env = "VK_PLACEMENT_NAMESPACE")]
    placement_namespace: Option<String>,
    #[command(flatten)]
    obsolete: ObsoleteFlags,
}

/// Flags of tensile-kube's webhook that have no effect.
#[derive(Debug, Args)]
struct ObsoleteFlags {
    #[arg(long = "CA", hide = true)]
    ca: Option<String>,
    #[arg(long, hide = true)]
    master: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    incluster: Option<String>,
}

// === impl Webhook ===

impl Webhook {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        let config = load_without_nodes(&before, Some(self.layer(None)), registry)?;
        let mut conversion = config.conversion.clone();
        conversion.upper_keys.extend(self.ignore_selector_keys.iter().cloned());
        let serving = config.placement.as_ref().and_then(|placement| placement.serving.as_ref());
        let files = serving.and_then(|serving| serving.certificate.clone());
        for warning in self.obsolete.warnings(self.kubeconfig.as_deref().filter(|_| files.is_some())) {
            print_diagnostic("warning", &warning);
        }
        if let Some(files) = files {
            let _telemetry = telemetry::init(&config.log).context("start logging")?;
            serve(self.listen(), files, conversion).await
        } else {
            let layer = self.layer(Some(&conversion.upper_keys));
            run_alone(&before, layer, Some(PlacementPart::Webhook), registry).await
        }
    }

    fn listen(&self) -> Listen {
        Listen { address: Some(self.address), port: self.port }
    }

    /// The flags as a layer over the configuration file.
    fn layer(&self, upper_keys: Option<&[String]>) -> Layer {
        let placement = PlacementFlags {
            webhook_listen: Some(ServerAddr(self.listen())),
            tls: self.tls.clone(),
            placement_namespace: self.placement_namespace.clone(),
            ..PlacementFlags::default()
        };
        let layer = placement.layer().overlaid_with(self.conversion.layer());
        let kubeconfig = self.kubeconfig.as_ref().map(|path| json!({ "kubeconfig": path }));
        let upper_keys = upper_keys.map(|keys| json!({ "placement": { "upperKeys": keys } }));
        let more = [kubeconfig, upper_keys].into_iter().flatten();
        more.fold(layer, |layer, value| layer.overlaid_with(Layer::from_value(value).0))
    }
}

/// Serves the webhook with a certificate in files, without an API server.
async fn serve(listen: Listen, files: CertificateFiles, conversion: Settings) -> Result<(), Failure> {
    let certificate = files.read().map_err(|error| {
        Failure::Configuration(vec![Problem::new("placement.tls.certFile", error.to_string())])
    })?;
    let serving = ServingCertificate::new(certificate);
    let tls = tls::server_config(serving.clone()).context("configure TLS")?;
    let address =
        SocketAddr::new(listen.address.unwrap_or_else(|| Ipv4Addr::UNSPECIFIED.into()), listen.port);
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let mut stop = Stop::listen()?;

    let supervisor = Supervisor::new();
    let guard = supervisor.clone();
    supervisor.spawn("certificate", task::Kind::Work, async move {
        tokio::select! {
            () = files.follow(serving) => {}
            () = guard.stopping() => {}
        }
    });
    let router = webhook::router(conversion);
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

// === impl ObsoleteFlags ===

impl ObsoleteFlags {
    /// `kubeconfig` is one that is not needed.
    fn warnings(&self, kubeconfig: Option<&Path>) -> Vec<String> {
        const WITH_FILES: &str = "with a certificate in files, the webhook makes no call to the API server";
        const OTHERWISE: &str =
            "the kubeconfig or the ServiceAccount of the pod has the address of the API server";
        let kubeconfig = kubeconfig.map(|path| path.display().to_string());
        let flags = [
            ("CA", &self.ca, "the webhook reveals nothing, and does not ask who calls"),
            ("kubeconfig", &kubeconfig, WITH_FILES),
            ("master", &self.master, OTHERWISE),
            ("incluster", &self.incluster, OTHERWISE),
        ];
        obsolete_flags(flags)
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
        assert_eq!(webhook.listen().to_string(), "0.0.0.0:443");
        let warnings = webhook.obsolete.warnings(webhook.kubeconfig.as_deref());
        assert_eq!(warnings.len(), 4);
        assert!(warnings.iter().all(|warning| warning.contains(" does nothing: ")), "{warnings:?}");
        assert_eq!(parse(&["--kubeconfig=/config"]).obsolete.warnings(None), [""; 0]);
    }

    #[test]
    fn flags_are_settings_of_placement() {
        let webhook =
            parse(&["--upper-keys=type,pool", "--gates=trial", "--tolerate-lost", "--kubeconfig=/config"]);
        let expected = json!({
            "kubeconfig": "/config",
            "placement": {
                "webhook": {"listen": "0.0.0.0:8444"},
                "upperKeys": ["type", "pool"], "gates": "trial", "tolerateLost": true,
            },
        });
        assert_eq!(webhook.layer(None), Layer::from_value(expected).0);
    }
}
