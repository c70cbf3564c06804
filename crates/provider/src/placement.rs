//! How the placement of pods finds nodes that can be asked whether pods fit, and how it asks them over HTTP.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Node, Pod};
use serde::{Deserialize, Serialize};

use crate::ability::{Fit, LowerNode, Verdict};

/// Annotation of a Node: what placement can ask of it, as a comma-separated list such as `fit`.
pub const PLACEMENT_ANNOTATION: &str = "virtual-kubelet.io/placement";
/// The entry of [`PLACEMENT_ANNOTATION`] for nodes with the ability [`Fit`].
pub const FIT: &str = "fit";
/// Annotation of a Node: the fingerprint of the key with which its kubelet API is served. Placement sends its token to no other server.
pub const SERVING_KEY_ANNOTATION: &str = "virtual-kubelet.io/serving-key";

/// The path of the kubelet API at which a [`FitQuery`] is answered with a [`FitAnswer`]. Callers need `create nodes/placement`.
pub const FIT_PATH: &str = "/placement/fit";
/// Limit of a query in bytes: about a thousand pods.
pub const MAX_QUERY_BYTES: usize = 8 << 20;
/// Lower nodes that are named for each pod if a query asks for an explanation.
const BEST_NODES: usize = 3;

/// The arguments of [`Fit::fit`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FitQuery {
    /// Pods that are present in addition to those of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<Arc<Pod>>,
    /// The pods in question, in order.
    pub pods: Vec<Arc<Pod>>,
    /// UIDs of pods that are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<Arc<str>>,
    /// Also name the best lower nodes for each pod.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub explain: bool,
}

/// The answer to a [`FitQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FitAnswer {
    /// One verdict for each pod, in their order.
    pub verdicts: Vec<Verdict>,
    /// The best lower nodes for each pod, in their order, if the query asked for an explanation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_nodes: Option<Vec<Vec<LowerNode>>>,
}

// === impl FitQuery ===

impl FitQuery {
    /// Asks a provider.
    pub fn evaluate(&self, fit: &dyn Fit) -> FitAnswer {
        let best_nodes = || self.pods.iter().map(|pod| fit.best_nodes(pod, BEST_NODES)).collect();
        FitAnswer {
            verdicts: fit.fit(&self.held, &self.pods, &self.without),
            best_nodes: self.explain.then(best_nodes),
        }
    }
}

/// Whether a node says that it can be asked whether pods fit.
pub fn declares_fit(node: &Node) -> bool {
    annotation(node, PLACEMENT_ANNOTATION)
        .is_some_and(|list| list.split(',').any(|entry| entry.trim() == FIT))
}

/// The fingerprint of the key with which a node's kubelet API is served.
pub fn serving_key(node: &Node) -> Option<&str> {
    annotation(node, SERVING_KEY_ANNOTATION)
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    let all: &BTreeMap<String, String> = node.metadata.annotations.as_ref()?;
    all.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_declares_fit_by_an_entry_of_its_annotation() {
        let node = |value: &str| -> Node {
            serde_json::from_value(json!({"metadata": {"annotations": {PLACEMENT_ANNOTATION: value}}}))
                .unwrap()
        };
        assert!(
            declares_fit(&node("fit"))
                && declares_fit(&node("fit,trial"))
                && declares_fit(&node("trial, fit"))
        );
        assert!(!declares_fit(&node("")) && !declares_fit(&node("fitness")) && !declares_fit(&node("trial")));
        assert!(!declares_fit(&Node::default()));
    }

    #[test]
    fn a_query_needs_only_pods_and_no_unknown_fields() {
        let query: FitQuery = serde_json::from_value(json!({"pods": [{"metadata": {"name": "a"}}]})).unwrap();
        assert_eq!((query.pods.len(), query.held.len(), query.explain), (1, 0, false));
        assert_eq!(
            json!(query),
            json!({"pods": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}]})
        );
        assert!(serde_json::from_value::<FitQuery>(json!({"pods": [], "witout": []})).is_err());
        assert!(serde_json::from_value::<FitQuery>(json!({})).is_err());
    }

    #[test]
    fn an_answer_survives_json() {
        let free = BTreeMap::from([("cpu".to_owned(), "1500m".parse().unwrap())]);
        let answer = FitAnswer {
            verdicts: vec![Verdict::Fits { room: 1, fullness: 2 }],
            best_nodes: Some(vec![vec![LowerNode { name: "a".to_owned(), free }]]),
        };
        let text = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<FitAnswer>(&text).unwrap(), answer, "{text}");
        assert_eq!(json!(FitAnswer::default()), json!({"verdicts": []}));
    }
}
