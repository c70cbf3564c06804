//! Which lower nodes count.

use k8s_openapi::api::core::v1::{Node, Taint, Toleration};
use vk_provider::taint::tolerates;

use super::Share;
use crate::names::label;

/// Whether a lower node can take pods of the virtual node: it is selected, Ready and not cordoned, it is a real one unless virtual ones are
/// wanted, and the pods tolerate its taints.
pub fn is_eligible(node: &Node, share: &Share) -> bool {
    let selected =
        || share.selector.iter().all(|(key, value)| label(&node.metadata, key) == Some(value.as_str()));
    let is_virtual = || label(&node.metadata, "type") == Some("virtual-kubelet");
    is_ready(node)
        && !is_cordoned(node)
        && selected()
        && (share.virtual_nodes || !is_virtual())
        && untolerated(node, &share.tolerations).is_none()
}

pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.filter(|condition| condition.type_ == "Ready").any(|condition| condition.status == "True")
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

/// A taint that keeps pods away. One that only discourages does not.
fn untolerated<'a>(node: &'a Node, tolerations: &[Toleration]) -> Option<&'a Taint> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let mut hard = taints.filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"));
    hard.find(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}
