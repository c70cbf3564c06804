//! Pods that wait although a node has room for them, and for how long.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;

use super::{
    SECOND,
    lower_cluster::{Behaviour, cpus},
    simulation::{MACHINES, places},
    world::World,
};
use crate::pod_state;

/// Since when which pods have waited although there was room all the time.
pub(super) struct IdleCapacity {
    limit: Duration,
    since: BTreeMap<String, Duration>,
}

// === impl IdleCapacity ===

impl IdleCapacity {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, since: BTreeMap::new() }
    }

    /// Lets time pass, and looks once a second.
    pub(super) fn watch(&mut self, world: &mut World, duration: Duration) -> Result<(), String> {
        let end = world.now + duration;
        while world.now < end {
            world.run_for(SECOND.min(end.saturating_sub(world.now)));
            self.check(world)?;
        }
        Ok(())
    }

    fn check(&mut self, world: &World) -> Result<(), String> {
        let waiting = world.pods.iter().filter_map(|(uid, pod)| Some((uid, pod, room(world, uid, pod)?)));
        let mut since = BTreeMap::new();
        for (uid, pod, node) in waiting {
            let begun = self.since.get(uid).copied().unwrap_or(world.now);
            let waited = world.now.saturating_sub(begun);
            if waited > self.limit {
                return Err(format!(
                    "{uid} with {} has waited for {waited:?} although {node} has room:\n{}",
                    cpus(pod),
                    places(world)
                ));
            }
            since.insert(uid.clone(), begun);
        }
        self.since = since;
        Ok(())
    }
}

/// A node that has room for a pod behind our gate, and tells the truth. Pods of groups do not count: see [`World::room_for_group`].
pub(super) fn room(world: &World, uid: &str, pod: &Pod) -> Option<String> {
    if pod_state::gating(pod) != pod_state::Gating::Ours || pod_state::group(pod).is_some() {
        return None;
    }
    let wanted = cpus(pod);
    let has_room = |name: &str| world.free_above(name, uid) >= wanted;
    let mut virtual_nodes = world.lower.iter();
    let virtual_node = virtual_nodes
        .find(|(name, lower)| lower.behaviour == Behaviour::Honest && lower.fits(wanted) && has_room(name));
    let machine = || MACHINES.into_iter().find(|name| has_room(name)).map(ToOwned::to_owned);
    virtual_node.map(|(name, _)| name.clone()).or_else(machine)
}
