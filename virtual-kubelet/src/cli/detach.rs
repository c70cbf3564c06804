//! `virtual-kubelet detach`: removes virtual nodes of the provider `cluster` from their lower cluster.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use serde_json::json;
use vk_kube::{Client, ClientOptions, Kind, Metrics, Objects};
use vk_provider_cluster::{
    config::Settings,
    detach::{DetachOptions, DetachReport, detach, origin},
    names::{NamespaceMapping, OwnerId},
};
use vk_supervisor::{Clock, Supervisor};

use super::{
    Failure, Flags, load,
    output::{print, print_diagnostic},
};
use crate::{
    Registry,
    config::{EffectiveConfig, GoDuration, Layer, Problem},
};

/// The provider whose nodes have objects in another cluster.
const PROVIDER: &str = "cluster";
/// Namespace of node leases.
const LEASES: &str = "kube-node-lease";

/// Removes all objects of virtual nodes from their lower cluster, and nothing else, and waits until they are gone.
#[derive(Debug, Args)]
pub(super) struct Detach {
    /// ID of the upper cluster if it is unreachable: the UID of its namespace kube-system, or the configured origin
    #[arg(long, value_name = "ID")]
    origin: Option<String>,
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Keep PersistentVolumeClaims and their data
    #[arg(long)]
    keep_claims: bool,
    /// Continue even if the virtual node seems to be running
    #[arg(long)]
    force: bool,
    /// How long to wait until everything is gone
    #[arg(long, value_name = "DURATION", default_value = "2m")]
    timeout: GoDuration,
    #[command(flatten)]
    flags: Flags,
}

/// A virtual node and its lower cluster.
struct DetachedNode {
    name: String,
    settings: Settings,
}

// === impl Detach ===

impl Detach {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        let (base, _) = Layer::from_value(json!({ "provider": PROVIDER }));
        let config = load(&before.overlaid_with(self.flags.clone()), base, None, registry)?;
        let nodes = nodes(&config)?;
        let supervisor = Supervisor::new();
        let outcome = self.detach(&config, &nodes, &supervisor).await;
        supervisor.shut_down(Duration::from_secs(1)).await;
        outcome
    }

    async fn detach(
        &self,
        config: &EffectiveConfig,
        nodes: &[DetachedNode],
        supervisor: &Supervisor,
    ) -> Result<(), Failure> {
        let upper =
            ClientOptions { kubeconfig: config.kubeconfig.clone(), server: config.api_server.clone() };
        let upper = upper.connect(supervisor, Metrics::default()).await;
        for node in nodes {
            let named = self.origin.clone().or_else(|| node.settings.origin.clone());
            let name = node.name.as_str();
            let origin = match (named, &upper) {
                (Some(named), _) => named,
                (None, Ok(upper)) => origin(upper)
                    .await
                    .context("read the ID of the upper cluster; set --origin if it is unreachable")?,
                (None, Err(error)) => {
                    let message = format!("{error}; without the upper cluster, set --origin");
                    return Err(Failure::Configuration(vec![Problem::new("kubeconfig", message)]));
                }
            };
            if let Ok(upper) = &upper {
                self.check_stopped(upper, name).await?;
            }
            let lower = ClientOptions { kubeconfig: node.settings.kubeconfig.clone(), server: None };
            let wrong = |error: vk_kube::ConfigError| {
                Failure::Configuration(vec![Problem::new("clientKubeconfig", error.to_string())])
            };
            let setup = DetachOptions {
                lower: lower.connect(supervisor, Metrics::default()).await.map_err(wrong)?,
                owner: OwnerId { origin, node: node.name.clone() },
                namespaces: match &node.settings.namespaces {
                    NamespaceMapping::Map(map) => Some(map.values().cloned().collect()),
                    NamespaceMapping::Same | NamespaceMapping::Suffix(_) => None,
                },
                keep_claims: self.keep_claims,
                dry_run: self.dry_run,
                timeout: self.timeout.0,
            };
            let server = setup.lower.server().to_owned();
            let report =
                detach(&setup).await.with_context(|| format!("detach virtual node {name} from {server}"))?;
            print(&self.format_report(name, &server, &report))?;
        }
        Ok(())
    }

    /// Fails if the node is running: it would consider the removed pods lost and create objects again.
    async fn check_stopped(&self, upper: &Client, name: &str) -> Result<(), Failure> {
        let leases: Objects<Lease> = Objects::namespaced(upper.clone(), LEASES);
        let lease = match leases.get(name).await {
            Ok(lease) => lease,
            Err(error) if error.kind == Kind::NotFound => return Ok(()),
            Err(error) => {
                print_diagnostic(
                    "warning",
                    &format!("cannot check whether virtual node {name} is running: {error}"),
                );
                return Ok(());
            }
        };
        let Some(holder) = holder(&lease, Clock::system().now()) else { return Ok(()) };
        let message = format!("virtual node {name} is running: its lease is held by {holder}");
        if self.force || self.dry_run {
            print_diagnostic("warning", &message);
            return Ok(());
        }
        Err(anyhow!("{message}; stop it first, or use --force").into())
    }

    fn format_report(&self, name: &str, server: &str, report: &DetachReport) -> String {
        let verb = if self.dry_run { "would remove" } else { "removed" };
        let removed = report.removed.iter().map(|item| format!("{verb} {item}\n"));
        let left = report.left.iter().map(|(item, why)| format!("left {item}: {why}\n"));
        let last = match report.removed.len() {
            0 => format!("virtual node {name} has no objects in {server}\n"),
            count => format!("{verb} {count} objects of virtual node {name} from {server}\n"),
        };
        removed.chain(left).chain([last]).collect()
    }
}

