//! `virtual-kubelet config dump|schema|check`.

use anyhow::Context;
use clap::{Args, Subcommand};

use super::{Failure, Flags, load, output::print};
use crate::{
    Registry,
    config::{Layer, schema},
};

/// Prints or checks the configuration without running anything.
#[derive(Debug, Args)]
pub(super) struct Config {
    #[command(subcommand)]
    subcommand: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the effective configuration as YAML, with all defaults and without secrets
    Dump(ConfigFlags),
    /// Print the JSON schema of the configuration file
    Schema,
    /// Check the configuration: print `ok`, or each error
    Check(ConfigFlags),
}

#[derive(Debug, Args)]
struct ConfigFlags {
    #[command(flatten)]
    flags: Flags,
}

// === impl Config ===

impl Config {
    pub(super) fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        match self.subcommand {
            ConfigCommand::Dump(args) => {
                let config = load(&before.overlaid_with(args.flags), Layer::default(), None, registry)?;
                let text = serde_saphyr::to_string(&config.to_settings()).context("cannot write YAML")?;
                Ok(print(&text)?)
            }
            ConfigCommand::Schema => {
                let text = serde_json::to_string_pretty(&schema()).context("cannot write JSON")?;
                Ok(print(&(text + "\n"))?)
            }
            ConfigCommand::Check(args) => {
                load(&before.overlaid_with(args.flags), Layer::default(), None, registry)?;
                Ok(print("ok\n")?)
            }
        }
    }
}
