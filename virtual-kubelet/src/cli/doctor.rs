//! `virtual-kubelet doctor`.

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use serde_json::json;
use vk_provider::{Finding, finding::FindingLevel};
use vk_supervisor::Supervisor;

use super::{Failure, Flags, load, output::print};
use crate::{
    Registry,
    config::Layer,
    run::{address, context},
};

/// Checked by default: whether this machine can run containers without anything installed.
const PROVIDER: &str = "local";

/// Checks whether the configured providers can run pods here.
#[derive(Debug, Args)]
pub(super) struct Doctor {
    #[command(flatten)]
    flags: Flags,
}

// === impl Doctor ===

impl Doctor {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        let defaults =
            if registry.get(PROVIDER).is_some() { json!({ "provider": PROVIDER }) } else { json!({}) };
        let (base, _) = Layer::from_value(defaults);
        let config = load(&before.overlaid_with(self.flags), base, None, registry)?;
        // Without an API server the address is a guess.
        let detected = address::internal_ip("");
        let (mut checks, mut failed) = (0, 0);
        let mut seen = Vec::new();
        let supervisor = Supervisor::new();
        for node in &config.nodes {
            // Check equal nodes once.
            if seen.contains(&(&node.provider, &node.provider_config)) {
                continue;
            }
            seen.push((&node.provider, &node.provider_config));
            let Some(factory) = registry.get(&node.provider) else { continue };
            let context = context(node, detected, &config.state_dir, supervisor.child());
            let mut findings = factory.examine(node.provider_config.clone(), context).await;
            if findings.is_empty() {
                findings.push(Finding::ok("provider", format!("{} has no checks", node.provider)));
            }
            for finding in &findings {
                print(&format!("{finding}\n"))?;
            }
            checks += findings.len();
            failed += findings.iter().filter(|finding| finding.level == FindingLevel::Error).count();
        }
        supervisor.shut_down(Duration::from_secs(1)).await;
        if failed == 0 {
            return Ok(());
        }
        Err(anyhow!("{failed} of {checks} checks failed; pods cannot run here").into())
    }
}
