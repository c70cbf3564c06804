//! `virtual-kubelet config dump|schema|check`.

use anyhow::Context;
use clap::{Args, Subcommand};

use super::{Failure, Flags, load, output::print, placement};
use crate::{
    Registry,
    config::{EffectiveConfig, Layer, schema},
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
                let config = load(
                    &before.overlaid_with(args.flags),
                    Layer::default(),
                    Some(placement::variables()?),
                    registry,
                )?;
                let text = serde_saphyr::to_string(&config.to_settings()).context("cannot write YAML")?;
                Ok(print(&(variables(&config) + &text))?)
            }
            ConfigCommand::Schema => {
                let text = serde_json::to_string_pretty(&schema()).context("cannot write JSON")?;
                Ok(print(&(text + "\n"))?)
            }
            ConfigCommand::Check(args) => {
                load(
                    &before.overlaid_with(args.flags),
                    Layer::default(),
                    Some(placement::variables()?),
                    registry,
                )?;
                Ok(print("ok\n")?)
            }
        }
    }
}

/// Comments that name the variables that set keys of providers, because a provider's file is not part of the output.
fn variables(config: &EffectiveConfig) -> String {
    let mut lines: Vec<String> = Vec::new();
    for alias in config.nodes.iter().flat_map(|node| &node.provider_variables) {
        let line = format!("# environment {} sets providerConfig.{}\n", alias.name, alias.key);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.concat()
}
