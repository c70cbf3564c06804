//! `virtual-kubelet placement`: placement of pods on virtual nodes.

mod explain;
mod policy;

use clap::{Args, Subcommand};
use vk_placement::convert::{DEFAULT_UPPER_KEYS, Settings};

use self::{explain::Explain, policy::PrintPolicy};
use super::{Failure, Flags};
use crate::Registry;

/// Places pods on virtual nodes.
#[derive(Debug, Args)]
pub(super) struct Placement {
    #[command(subcommand)]
    subcommand: PlacementCommand,
}

#[derive(Debug, Subcommand)]
enum PlacementCommand {
    /// Show for each virtual node whether it would take a pod, and why not
    Explain(Explain),
    /// Print manifests for `kubectl apply`
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
}

/// Settings of conversion.
#[derive(Debug, Args)]
pub(super) struct ConversionFlags {
    /// Labels that mean nodes of the upper cluster, separated by commas
    #[arg(long, value_name = "KEYS", env = "VK_PLACEMENT_UPPER_KEYS", value_delimiter = ',', default_values_t = DEFAULT_UPPER_KEYS.map(ToOwned::to_owned))]
    upper_keys: Vec<String>,
    /// Keep pods on a virtual node that is lost
    #[arg(long, env = "VK_PLACEMENT_TOLERATE_LOST")]
    tolerate_lost: bool,
}

// === impl Placement ===

impl Placement {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        match self.subcommand {
            PlacementCommand::Explain(command) => command.execute(before, registry).await,
            PlacementCommand::Print(Print { manifest: Manifest::Policy(command) }) => {
                command.execute(before, registry).await
            }
        }
    }
}

// === impl ConversionFlags ===

impl ConversionFlags {
    pub(super) fn settings(&self) -> Settings {
        Settings {
            upper_keys: self.upper_keys.clone(),
            // Nobody would remove it.
            gate: false,
            tolerate_lost: self.tolerate_lost,
        }
    }
}
