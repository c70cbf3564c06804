//! `virtual-kubelet placement`: placement of pods on virtual nodes.

mod explain;

use clap::{Args, Subcommand};

use super::{Failure, Flags};
use crate::Registry;

/// Helps to place pods on virtual nodes.
#[derive(Debug, Args)]
pub(super) struct Placement {
    #[command(subcommand)]
    subcommand: PlacementCommand,
}

#[derive(Debug, Subcommand)]
enum PlacementCommand {
    /// Show for each virtual node whether it would take a pod, and why not
    Explain(explain::Explain),
}

// === impl Placement ===

impl Placement {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        match self.subcommand {
            PlacementCommand::Explain(command) => command.execute(before, registry).await,
        }
    }
}
