//! `virtual-kubelet placement`: placement of pods on virtual nodes.

mod explain;
mod flags;
mod policy;
mod rbac;
mod scheduler;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::json;

use self::{explain::Explain, policy::PrintPolicy, rbac::PrintRbac, scheduler::PrintScheduler};
use super::{Failure, Flags, load};
use crate::{
    Registry,
    config::{Layer, PlacementPart},
    telemetry,
};

pub(super) use self::flags::{
    ConversionFlags, EvictionFlags, PlacementFlags, PreferenceFlags, TlsFlags, variables,
};

/// Where health and metrics are served unless configured otherwise: not where a virtual node on the same machine does.
const METRICS_ADDR: &str = "127.0.0.1:10256";

/// Places pods on virtual nodes, until the process gets a signal.
///
/// Of several processes, one is the leader and the others stand by; all of them serve the extender and the webhook. Needs the permissions of
/// `placement print rbac`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Placement {
    #[command(subcommand)]
    subcommand: Option<PlacementCommand>,
    #[command(flatten)]
    parts: PlacementFlags,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Debug, Subcommand)]
enum PlacementCommand {
    /// Show for each virtual node whether it would take a pod, and why not
    Explain(Explain),
    /// Print manifests for `kubectl apply`, and the configuration of kube-scheduler
    Print(Print),
}

#[derive(Debug, Args)]
struct Print {
    #[command(subcommand)]
    manifest: Manifest,
}

#[derive(Debug, Subcommand)]
enum Manifest {
    /// The admission policy that converts pods; for Kubernetes before 1.36, the configuration of the webhook
    Policy(PrintPolicy),
    /// The ServiceAccount and the permissions of the placement process
    Rbac(PrintRbac),
    /// The configuration of a kube-scheduler that asks the extender
    Scheduler(PrintScheduler),
}

// === impl Placement ===

impl Placement {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        match self.subcommand {
            None => run_alone(&before.overlaid_with(self.flags), self.parts.layer(), None, registry).await,
            Some(PlacementCommand::Explain(command)) => command.execute(before, registry).await,
            Some(PlacementCommand::Print(Print { manifest: Manifest::Policy(command) })) => {
                command.execute(before, registry).await
            }
            Some(PlacementCommand::Print(Print { manifest: Manifest::Rbac(command) })) => command.execute(),
            Some(PlacementCommand::Print(Print { manifest: Manifest::Scheduler(command) })) => {
                command.execute(before, registry).await
            }
        }
    }
}

/// Runs placement in a process of its own: all parts that are configured, or only this one.
pub(super) async fn run_alone(
    flags: &Flags,
    placement: Layer,
    only: Option<PlacementPart>,
    registry: &Registry,
) -> Result<(), Failure> {
    let section = match only {
        None => json!({}),
        Some(PlacementPart::Descheduler) => json!({ "descheduler": {} }),
        Some(PlacementPart::Extender) => json!({ "extender": {} }),
        Some(PlacementPart::Webhook) => json!({ "webhook": {} }),
    };
    // Nodes do not matter here, but a configuration has at least one.
    let provider = registry.names().first().copied();
    let base = json!({ "provider": provider, "metricsAddr": METRICS_ADDR, "placement": section });
    let mut config = load(flags, Layer::from_value(base).0, Some(placement), registry)?;
    if let Some((part, placement)) = only.zip(config.placement.as_mut()) {
        placement.keep_only(part);
    }
    let _telemetry = telemetry::init(&config.log).context("start logging")?;
    Box::pin(crate::run::run_placement(config)).await
}

#[cfg(test)]
mod tests;
