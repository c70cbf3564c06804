//! `virtual-kubelet providers`.

use anyhow::bail;
use clap::Args;

use super::output::{print, table};
use crate::{Registry, registry::unknown_provider_message};

/// Lists the providers.
#[derive(Debug, Args)]
pub(super) struct Providers {
    /// Show only this provider
    name: Option<String>,
}

// === impl Providers ===

impl Providers {
    pub(super) fn execute(&self, registry: &Registry) -> anyhow::Result<()> {
        if let Some(name) = &self.name
            && registry.get(name).is_none()
        {
            bail!(unknown_provider_message(name, &registry.names()));
        }
        let rows: Vec<[String; 3]> = registry
            .iter()
            .filter(|factory| self.name.as_ref().is_none_or(|name| name == factory.name()))
            .map(|factory| {
                [factory.name().into(), factory.description().into(), factory.abilities().to_string()]
            })
            .collect();
        print(&table(["NAME", "DESCRIPTION", "ABILITIES"], &rows))
    }
}
