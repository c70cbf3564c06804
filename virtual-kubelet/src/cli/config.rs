//! `virtual-kubelet config dump|schema|check`.

use anyhow::Context;
use clap::{Args, Subcommand};

use super::{Failure, Flags, load, output::print};
use crate::{
    Registry,
    config::{Layer, schema},
};

/// Looks at the configuration without running anything.
#[derive(Debug, Args)]
pub(super) struct Config {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the effective configuration as YAML, with every default written out and without secrets
    Dump(Given),
    /// Print the JSON schema of the configuration file
    Schema,
    /// Check the configuration: print `ok`, or each error
    Check(Given),
}

#[derive(Debug, Args)]
struct Given {
    #[command(flatten)]
    flags: Flags,
}

// === impl Config ===

impl Config {
    pub(super) fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        match self.verb {
            Verb::Dump(given) => {
                let config = load(&before.under(given.flags), Layer::default(), None, registry)?;
                let text = serde_saphyr::to_string(&config.to_settings()).context("cannot write YAML")?;
                Ok(print(&text)?)
            }
            Verb::Schema => {
                let text = serde_json::to_string_pretty(&schema()).context("cannot write JSON")?;
                Ok(print(&(text + "\n"))?)
            }
            Verb::Check(given) => {
                load(&before.under(given.flags), Layer::default(), None, registry)?;
                Ok(print("ok\n")?)
            }
        }
    }
}
