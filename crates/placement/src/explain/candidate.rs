//! One node and one pod.

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use vk_provider::{
    ability::{LowerNode, Verdict},
    node_selector::{required_affinity, selects},
    placement::FitAnswer,
    taint::tolerates,
};

use super::machines::machines_verdict;
use crate::{ask::AskError, choose::LOCAL, pod_state};

/// The obstacle of nodes that a pod does not select.
pub(crate) const NOT_SELECTED: &str = "node selector or affinity does not match";

/// What is known about a pod on a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The name of the node; `local` for the cluster's own machines together.
    pub node: String,
    /// Whether the node is Ready.
    pub is_ready: bool,
    /// Whether the node is cordoned.
    pub is_cordoned: bool,
    /// Whether the node matches the node selector and the required node affinity of the pod.
    pub is_selected: bool,
    /// The first taint of the node that keeps the pod off.
    pub untolerated: Option<Taint>,
    /// What the node says, or why it says nothing.
    pub answer: Result<NodeAnswer, AskError>,
}

/// A node's answer about one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAnswer {
    /// Whether it would take the pod.
    pub verdict: Verdict,
    /// The lower nodes that come closest, best first.
    pub best_nodes: Vec<LowerNode>,
}

// === impl Candidate ===

impl Candidate {
    /// Compares a pod with the Node object, and adds the node's answer about this one pod.
    pub fn new(node: &Node, pod: &Pod, answer: Result<FitAnswer, AskError>) -> Self {
        let name = node.metadata.name.clone().unwrap_or_default();
        let (pod_spec, node_spec) = (pod.spec.as_ref(), node.spec.as_ref());
        let labels = node.metadata.labels.as_ref();
        let is_selected = pod_spec.is_none_or(|spec| {
            let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
            selects(spec.node_selector.as_ref(), required_affinity(spec), &label, &name)
        });
        let taints = node_spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let tolerations = pod_spec.and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
        let keeps_off = |taint: &&Taint| {
            matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
                && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
        };
        Self {
            is_ready: is_ready(node),
            is_cordoned: node_spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
            is_selected,
            untolerated: taints.iter().find(keeps_off).cloned(),
            answer: answer.and_then(NodeAnswer::of_one_pod),
            node: name,
        }
    }

    /// Whether the pod can be bound to the node and fits for sure.
    pub fn fits(&self) -> bool {
        self.obstacle().is_none() && self.answer.as_ref().is_ok_and(|answer| answer.verdict.fits())
    }

    /// What keeps a pod from being bound to a node, on one line, whatever the node says.
    pub(crate) fn obstacle_of(node: &Node, pod: &Pod) -> Option<String> {
        if let Some(why) = pod_state::too_large(pod) {
            return Some(why.to_owned());
        }
        Self::new(node, pod, Err(AskError::NotOffered)).obstacle()
    }

    /// What keeps the pod from being bound to the node, on one line, whether or not it fits.
    pub fn obstacle(&self) -> Option<String> {
        if !self.is_selected {
            return Some(NOT_SELECTED.to_owned());
        }
        if !self.is_ready {
            return Some("not ready".to_owned());
        }
        if self.is_cordoned {
            return Some("cordoned".to_owned());
        }
        let taint = self.untolerated.as_ref()?;
        Some(format!("taint {} is not tolerated", shown(taint)))
    }

    /// The node's verdict on one line, or why there is none.
    pub fn verdict(&self) -> String {
        match &self.answer {
            Ok(answer) if self.node == LOCAL => machines_verdict(&answer.verdict),
            Ok(answer) => answer.verdict.to_string(),
            Err(error) => format!("not asked: {error}"),
        }
    }

    /// Why the pod can go to the node or not, on one line: what keeps it from being bound, or else the verdict.
    pub fn reason(&self) -> String {
        self.obstacle().unwrap_or_else(|| self.verdict())
    }
}

// === impl NodeAnswer ===

