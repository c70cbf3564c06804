//! Opens backends, with retries.

use std::{sync::Arc, time::Duration};

use anyhow::anyhow;
use rand::{SeedableRng as _, rngs::StdRng};
use tracing::warn;
use vk_provider::{Backend, Context, Factory, error::Kind};
use vk_supervisor::Backoff;

use crate::{
    cli::Failure,
    config::{self, Problem},
};

/// Opens a backend. Retries while it is unavailable; a wrong configuration is an error.
pub(super) async fn open_backend(
    factory: &dyn Factory,
    node: &config::Node,
    context: &Context,
    limit: Option<Duration>,
) -> Result<Arc<dyn Backend>, Failure> {
    let deadline = limit.map(|limit| tokio::time::Instant::now() + limit);
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
    let mut rng = StdRng::from_rng(&mut rand::rng());
    loop {
        let error = match factory.open(node.provider_config.clone(), context.clone()).await {
            Ok(backend) => return Ok(backend),
            Err(error) => error,
        };
        let message = format!("node {}: provider {}: {}", node.name, node.provider, error.report());
        match error.kind() {
            Kind::Invalid | Kind::Unsupported => {
                return Err(Failure::Configuration(vec![Problem::new("providerConfig", message)]));
            }
            Kind::Denied => return Err(anyhow!(message).into()),
            _ => {}
        }
        let wait = backoff.next(error.kind().retry_after(), &mut rng);
        if deadline.is_some_and(|deadline| tokio::time::Instant::now() + wait > deadline) {
            return Err(anyhow!(message).into());
        }
        warn!(
            node = node.name,
            provider = node.provider,
            error = error.report(),
            "cannot open the backend: retrying"
        );
        tokio::time::sleep(wait).await;
    }
}
