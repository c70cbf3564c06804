//! Commands that run no nodes and call the API server.

use std::time::Duration;

use serde_json::json;
use vk_kube::{Client, ClientOptions, Metrics};
use vk_supervisor::Supervisor;

use super::{Failure, Flags, load};
use crate::{
    Registry,
    config::{EffectiveConfig, Layer, Problem},
};

/// Loads the configuration of a command that runs no nodes.
pub(super) fn load_without_nodes(
    flags: &Flags,
    extra: Option<Layer>,
    registry: &Registry,
) -> Result<EffectiveConfig, Failure> {
    // Nodes do not matter here, but a configuration has at least one.
    let (base, _) = Layer::from_value(json!({ "provider": registry.names().first() }));
    load(flags, base, extra, registry)
}

/// Runs a command with a client of the API server.
pub(super) async fn with_client<T>(
    config: &EffectiveConfig,
    command: impl AsyncFnOnce(&Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let options = ClientOptions { kubeconfig: config.kubeconfig.clone(), server: config.api_server.clone() };
    let supervisor = Supervisor::new();
    let outcome = match options.connect(&supervisor, Metrics::default()).await {
        Ok(client) => command(&client).await,
        Err(error) => Err(Failure::Configuration(vec![Problem::new("kubeconfig", error.to_string())])),
    };
    supervisor.shut_down(Duration::from_secs(1)).await;
    outcome
}
