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

/// Connects to the API server of the configuration; the error says why it cannot. No request is made.
pub(super) async fn connect(config: &EffectiveConfig, supervisor: &Supervisor) -> Result<Client, String> {
    let options = ClientOptions { kubeconfig: config.kubeconfig.clone(), server: config.api_server.clone() };
    options.connect(supervisor, Metrics::default()).await.map_err(|error| error.to_string())
}

/// The id of the API server's cluster, which is its name in a cloud if the configuration of a provider names none; or why it cannot be read.
pub(super) async fn cluster_id(client: &Result<Client, String>) -> Result<String, String> {
    let client = client.as_ref().map_err(Clone::clone)?;
    vk_kube::cluster_id::cluster_id(client).await.map_err(|error| format!("{}: {error}", client.server()))
}

/// Runs a command with a client of the API server.
pub(super) async fn with_client<T>(
    config: &EffectiveConfig,
    command: impl AsyncFnOnce(&Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let supervisor = Supervisor::new();
    let outcome = match connect(config, &supervisor).await {
        Ok(client) => command(&client).await,
        Err(error) => Err(Failure::Configuration(vec![Problem::new("kubeconfig", error)])),
    };
    supervisor.shut_down(Duration::from_secs(1)).await;
    outcome
}
