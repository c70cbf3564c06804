//! `virtual-kubelet placement print policy`.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use vk_kube::{ClientOptions, Metrics, ServerVersion};
use vk_placement::policy::{
    FIRST_MINOR, FailurePolicy, WebhookAddress, admission_policy, webhook_configuration,
};
use vk_supervisor::Supervisor;

use super::ConversionFlags;
use crate::{
    Registry,
    cli::{
        Failure, Flags, load,
        output::{print, print_diagnostic},
        webhook::DEFAULT_PORT,
    },
    config::{EffectiveConfig, Layer, Problem},
};

/// Prints what makes the API server convert pods. It asks the API server for its version.
#[derive(Debug, Args)]
pub(super) struct PrintPolicy {
    /// Create pods unconverted if the policy or the webhook fails; otherwise they are refused
    #[arg(long)]
    fail_open: bool,
    /// Namespace of the policy's ConfigMap and of the webhook's Service
    #[arg(long, value_name = "NAME", env = "VK_PLACEMENT_NAMESPACE", default_value = "kube-system")]
    placement_namespace: String,
    #[command(flatten)]
    conversion: ConversionFlags,
    /// Version of the API server, such as 1.33, instead of asking it
    #[arg(long, value_name = "VERSION", value_parser = parse_version)]
    server_version: Option<u32>,
    /// Address of the webhook (https://host:port) instead of a Service
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    webhook_url: Option<String>,
    /// Port of the webhook's Service
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    webhook_port: u16,
    /// CA of the webhook's certificate (PEM)
    #[arg(long, value_name = "PATH")]
    webhook_ca: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
}

// === impl PrintPolicy ===

impl PrintPolicy {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        let minor = if let Some(minor) = self.server_version {
            minor
        } else {
            // Nodes do not matter here, but a configuration has at least one.
            let provider = registry.names().first().copied().unwrap_or_default();
            let (base, _) = Layer::from_value(json!({ "provider": provider }));
            let config = load(&before.overlaid_with(self.flags.clone()), base, None, registry)?;
            server_minor(&config).await?
        };
        let failure_policy = if self.fail_open { FailurePolicy::Ignore } else { FailurePolicy::Fail };
        let text = if minor >= FIRST_MINOR {
            admission_policy(&self.conversion.settings(), &self.placement_namespace, failure_policy)
        } else {
            self.webhook_configuration(failure_policy)?
        };
        Ok(print(&text)?)
    }

    fn webhook_configuration(&self, failure_policy: FailurePolicy) -> Result<String, Failure> {
        let address = match &self.webhook_url {
            Some(url) => WebhookAddress::Url(url.clone()),
            None => WebhookAddress::Service {
                namespace: self.placement_namespace.clone(),
                port: self.webhook_port,
            },
        };
        let ca = if let Some(path) = &self.webhook_ca {
            Some(fs::read_to_string(path).with_context(|| format!("read the CA {}", path.display()))?)
        } else {
            print_diagnostic(
                "warning",
                "the API server trusts the webhook only if one of the CAs of its machine has signed its certificate: set --webhook-ca",
            );
            None
        };
        Ok(webhook_configuration(&address, ca.as_deref(), failure_policy))
    }
}

/// The minor version of the API server.
async fn server_minor(config: &EffectiveConfig) -> Result<u32, Failure> {
    let supervisor = Supervisor::new();
    let options = ClientOptions { kubeconfig: config.kubeconfig.clone(), server: config.api_server.clone() };
    let client = options
        .connect(&supervisor, Metrics::default())
        .await
        .map_err(|error| Failure::Configuration(vec![Problem::new("kubeconfig", error.to_string())]))?;
    let version = ServerVersion::fetch(&client).await;
    supervisor.shut_down(Duration::from_secs(1)).await;
    let version = version.with_context(|| {
        format!("ask {} for its version; set --server-version to print without it", client.server())
    })?;
    Ok(version.minor)
}

/// Parses `1.33`, with or without `v` and a patch level.
fn parse_version(text: &str) -> Result<u32, String> {
    let mut parts = text.trim_start_matches('v').split('.');
    match (parts.next(), parts.next().map(str::parse)) {
        (Some("1"), Some(Ok(minor))) => Ok(minor),
        _ => Err("expected a version of Kubernetes such as 1.33".to_owned()),
    }
}

/// The API server calls webhooks over TLS only.
fn parse_url(text: &str) -> Result<String, String> {
    match text.strip_prefix("https://") {
        Some(host) if !host.is_empty() && !host.contains([' ', '"', '#', '?']) => Ok(text.to_owned()),
        _ => Err("expected https://host:port".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_may_have_a_prefix_and_a_patch_level() {
        assert_eq!(["1.33", "v1.36.4", "1.35.0-rc.1"].map(parse_version), [Ok(33), Ok(36), Ok(35)]);
        for wrong in ["", "1", "2.1", "1.x", "one"] {
            assert!(parse_version(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_webhook_has_an_https_address() {
        assert!(parse_url("https://192.0.2.1:8444").is_ok());
        for wrong in ["", "http://a", "https://", "https://a b"] {
            assert!(parse_url(wrong).is_err(), "{wrong}");
        }
    }
}
