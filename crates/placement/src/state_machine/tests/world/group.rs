//! Groups of pods, and what must hold whenever one of them loses its gate.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use vk_provider::placement::trial_node;

use super::World;
use crate::{effect::Input, names, pod_state, state_machine::tests::lower_cluster::cpus};

/// How long placement may not know that a pod is gone.
const BEHIND: Duration = Duration::from_secs(10);

impl World {
    /// A gated pod of a group.
    pub(in super::super) fn create_member(
        &mut self,
        name: &str,
        cpus: i64,
        group: &str,
        size: usize,
        change: Value,
    ) {
        let metadata =
            json!({"labels": {names::GROUP: group}, "annotations": {names::GROUP_SIZE: size.to_string()}});
        self.create_changed(name, cpus, &[json!({"metadata": metadata}), change]);
    }

    /// The watch of pods of groups that have succeeded.
    pub(super) fn announce_succeeded(&mut self, pod: Arc<Pod>) {
        if has_succeeded(&pod) && pod_state::group(&pod).is_some() {
            self.announce(&Input::PodSucceeded(pod));
        }
    }

    pub(super) fn announce_succeeded_gone(&mut self, pod: &Pod) {
        if has_succeeded(pod) {
            self.announce(&Input::SucceededPodGone(pod.metadata.uid.as_deref().unwrap().into()));
        }
    }

    pub(super) fn listed_succeeded(&self) -> Vec<Input> {
        let is_listed = |pod: &&Pod| has_succeeded(pod) && pod_state::group(pod).is_some();
        let pods: Vec<_> = self.pods.values().filter(is_listed).cloned().map(Arc::new).collect();
        let uids = pods.iter().filter_map(|pod| pod.metadata.uid.as_deref().map(Arc::from)).collect();
        pods.into_iter().map(Input::PodSucceeded).chain([Input::SucceededPodsListed(uids)]).collect()
    }

    /// The pods of a group.
    pub(in super::super) fn group(&self, key: &str) -> Vec<(&String, &Pod)> {
        self.pods.iter().filter(|(_, pod)| pod_state::group(pod).as_deref() == Some(key)).collect()
    }

    /// The groups.
    pub(in super::super) fn groups(&self) -> Vec<String> {
        let mut keys: Vec<_> = self.pods.values().filter_map(pod_state::group).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    pub(super) fn observe_group_change(&mut self, pod: &Pod) {
        if let Some(key) = pod_state::group(pod) {
            self.group_changes.insert(key, self.now);
        }
    }

    /// The pod is about to lose its gate: it goes to the node of the others, and if there are none, all of its group fit or are placed below.
    pub(super) fn check_group(&self, uid: &str, pod: &Pod, pin: Option<&str>) {
        let Some(key) = pod_state::group(pod) else { return };
        let node = pin.unwrap_or_else(|| panic!("{uid} is not pinned"));
        let place =
            |node: &str| if self.lower.contains_key(node) { node.to_owned() } else { "local".to_owned() };
        let others: Vec<_> = self.group(&key).into_iter().filter(|(other, _)| *other != uid).collect();
        let placed: Vec<_> = others.iter().filter_map(|(_, pod)| pod_state::placed_node(pod)).collect();
        for other in &placed {
            assert_eq!(place(other), place(node), "{uid} goes elsewhere than its group {key}: {placed:?}");
        }
        let is_settled = self.group_changes.get(&key).is_none_or(|at| *at + BEHIND < self.now);
        if !placed.is_empty() || !is_settled {
            return;
        }
        let size: usize = pod_state::group_size(pod).unwrap().parse().unwrap();
        let is_ready = |(other, pod): &&(&String, &Pod)| match trial_node(pod) {
            Some(on) => on == node && self.lower.get(on).is_some_and(|lower| lower.is_scheduled(other)),
            None => pod_state::nominated_node(pod).map(place) == Some(place(node)),
        };
        let succeeded = others.iter().filter(|(_, pod)| has_succeeded(pod)).count();
        let ready = 1 + others.iter().filter(is_ready).count() + succeeded;
        assert!(
            ready >= size,
            "{uid} loses its gate when {ready} of {size} pods of {key} are ready on {node}"
        );
    }

    /// A node with room for all pods of a group that could go there, if they wait; what they request, if so.
    pub(in super::super) fn room_for_group(&self, key: &str) -> Option<(String, Vec<i64>)> {
        let pods = self.group(key);
        let size: usize = pods.first().and_then(|(_, pod)| pod_state::group_size(pod)?.parse().ok())?;
        let placed: Vec<_> = pods.iter().filter_map(|(_, pod)| pod_state::placed_node(pod)).collect();
        let mut waiting: Vec<_> =
            pods.iter().filter(|(_, pod)| pod_state::gating(pod) == pod_state::Gating::Ours).collect();
        // Of more than it needs, the oldest are the group.
        waiting.sort_by_key(|(_, pod)| pod.metadata.creation_timestamp.as_ref().map(|time| time.0));
        let wanted: Vec<i64> =
            waiting.iter().map(|(_, pod)| cpus(pod)).take(size.saturating_sub(placed.len())).collect();
        if wanted.is_empty() || placed.is_empty() && wanted.len() < size {
            return None;
        }
        let mut nodes = self.lower.iter().filter(|(name, _)| placed.iter().all(|placed| placed == name));
        // A pod that waits below uses the upper node all the same.
        let total = wanted.iter().sum();
        let (node, _) =
            nodes.find(|(name, lower)| lower.fit_together(&wanted) && self.free_above(name, "") >= total)?;
        Some((node.clone(), wanted))
    }
}

fn has_succeeded(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Succeeded")
}
