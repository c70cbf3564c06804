//! What kube-scheduler knows and placement does not.

use k8s_openapi::api::core::v1::Pod;

use super::World;
use crate::{names, pod_state};

impl World {
    /// The node on which kube-scheduler would bind a pod. A node selector is a requirement, and a nomination is not.
    pub(super) fn choose(&self, pod: &Pod) -> Option<String> {
        let is_allowed =
            |node: &&str| self.nodes.contains_key(*node) && self.forbidden.as_deref() != Some(node);
        let selector = pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
        if let Some(pinned) = selector.and_then(|selector| selector.get(names::HOSTNAME)) {
            return Some(pinned.as_str()).filter(is_allowed).map(str::to_owned);
        }
        let nominated = pod_state::nominated_node(pod).filter(|node| self.nodes.contains_key(*node))?;
        let mut others = self.lower.keys().map(String::as_str);
        Some(nominated).filter(is_allowed).or_else(|| others.find(is_allowed)).map(str::to_owned)
    }
}
