//! Opens the mock from its configuration.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use vk_provider::{
    Abilities, Backend, Config, Context, ExplainRequest, Explanation, Factory, Inventory, Result, SingleNode,
};

use crate::{config::Settings, explanation::explain, inventory::ScriptedInventory, mock::Mock};

/// How long to wait for the backend process before returning `Unavailable`.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// The factory of the provider `mock`.
#[derive(Clone, Copy, Debug, Default)]
pub struct MockFactory;

#[async_trait]
impl Factory for MockFactory {
    fn name(&self) -> &'static str {
        "mock"
    }

    fn description(&self) -> &'static str {
        "pods that live in memory, with a life that can be scripted"
    }

    fn abilities(&self) -> Abilities {
        Abilities { logs: true, exec: true, attach: true, port_forward: true, stats: true, fit: true }
    }

    async fn open(&self, config: Config, context: Context) -> Result<Arc<dyn Backend>> {
        let settings = Settings::read(&config, &context.node_name)?;
        let mock =
            Mock::builder(context.node_name.as_str()).settings(settings).host_ip(context.internal_ip).build();
        mock.connected(CONNECT_LIMIT).await?;
        Ok(Arc::new(SingleNode::new(&context, mock)))
    }

    async fn explain(
        &self,
        config: Config,
        context: Context,
        request: ExplainRequest,
    ) -> Result<Explanation> {
        Ok(explain(&request.pod, &Settings::read(&config, &context.node_name)?.fields))
    }

    async fn inventory(&self, config: Config, context: Context) -> Result<Option<Arc<dyn Inventory>>> {
        let settings = Settings::read(&config, &context.node_name)?;
        let Some(groups) = settings.groups else { return Ok(None) };
        Ok(Some(Arc::new(ScriptedInventory::new(&groups, context.cluster.as_deref())?)))
    }
}