/// The configured nodes that have a lower cluster.
fn nodes(config: &EffectiveConfig) -> Result<Vec<DetachedNode>, Failure> {
    let mut all = Vec::new();
    let mut problems = Vec::new();
    for node in config.nodes.iter().filter(|node| node.provider == PROVIDER) {
        match Settings::read(&node.provider_config) {
            Ok(settings) if settings.kubeconfig.is_none() => {
                let message = "is not set: it must name the lower cluster to detach from";
                problems.push(Problem::new("clientKubeconfig", message));
            }
            Ok(settings) => {
                let named = settings.by_node(&node.name).into_iter();
                all.extend(named.map(|(name, settings)| DetachedNode { name, settings }));
            }
            Err(error) => problems.push(Problem::new("providerConfig", error.message().to_owned())),
        }
    }
    if all.is_empty() && problems.is_empty() {
        let message = "no configured node has the provider cluster; only such nodes can be detached";
        problems.push(Problem::new("provider", message));
    }
    if problems.is_empty() { Ok(all) } else { Err(Failure::Configuration(problems)) }
}

/// The holder of a lease that has not expired.
fn holder(lease: &Lease, now: Timestamp) -> Option<&str> {
    let spec = lease.spec.as_ref()?;
    let holder = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())?;
    let seconds = u64::try_from(spec.lease_duration_seconds?).unwrap_or(0);
    let end = spec.renew_time.as_ref()?.0.checked_add(Duration::from_secs(seconds)).ok()?;
    (end > now).then_some(holder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_held_until_it_expires() {
        let lease = |holder: &str| -> Lease {
            let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"});
            serde_json::from_value(json!({ "spec": spec })).unwrap()
        };
        let at = |text: &str| text.parse().unwrap();
        assert_eq!(holder(&lease("vk"), at("2026-01-01T00:00:39Z")), Some("vk"));
        assert_eq!(holder(&lease("vk"), at("2026-01-01T00:00:40Z")), None);
        assert_eq!(holder(&lease(""), at("2026-01-01T00:00:01Z")), None, "released");
        assert_eq!(holder(&Lease::default(), at("2026-01-01T00:00:01Z")), None);
    }
}