impl NodeAnswer {
    fn of_one_pod(answer: FitAnswer) -> Result<Self, AskError> {
        let nothing = || AskError::Invalid("no verdict".to_owned());
        let verdict = answer.verdicts.into_iter().next().ok_or_else(nothing)?;
        let best_nodes = answer.best_nodes.and_then(|all| all.into_iter().next()).unwrap_or_default();
        Ok(Self { verdict, best_nodes })
    }
}

/// Whether a node is Ready.
pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// `key=value:effect`, as kubectl writes it.
fn shown(taint: &Taint) -> String {
    match taint.value.as_deref().filter(|value| !value.is_empty()) {
        Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
        None => format!("{}:{}", taint.key, taint.effect),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn candidate(node: Value, pod: Value) -> Candidate {
        let answer = FitAnswer { verdicts: vec![Verdict::Fits { room: 1, fullness: 9 }], best_nodes: None };
        let (node, pod) = (serde_json::from_value(node).unwrap(), serde_json::from_value(pod).unwrap());
        Candidate::new(&node, &pod, Ok(answer))
    }

    fn node(change: impl Fn(&mut Value)) -> Value {
        let mut node = json!({
            "metadata": {"name": "vk", "labels": {"zone": "north"}},
            "spec": {"taints": [
                {"key": "soft", "effect": "PreferNoSchedule"},
                {"key": "virtual-kubelet.io/provider", "value": "mock", "effect": "NoSchedule"},
            ]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        change(&mut node);
        node
    }

    fn tolerant(change: impl Fn(&mut Value)) -> Value {
        let mut pod = json!({"spec": {
            "containers": [],
            "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
        }});
        change(&mut pod);
        pod
    }

    #[test]
    fn a_pod_that_selects_and_tolerates_a_ready_node_has_its_verdict() {
        let pod = tolerant(|pod| pod["spec"]["nodeSelector"] = json!({"zone": "north"}));
        let found = candidate(node(|_| {}), pod);
        assert_eq!((found.fits(), found.obstacle()), (true, None));
        assert_eq!(found.reason(), "fits (room for 1, 9% full)");
    }

    #[test]
    fn the_state_of_a_node_that_a_pod_does_not_select_does_not_matter() {
        let node = node(|node| {
            node["status"] = json!({});
            node["spec"]["unschedulable"] = json!(true);
        });
        let pod =
            |zone: &'static str| tolerant(move |pod| pod["spec"]["nodeSelector"] = json!({"zone": zone}));
        assert_eq!(candidate(node.clone(), pod("south")).reason(), NOT_SELECTED);
        assert_eq!(candidate(node, pod("north")).reason(), "not ready");
    }

    #[test]
    fn what_keeps_a_pod_off_is_named_before_the_verdict() {
        let ready = |status: &'static str| {
            move |node: &mut Value| node["status"]["conditions"][0]["status"] = json!(status)
        };
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["other"]}]}],
        }}});
        for (node, pod, expected) in [
            (node(ready("False")), tolerant(|_| {}), "not ready"),
            (node(ready("Unknown")), tolerant(|_| {}), "not ready"),
            (node(|node| node["status"] = json!({})), tolerant(|_| {}), "not ready"),
            (node(|node| node["spec"]["unschedulable"] = json!(true)), tolerant(|_| {}), "cordoned"),
            (
                node(|_| {}),
                tolerant(|pod| pod["spec"]["nodeSelector"] = json!({"zone": "south"})),
                "node selector or affinity does not match",
            ),
            (
                node(|_| {}),
                tolerant(|pod| pod["spec"]["affinity"] = affinity.clone()),
                "node selector or affinity does not match",
            ),
            (
                node(|_| {}),
                tolerant(|pod| pod["spec"]["tolerations"] = json!([])),
                "taint virtual-kubelet.io/provider=mock:NoSchedule is not tolerated",
            ),
        ] {
            let found = candidate(node, pod);
            assert!(!found.fits(), "{expected}");
            assert_eq!(found.reason(), expected);
            assert_eq!(found.verdict(), "fits (room for 1, 9% full)");
        }
    }
}
