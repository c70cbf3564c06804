//! `virtual-kubelet dev`.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::{Failure, Flags, load};
use crate::{Registry, config::Layer, dev, telemetry};

/// Default provider: real containers.
const PROVIDER: &str = "local";
/// Default provider for several nodes: accepts any pod and runs nothing.
const PROVIDER_FOR_MANY: &str = "mock";

/// Starts a local control plane with virtual nodes.
#[derive(Debug, Args)]
pub(super) struct Dev {
    /// Number of nodes; with more than one the default provider is mock
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    nodes: Option<u16>,
    /// Data directory of the control plane and the nodes [default: a temporary directory]
    #[arg(long, value_name = "PATH")]
    data_dir: Option<PathBuf>,
    /// Where to write the kubeconfig for kubectl [default: in the data directory]
    #[arg(long, value_name = "PATH")]
    kubeconfig_out: Option<PathBuf>,
    /// Start the scheduler and the controller manager
    #[arg(long, value_name = "on|off", default_value = "on")]
    controllers: OnOff,
    /// Run a demo Deployment and Job (provider local)
    #[arg(long, value_name = "on|off", default_value = "on")]
    demo: OnOff,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnOff {
    On,
    Off,
}

// === impl Dev ===

impl Dev {
    pub(super) async fn execute(self, before: Flags, registry: Registry) -> Result<(), Failure> {
        let nodes = self.nodes.filter(|nodes| *nodes > 1);
        let default_provider =
            if nodes.is_none() && registry.get(PROVIDER).is_some() { PROVIDER } else { PROVIDER_FOR_MANY };
        let state = dev::StateDir::new(self.data_dir.as_deref())?;
        let (base, _) = Layer::from_value(json!({
            "provider": default_provider,
            "disableTaint": true,
            "stateDir": state.path(),
        }));
        let extra = nodes.map(|nodes| Layer::from_value(json!({ "nodes": [{ "count": nodes }] })).0);
        let config = load(&before.overlaid_with(self.flags), base, extra, &registry)?;
        let _telemetry = telemetry::init(&config.log).context("start logging")?;
        let options = dev::Options {
            data_dir: self.data_dir,
            kubeconfig_out: self.kubeconfig_out,
            controllers: self.controllers == OnOff::On,
            demo: self.demo == OnOff::On,
        };
        Box::pin(dev::run(options, state, config, registry)).await
    }
}
