//! Removal of everything that a node left on the host.

use vk_pod_engine::volume::unmount_below;
use vk_provider::{Config, Context, Error, Result};
use vk_supervisor::Clock;

use super::LocalFactory;
use crate::config::Settings;

/// Kills and removes everything that runs for a node, with its network and its cgroups. The node must not be running.
/// Does nothing if there is no such node.
pub async fn sweep(config: Config, context: Context) -> Result<()> {
    let settings = Settings::read(&config)?;
    let node_dir = settings.node_dir(&context);
    if !node_dir.join("local").exists() {
        return Ok(());
    }
    let (local, _) = Box::pin(LocalFactory::default().local(&settings, &context, &Clock::system())).await?;
    local.remove_all().await?;
    local.close().await?;
    // Volumes in memory belong to the engine, which is not running.
    let mounted = node_dir.canonicalize().and_then(|path| unmount_below(&path));
    mounted.map_err(|error| Error::internal(format!("unmount volumes below {}: {error}", node_dir.display())))
}
