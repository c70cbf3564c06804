//! `virtual-kubelet detach`: takes virtual nodes of the provider `cluster` out of their lower cluster.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use serde_json::json;
use vk_kube::{Client, Kind, Metrics, Objects, Source};
use vk_provider_cluster::{
    config::Settings,
    detach::{DetachOptions, DetachReport, detach, origin},
    names::{NamespaceMapping, OwnerId},
};
use vk_supervisor::{Clock, Supervisor};

use super::{
    Failure, Flags, load,
    output::{complain, print},
};
use crate::{
    Registry,
    config::{GoDuration, Layer, Problem, Resolved},
};

/// Whose nodes have something in another cluster.
const PROVIDER: &str = "cluster";
/// Where the leases of nodes are.
const LEASES: &str = "kube-node-lease";

/// Removes all that virtual nodes have in their lower cluster, and nothing else, and waits until it is gone.
#[derive(Debug, Args)]
pub(super) struct Detach {
    /// What the upper cluster is called below, when it cannot be asked: the UID of its namespace kube-system, or what was configured
    #[arg(long, value_name = "ID")]
    origin: Option<String>,
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Leave PersistentVolumeClaims where they are, with what is in their volumes
    #[arg(long)]
    keep_claims: bool,
    /// Go on although the virtual node seems to run
    #[arg(long)]
    force: bool,
    /// How long it may take until all is gone
    #[arg(long, value_name = "DURATION", default_value = "2m")]
    timeout: GoDuration,
    #[command(flatten)]
    flags: Flags,
}

/// One virtual node, with its way to the lower cluster.
struct Node {
    name: String,
    settings: Settings,
}

// === impl Detach ===

impl Detach {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        let (base, _) = Layer::from_value(json!({ "provider": PROVIDER }));
        let config = load(&before.under(self.flags.clone()), base, None, registry)?;
        let nodes = nodes(&config)?;
        let supervisor = Supervisor::new();
        let outcome = self.detach(&config, &nodes, &supervisor).await;
        supervisor.shut_down(Duration::from_secs(1)).await;
        outcome
    }

    async fn detach(
        &self,
        config: &Resolved,
        nodes: &[Node],
        supervisor: &Supervisor,
    ) -> Result<(), Failure> {
        let upper = Source { kubeconfig: config.kubeconfig.clone(), server: config.api_server.clone() };
        let upper = upper.connect(supervisor, Metrics::default()).await;
        for node in nodes {
            let named = self.origin.clone().or_else(|| node.settings.origin.clone());
            let name = node.name.as_str();
            let origin = match (named, &upper) {
                (Some(named), _) => named,
                (None, Ok(upper)) => origin(upper)
                    .await
                    .context("cannot ask the upper cluster what it is called below: give --origin")?,
                (None, Err(error)) => {
                    let message = format!("{error}; without the upper cluster, give --origin");
                    return Err(Failure::Configuration(vec![Problem::new("kubeconfig", message)]));
                }
            };
            if let Ok(upper) = &upper {
                self.check_stopped(upper, name).await?;
            }
            let lower = Source { kubeconfig: node.settings.kubeconfig.clone(), server: None };
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
            let report = detach(&setup)
                .await
                .with_context(|| format!("cannot detach the virtual node {name} from {server}"))?;
            print(&self.shown(name, &server, &report))?;
        }
        Ok(())
    }

    /// A process that runs would take what goes for lost pods, and make what it needs again.
    async fn check_stopped(&self, upper: &Client, name: &str) -> Result<(), Failure> {
        let leases: Objects<Lease> = Objects::namespaced(upper.clone(), LEASES);
        let lease = match leases.get(name).await {
            Ok(lease) => lease,
            Err(error) if error.kind == Kind::NotFound => return Ok(()),
            Err(error) => {
                complain("warning", &format!("cannot see whether the virtual node {name} runs: {error}"));
                return Ok(());
            }
        };
        let Some(holder) = holder(&lease, Clock::system().now()) else { return Ok(()) };
        let message = format!("the virtual node {name} runs, its lease is held by {holder}");
        if self.force || self.dry_run {
            complain("warning", &message);
            return Ok(());
        }
        Err(anyhow!("{message}: stop it first, or give --force").into())
    }

    fn shown(&self, name: &str, server: &str, report: &DetachReport) -> String {
        let verb = if self.dry_run { "would remove" } else { "removed" };
        let removed = report.removed.iter().map(|item| format!("{verb} {item}\n"));
        let left = report.left.iter().map(|(item, why)| format!("left {item}: {why}\n"));
        let last = match report.removed.len() {
            0 => format!("nothing of the virtual node {name} is in {server}\n"),
            count => format!("{verb} {count} objects of the virtual node {name} from {server}\n"),
        };
        removed.chain(left).chain([last]).collect()
    }
}

/// The virtual nodes of the configuration that have a lower cluster.
fn nodes(config: &Resolved) -> Result<Vec<Node>, Failure> {
    let mut all = Vec::new();
    let mut problems = Vec::new();
    for node in config.nodes.iter().filter(|node| node.provider == PROVIDER) {
        match Settings::read(&node.provider_config) {
            Ok(settings) if settings.kubeconfig.is_none() => {
                let message = "is not given: say which cluster the virtual node is to be taken out of";
                problems.push(Problem::new("clientKubeconfig", message));
            }
            Ok(settings) => {
                let named = settings.by_node(&node.name).into_iter();
                all.extend(named.map(|(name, settings)| Node { name, settings }));
            }
            Err(error) => problems.push(Problem::new("providerConfig", error.message().to_owned())),
        }
    }
    if all.is_empty() && problems.is_empty() {
        let message =
            "no node of the configuration has the provider cluster, which alone has something elsewhere";
        problems.push(Problem::new("provider", message));
    }
    if problems.is_empty() { Ok(all) } else { Err(Failure::Configuration(problems)) }
}

/// Who holds a lease that has not run out.
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
    fn a_lease_is_held_until_it_runs_out() {
        let lease = |holder: &str| -> Lease {
            let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"});
            serde_json::from_value(json!({ "spec": spec })).unwrap()
        };
        let at = |text: &str| text.parse().unwrap();
        assert_eq!(holder(&lease("vk"), at("2026-01-01T00:00:39Z")), Some("vk"));
        assert_eq!(holder(&lease("vk"), at("2026-01-01T00:00:40Z")), None);
        assert_eq!(holder(&lease(""), at("2026-01-01T00:00:01Z")), None, "it was given back");
        assert_eq!(holder(&Lease::default(), at("2026-01-01T00:00:01Z")), None);
    }
}
