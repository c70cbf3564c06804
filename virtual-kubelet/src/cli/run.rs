//! `virtual-kubelet run`.

use anyhow::Context;
use clap::Args;

use super::{Failure, Flags, load, placement};
use crate::{Registry, config::Layer, telemetry};

/// Runs virtual nodes until the process gets a signal.
#[derive(Debug, Args)]
#[command(mut_args(super::flags::show_all), term_width = 0, after_help = AFTER_HELP)]
pub(super) struct Run {
    #[command(flatten)]
    flags: Flags,
}

/// The end of the help.
const AFTER_HELP: &str = "\
Options can also be set in the configuration file (--config) and by environment variables; flags win over variables, and
variables over the file. `virtual-kubelet config schema` describes the file. Flags of the Go virtual-kubelet that have no
effect any more are accepted with a warning, except --namespace.";

// === impl Run ===

impl Run {
    pub(super) fn new(flags: Flags) -> Self {
        Self { flags }
    }

    #[cfg(test)]
    pub(super) fn into_flags(self) -> Flags {
        self.flags
    }

    pub(super) async fn execute(self, before: Flags, registry: Registry) -> Result<(), Failure> {
        let config = load(
            &before.overlaid_with(self.flags),
            Layer::default(),
            Some(placement::variables()?),
            &registry,
        )?;
        let _telemetry = telemetry::init(&config.log).context("start logging")?;
        Box::pin(crate::run::run(config, registry)).await
    }
}
