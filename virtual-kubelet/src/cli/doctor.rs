//! `virtual-kubelet doctor`.

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use serde_json::json;
use vk_placement::{
    ask::{AskLimits, FitClient},
    doctor,
};
use vk_provider::{Finding, finding::FindingLevel};
use vk_supervisor::{Clock, Supervisor};

use super::{
    Failure, Flags,
    connection::{cluster_id, connect, load_without_nodes, with_client},
    load,
    output::print,
};
use crate::{
    Registry,
    config::Layer,
    run::{address, context},
};

/// Checked by default: whether this machine can run containers without anything installed.
const PROVIDER: &str = "local";

/// Checks whether the configured providers can run pods here, or whether placement is set up.
#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// Check the placement of pods on virtual nodes instead: its policy, process, permissions, extender, and the nodes
    #[arg(long)]
    placement: bool,
    /// With --placement: its namespace [default: kube-system]
    #[arg(long, value_name = "NAME", env = "VK_PLACEMENT_NAMESPACE")]
    placement_namespace: Option<String>,
    #[command(flatten)]
    flags: Flags,
}

// === impl Doctor ===

impl Doctor {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        let flags = before.overlaid_with(self.flags);
        if self.placement {
            examine_placement(&flags, self.placement_namespace, registry).await
        } else {
            examine_providers(&flags, registry).await
        }
    }
}

async fn examine_providers(flags: &Flags, registry: &Registry) -> Result<(), Failure> {
    let defaults = if registry.get(PROVIDER).is_some() { json!({ "provider": PROVIDER }) } else { json!({}) };
    let (base, _) = Layer::from_value(defaults);
    let config = load(flags, base, None, registry)?;
    // Without an API server the address is a guess.
    let detected = address::internal_ip("");
    let (mut checks, mut failed) = (0, 0);
    let supervisor = Supervisor::new();
    for node in config.distinct_providers() {
        let Some(factory) = registry.get(&node.provider) else { continue };
        let mut context = context(node, detected, &config.state_dir, supervisor.child());
        // As `run` opens the provider.
        let cluster = if factory.needs_cluster_id() {
            Some(cluster_id(&connect(&config, &supervisor).await).await)
        } else {
            None
        };
        context.cluster = cluster.clone().and_then(Result::ok);
        let mut findings = factory.examine(node.provider_config.clone(), context).await;
        // Providers whose configuration names the cluster do not miss the id.
        if let (Some(Err(why)), true) = (cluster, findings.iter().any(is_error)) {
            let found = format!("cannot read the UID of the namespace kube-system: {why}");
            let remedy = "choose the cluster with --kubeconfig; not needed if the configuration of the provider names the cluster";
            findings.push(Finding::warning("cluster id", found, remedy));
        }
        if findings.is_empty() {
            findings.push(Finding::ok("provider", format!("{} has no checks", node.provider)));
        }
        checks += findings.len();
        failed += print_findings(&findings)?;
    }
    supervisor.shut_down(Duration::from_secs(1)).await;
    verdict(failed, checks, "pods cannot run here")
}

async fn examine_placement(
    flags: &Flags,
    namespace: Option<String>,
    registry: &Registry,
) -> Result<(), Failure> {
    let section = namespace.map(|namespace| json!({ "placement": { "namespace": namespace } }));
    let extra = section.map(|section| Layer::from_value(section).0);
    let config = load_without_nodes(flags, extra, registry)?;
    let findings = with_client(&config, async |client| {
        let fit_client =
            FitClient::for_namespace(client.clone(), AskLimits::default(), &config.placement_namespace);
        let doctor = doctor::Doctor {
            client,
            fit_client: &fit_client,
            namespace: &config.placement_namespace,
            now: Clock::system().now(),
        };
        Ok(doctor.examine().await)
    })
    .await?;
    let failed = print_findings(&findings)?;
    verdict(failed, findings.len(), "pods are not placed as they should be")
}

/// Prints them, and returns how many are errors.
fn print_findings(findings: &[Finding]) -> anyhow::Result<usize> {
    for finding in findings {
        print(&format!("{finding}\n"))?;
    }
    Ok(findings.iter().filter(|finding| is_error(finding)).count())
}

fn is_error(finding: &Finding) -> bool {
    finding.level == FindingLevel::Error
}

fn verdict(failed: usize, checks: usize, consequence: &str) -> Result<(), Failure> {
    if failed == 0 {
        return Ok(());
    }
    Err(anyhow!("{failed} of {checks} checks failed; {consequence}").into())
}
