//! `virtual-kubelet dev`.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::{Failure, Flags, load};
use crate::{Registry, config::Layer, dev, telemetry};

/// The provider of a control plane to play with: real containers.
const PROVIDER: &str = "local";
/// The one for many nodes, of which a machine is none: they take any pod and run nothing.
const MANY: &str = "mock";

/// Starts a control plane with virtual nodes.
#[derive(Debug, Args)]
pub(super) struct Dev {
    /// How many nodes; more than one are of the provider mock, unless another is chosen
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    nodes: Option<u16>,
    /// Where the control plane and the nodes keep their data [default: a temporary folder]
    #[arg(long, value_name = "PATH")]
    data_dir: Option<PathBuf>,
    /// Where to write a kubeconfig for kubectl [default: in the data folder]
    #[arg(long, value_name = "PATH")]
    kubeconfig_out: Option<PathBuf>,
    /// Whether to start the scheduler and the controller manager
    #[arg(long, value_name = "on|off", default_value = "on")]
    controllers: OnOff,
    /// Whether to run a Deployment and a Job to look at, on nodes of the provider local
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
        let usual = if nodes.is_none() && registry.get(PROVIDER).is_some() { PROVIDER } else { MANY };
        let state = dev::State::below(self.data_dir.as_deref())?;
        let (base, _) = Layer::from_value(json!({
            "provider": usual,
            "disableTaint": true,
            "stateDir": state.path(),
        }));
        let extra = nodes.map(|nodes| Layer::from_value(json!({ "nodes": [{ "count": nodes }] })).0);
        let config = load(&before.under(self.flags), base, extra, &registry)?;
        let _telemetry = telemetry::init(&config.log).context("cannot start logging")?;
        let options = dev::Options {
            data_dir: self.data_dir,
            kubeconfig_out: self.kubeconfig_out,
            controllers: self.controllers == OnOff::On,
            demo: self.demo == OnOff::On,
        };
        Box::pin(dev::run(options, state, config, registry)).await
    }
}
