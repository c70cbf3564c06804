//! `virtual-kubelet doctor`.

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use serde_json::json;
use vk_provider::{Finding, finding::Level};
use vk_supervisor::Supervisor;

use super::{Failure, Flags, load, output::print};
use crate::{
    Registry,
    config::Layer,
    run::{address, context},
};

/// What is looked at when nobody says what: whether this machine runs containers with nothing installed.
const PROVIDER: &str = "local";

/// Looks whether the providers of the configuration could run pods here.
#[derive(Debug, Args)]
pub(super) struct Doctor {
    #[command(flatten)]
    flags: Flags,
}

// === impl Doctor ===

impl Doctor {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        let presumed =
            if registry.get(PROVIDER).is_some() { json!({ "provider": PROVIDER }) } else { json!({}) };
        let (base, _) = Layer::from_value(presumed);
        let config = load(&before.under(self.flags), base, None, registry)?;
        // No API server is needed to look around, so the address is a guess.
        let detected = address::internal_ip("");
        let (mut looked, mut wrong) = (0, 0);
        let mut seen = Vec::new();
        let supervisor = Supervisor::new();
        for node in &config.nodes {
            // Nodes of a kind are alike.
            if seen.contains(&(&node.provider, &node.provider_config)) {
                continue;
            }
            seen.push((&node.provider, &node.provider_config));
            let Some(factory) = registry.get(&node.provider) else { continue };
            let context = context(node, detected, &config.state_dir, supervisor.child());
            let mut findings = factory.examine(node.provider_config.clone(), context).await;
            if findings.is_empty() {
                findings.push(Finding::ok("provider", format!("{} has nothing to look at", node.provider)));
            }
            for finding in &findings {
                print(&format!("{finding}\n"))?;
            }
            looked += findings.len();
            wrong += findings.iter().filter(|finding| finding.level == Level::Error).count();
        }
        supervisor.shut_down(Duration::from_secs(1)).await;
        if wrong == 0 {
            return Ok(());
        }
        Err(anyhow!("{wrong} of {looked} checks failed: pods will not run here").into())
    }
}
