//! The end of a node that shall leave nothing: its containers go with it.

use vk_pod_engine::volume::unmount_below;
use vk_provider::{Config, Context, Error, Result};
use vk_supervisor::Clock;

use super::LocalFactory;
use crate::config::Settings;

/// Removes everything that runs for a node, by force, with its network and its cgroups. Nobody may run the node meanwhile. A node of which
/// there is nothing is left alone.
pub async fn sweep(config: Config, context: Context) -> Result<()> {
    let settings = Settings::read(&config)?;
    let node_dir = settings.node_dir(&context);
    if !node_dir.join("local").exists() {
        return Ok(());
    }
    let (local, _) = Box::pin(LocalFactory::default().local(&settings, &context, &Clock::system())).await?;
    local.remove_all().await?;
    local.close().await?;
    // Volumes in memory are the engine's, which is not there any more.
    let mounted = node_dir.canonicalize().and_then(|path| unmount_below(&path));
    mounted.map_err(|error| Error::internal(format!("unmount what is below {}: {error}", node_dir.display())))
}
