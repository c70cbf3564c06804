//! `virtual-kubelet placement print policy`.

use std::{fs, path::PathBuf};

use anyhow::Context as _;
use clap::Args;
use vk_kube::{Client, ServerVersion};
use vk_placement::{
    certificate::{CaBundleError, ca_bundle},
    policy::{
        FIRST_MINOR, FailurePolicy, WebhookAddress, admission_policy, untested_version, webhook_configuration,
    },
};

use super::ConversionFlags;
use crate::{
    Registry,
    cli::{
        Failure, Flags,
        connection::{load_without_nodes, with_client},
        output::{print, print_diagnostic},
    },
    config::WEBHOOK_PORT,
};

const NO_CA: &str = "the API server trusts the webhook only if one of the CAs of its machine has signed its certificate: set --webhook-ca, or start \
     `virtual-kubelet webhook` without --tlscert, which writes its own CA with the permission of `placement print rbac --webhook`";

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
    #[arg(long, value_name = "PORT", default_value_t = WEBHOOK_PORT)]
    webhook_port: u16,
    /// CA of the webhook's certificate (PEM) instead of the CA in the Secret of placement
    #[arg(long, value_name = "PATH")]
    webhook_ca: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
}

// === impl PrintPolicy ===

impl PrintPolicy {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        let flags = before.overlaid_with(self.flags.clone());
        let config = load_without_nodes(&flags, Some(self.conversion.layer()), registry)?;
        let (settings, namespace) = (&config.conversion, &self.placement_namespace);
        let failure_policy = if self.fail_open { FailurePolicy::Ignore } else { FailurePolicy::Fail };
        let (minor, own_ca) = match self.server_version {
            Some(minor) => (minor, None),
            None => with_client(&config, async |client| self.ask(client).await).await?,
        };
        if let Some(warning) = untested_version(minor) {
            print_diagnostic("warning", &warning);
        }
        let text = if minor >= FIRST_MINOR {
            admission_policy(settings, namespace, failure_policy)
        } else {
            let ca = self.given_ca()?.or(own_ca);
            if ca.is_none() {
                print_diagnostic("warning", NO_CA);
            }
            webhook_configuration(&self.address(), ca.as_deref(), settings, namespace, failure_policy)
        };
        Ok(print(&text)?)
    }

    /// The minor version of the API server, and the CA of the certificate that placement issues, if it is needed and there is one.
    async fn ask(&self, client: &Client) -> Result<(u32, Option<String>), Failure> {
        let version = ServerVersion::fetch(client).await.with_context(|| {
            format!("ask {} for its version; set --server-version to print without it", client.server())
        })?;
        if version.minor >= FIRST_MINOR || self.webhook_ca.is_some() {
            return Ok((version.minor, None));
        }
        let ca = match ca_bundle(client, &self.placement_namespace).await {
            Ok(ca) => Some(ca),
            Err(CaBundleError::Missing { .. }) => None,
            Err(error) => {
                print_diagnostic("warning", &error.to_string());
                None
            }
        };
        Ok((version.minor, ca))
    }

    fn given_ca(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.webhook_ca else { return Ok(None) };
        Ok(Some(fs::read_to_string(path).with_context(|| format!("read the CA {}", path.display()))?))
    }

    fn address(&self) -> WebhookAddress {
        match &self.webhook_url {
            Some(url) => WebhookAddress::Url(url.clone()),
            None => WebhookAddress::Service {
                namespace: self.placement_namespace.clone(),
                port: self.webhook_port,
            },
        }
    }
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
