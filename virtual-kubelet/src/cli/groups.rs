//! `virtual-kubelet groups`.

mod pod_check;
mod removal;
mod report;

use std::{sync::Arc, time::Duration};

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use vk_provider::{
    Inventory,
    inventory::{Group, InventoryScope},
};
use vk_supervisor::{Clock, Supervisor};

use self::{
    pod_check::{ClusterPods, PodFate, pod_fate},
    report::Row,
};
use super::{
    Failure, Flags,
    connection::{cluster_id, connect},
    explain_pod::provider_failure,
    load,
    output::{print, print_diagnostic},
};
use crate::{
    Registry,
    config::{EffectiveConfig, Layer},
    run::{address, context},
};

/// Lists what a cloud holds for the virtual nodes of this cluster, and what it costs.
///
/// A group is orphaned if the API server has no pod with the UID that the group is marked with. Without access to the API server nothing is
/// called orphaned. Needs permission to list pods, and to get the namespace kube-system unless the configuration of the provider names the
/// cluster.
#[derive(Debug, Args)]
pub(super) struct Groups {
    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    output: Output,
    /// Only groups of this virtual node
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Groups of the cluster with this name in the account [default: that of the provider's configuration, else of the API server]
    #[arg(long, value_name = "NAME")]
    cluster_name: Option<String>,
    /// Only groups whose pod does not exist
    #[arg(long)]
    orphaned: bool,
    /// Remove a group whose pod does not exist; may be repeated
    #[arg(long, value_name = "ID")]
    remove: Vec<String>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// The list of one provider.
struct Holding {
    provider: String,
    inventory: Arc<dyn Inventory>,
    groups: Vec<Group>,
}

// === impl Groups ===

impl Groups {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        let config = load(&before.overlaid_with(self.flags.clone()), Layer::default(), None, registry)?;
        let supervisor = Supervisor::new();
        let outcome = self.list_or_remove(&config, registry, &supervisor).await;
        supervisor.shut_down(Duration::from_secs(1)).await;
        outcome
    }

    async fn list_or_remove(
        &self,
        config: &EffectiveConfig,
        registry: &Registry,
        supervisor: &Supervisor,
    ) -> Result<(), Failure> {
        let client = connect(config, supervisor).await;
        let cluster = cluster_id(&client).await.ok();
        let scope = InventoryScope { cluster: self.cluster_name.clone(), node: self.node.clone() };
        let holdings = holdings(config, registry, cluster.as_deref(), &scope, supervisor).await?;
        // After the groups: a pod that a group was created for existed before it.
        let pods = ClusterPods::read(&client, cluster).await;
        if self.remove.is_empty() {
            return self.list(&holdings, &pods);
        }
        let client = client.as_ref().ok();
        removal::remove(&self.remove, &holdings, &pods, &scope, client).await
    }

    fn list(&self, holdings: &[Holding], pods: &ClusterPods) -> Result<(), Failure> {
        let now = Clock::system().now();
        let named = self.cluster_name.is_some();
        let mut rows: Vec<Row<'_>> = Vec::new();
        for holding in holdings {
            for group in &holding.groups {
                let fate = pod_fate(group, holding, pods, named);
                rows.push(Row { provider: &holding.provider, group, fate });
            }
        }
        rows.sort_by(|a, b| a.order().cmp(&b.order()));
        let undecided = rows.iter().find_map(|row| match &row.fate {
            PodFate::Unknown(why) => Some(why.clone()),
            _ => None,
        });
        if let Some(why) = undecided {
            print_diagnostic("warning", &format!("cannot tell which groups are orphaned: {why}"));
        }
        if self.orphaned {
            rows.retain(Row::is_orphaned);
        }
        Ok(print(&match self.output {
            Output::Text => report::text(&rows, now),
            Output::Json => format!("{:#}\n", report::json(&rows, now)),
        })?)
    }
}

/// The groups of every provider that has an inventory.
async fn holdings(
    config: &EffectiveConfig,
    registry: &Registry,
    cluster: Option<&str>,
    scope: &InventoryScope,
    supervisor: &Supervisor,
) -> Result<Vec<Holding>, Failure> {
    let detected = address::internal_ip("");
    let (mut holdings, mut without) = (Vec::new(), Vec::new());
    for node in config.distinct_providers() {
        let Some(factory) = registry.get(&node.provider) else { continue };
        let mut context = context(node, detected, &config.state_dir, supervisor.child());
        context.cluster = cluster.map(ToOwned::to_owned);
        let fail = |error: vk_provider::Error| provider_failure(&node.provider, &error);
        let opened = factory.inventory(node.provider_config.clone(), context).await.map_err(fail)?;
        let Some(inventory) = opened else {
            without.push(node.provider.as_str());
            continue;
        };
        let groups = inventory.groups(scope).await.map_err(fail)?;
        holdings.push(Holding { provider: node.provider.clone(), inventory, groups });
    }
    if holdings.is_empty() {
        without.dedup();
        let names = without.join(", ");
        return Err(anyhow!(
            "provider {names}: its pods are not in groups of containers of a cloud, so there is nothing to list"
        )
        .into());
    }
    Ok(holdings)
}
