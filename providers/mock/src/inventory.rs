//! Scripted groups, for `virtual-kubelet groups` without a cloud.

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Deserialize;
use vk_provider::{
    Error, Inventory, PodRef, Quantity, Result,
    inventory::{Group, InventoryScope, Price, Size},
};

/// A group as written by the user.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct GroupScript {
    id: String,
    #[serde(default)]
    cluster: Option<String>,
    #[serde(default)]
    node: Option<String>,
    #[serde(default)]
    pod: Option<PodRef>,
    #[serde(default)]
    state: Option<String>,
    #[serde(default)]
    cpu: Option<Quantity>,
    #[serde(default)]
    memory: Option<Quantity>,
    #[serde(default)]
    price_per_hour: Option<f64>,
    #[serde(default)]
    currency: Option<String>,
    #[serde(default)]
    begin: Option<String>,
    #[serde(default)]
    end: Option<String>,
}

/// The scripted groups of one cluster.
#[derive(Debug)]
pub(crate) struct ScriptedInventory {
    groups: Vec<Group>,
}

// === impl GroupScript ===

impl GroupScript {
    /// Checks what was configured. The error says what to write instead.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.group(None).map(drop)
    }

    fn group(&self, cluster: Option<&str>) -> Result<Group, String> {
        let time = |key: &str, text: &Option<String>| {
            let parse = |text: &String| {
                let wrong =
                    |_| format!("{key}: `{text}` is not a time: write one such as 2026-01-01T00:00:00Z");
                text.parse::<Timestamp>().map_err(wrong)
            };
            text.as_ref().map(parse).transpose()
        };
        let size = self.cpu.zip(self.memory).map(|(cpu, memory)| Size { cpu, memory, instance_type: None });
        let currency = || self.currency.clone().unwrap_or_else(|| "USD".to_owned());
        Ok(Group {
            cluster: self.cluster.clone().or_else(|| cluster.map(ToOwned::to_owned)),
            node: self.node.clone(),
            pod: self.pod.clone(),
            size,
            price: self.price_per_hour.map(|per_hour| Price { per_hour, currency: currency() }),
            begin: time("begin", &self.begin)?,
            end: time("end", &self.end)?,
            ..Group::new(&self.id, self.state.as_deref().unwrap_or("Running"))
        })
    }
}

// === impl ScriptedInventory ===

impl ScriptedInventory {
    pub(crate) fn new(scripts: &[GroupScript], cluster: Option<&str>) -> Result<Self> {
        let groups: Result<Vec<Group>, String> = scripts.iter().map(|script| script.group(cluster)).collect();
        Ok(Self { groups: groups.map_err(Error::invalid)? })
    }
}

#[async_trait]
impl Inventory for ScriptedInventory {
    async fn groups(&self, scope: &InventoryScope) -> Result<Vec<Group>> {
        let inside = |given: &Option<String>, of: &Option<String>| given.is_none() || given == of;
        let mut groups = self.groups.clone();
        groups.retain(|group| inside(&scope.cluster, &group.cluster) && inside(&scope.node, &group.node));
        Ok(groups)
    }

    async fn remove(&self, scope: &InventoryScope, id: &str) -> Result<()> {
        let exists = self.groups(scope).await?.iter().any(|group| group.id == id);
        if exists { Ok(()) } else { Err(Error::not_found(format!("there is no group {id}"))) }
    }
}
