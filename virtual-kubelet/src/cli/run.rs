//! `virtual-kubelet run`.

use anyhow::Context;
use clap::Args;

use super::{Failure, Flags, load};
use crate::{Registry, config::Layer, telemetry};

/// Runs virtual nodes until a signal comes.
#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    flags: Flags,
}

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
        let config = load(&before.under(self.flags), Layer::default(), None, &registry)?;
        let _telemetry = telemetry::init(&config.log).context("cannot start logging")?;
        Box::pin(crate::run::run(config, registry)).await
    }
}
