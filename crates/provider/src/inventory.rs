//! What a backend holds and costs, for `virtual-kubelet groups`.

use std::fmt;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;

use crate::{PodRef, Quantity, Result};

/// Lists and removes the groups that a backend holds for virtual nodes. Opened by [`Factory::inventory`](crate::Factory::inventory), without a
/// node: it creates nothing, and the node may run elsewhere meanwhile.
#[async_trait]
pub trait Inventory: Send + Sync + 'static {
    /// All groups in the scope, also those that have ended and are still listed, and those that an earlier kind of provider created for
    /// the same cluster. Must be complete: a list that may lack groups is an error. Groups of others are never shown.
    async fn groups(&self, scope: &InventoryScope) -> Result<Vec<Group>>;

    /// Removes one group of the scope. `NotFound` if the scope has no such group, also if there is one of others with this id.
    ///
    /// The caller has made sure that the pod of the group does not exist. Returns as soon as the backend has accepted it.
    async fn remove(&self, scope: &InventoryScope, id: &str) -> Result<()>;
}

/// Which groups an [`Inventory`] lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InventoryScope {
    /// The name of the cluster in the backend's account; `None` for the one of the configuration, else of
    /// [`Context::cluster`](crate::Context::cluster). If none of them is known, the error is `Invalid` and says how to give it.
    pub cluster: Option<String>,
    /// The virtual node; `None` for all nodes of the cluster.
    pub node: Option<String>,
}

/// A group of containers that runs one pod in a backend.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The backend's id: unique, and accepted by [`Inventory::remove`].
    pub id: String,
    /// Its name, if it differs from the id.
    pub name: Option<String>,
    /// The cluster that it is marked with.
    pub cluster: Option<String>,
    /// The virtual node that it is marked with.
    pub node: Option<String>,
    /// The pod that it is marked with. `None` if its marks do not say.
    pub pod: Option<PodRef>,
    /// Its state, as the backend calls it.
    pub state: String,
    /// Its size, if the backend says.
    pub size: Option<Size>,
    /// What it costs while it runs; `None` if that is unknown.
    pub price: Option<Price>,
    /// Since when it is paid for.
    pub begin: Option<Timestamp>,
    /// Until when it was paid for; `None` if it still is.
    pub end: Option<Timestamp>,
    /// What is remarkable about it, such as that the provider of the Go project created it.
    pub remark: Option<String>,
}

/// The size of a group.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Size {
    /// CPUs.
    pub cpu: Quantity,
    /// Memory.
    pub memory: Quantity,
    /// The backend's instance type, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
}

/// A price.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Price {
    /// Per hour.
    pub per_hour: f64,
    /// `USD`, `CNY`, ...
    pub currency: String,
}

// === impl Group ===

impl Group {
    /// A group of which only the id and the state are known.
    pub fn new(id: impl Into<String>, state: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            state: state.into(),
            name: None,
            cluster: None,
            node: None,
            pod: None,
            size: None,
            price: None,
            begin: None,
            end: None,
            remark: None,
        }
    }

    /// For how long it has been paid for, in seconds; not negative.
    pub fn paid_seconds(&self, now: Timestamp) -> Option<f64> {
        let end = self.end.unwrap_or(now);
        Some((end.duration_since(self.begin?).as_secs_f64()).max(0.0))
    }

    /// What it has cost until now, in the currency of its price: an estimate from the list price.
    pub fn cost(&self, now: Timestamp) -> Option<f64> {
        Some(self.price.as_ref()?.per_hour * self.paid_seconds(now)? / 3_600.0)
    }
}

// === Display ===

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.cpu, self.memory)?;
        self.instance_type.iter().try_for_each(|name| write!(f, " ({name})"))
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.4} {}", self.per_hour, self.currency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_the_price_of_the_time_that_is_paid_for() {
        let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        let now: Timestamp = "2026-01-01T03:12:00Z".parse().unwrap();
        let mut group = Group::new("eci-1", "Running");
        assert_eq!(group.cost(now), None, "neither price nor time");
        group.price = Some(Price { per_hour: 0.1224, currency: "USD".into() });
        assert_eq!(group.cost(now), None, "no time");
        group.begin = at("2026-01-01T00:00:00Z");
        assert!((group.cost(now).unwrap() - 0.39168).abs() < 1e-9);
        group.end = at("2026-01-01T01:00:00Z");
        assert!((group.cost(now).unwrap() - 0.1224).abs() < 1e-9, "nothing is paid after its end");
        group.begin = at("2026-01-01T04:00:00Z");
        assert_eq!(group.cost(now), Some(0.0), "the clocks differ");
    }
}
