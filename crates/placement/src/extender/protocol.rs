//! The messages of kube-scheduler's HTTP extenders. Keys are capitalised, because the Go types have no JSON tags.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::watched_pod::WatchedPod;

/// The arguments of `filter` and `prioritize`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ExtenderArgs {
    pub(super) pod: WatchedPod,
    /// `null` if the scheduler sends whole Node objects, without `nodeCacheCapable`.
    pub(super) node_names: Option<Vec<String>>,
}

/// The answer to `filter`.
///
/// `node_names` is always there: kube-scheduler takes an answer without it for one without nodes, and gives no reason.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct FilterResult {
    pub(super) node_names: Vec<String>,
    /// Nodes that may take the pod once other pods are gone: kube-scheduler tries preemption there.
    pub(super) failed_nodes: BTreeMap<String, String>,
    /// Nodes that do not take the pod, whatever else happens on them.
    pub(super) failed_and_unresolvable_nodes: BTreeMap<String, String>,
}

/// The score of one node, from 0 to 10.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct HostPriority {
    pub(super) host: String,
    pub(super) score: i64,
}

/// The arguments of `preempt`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct PreemptionArgs {
    pub(super) pod: WatchedPod,
    /// `null` if the scheduler sends whole pods, without `nodeCacheCapable`.
    pub(super) node_name_to_meta_victims: Option<BTreeMap<String, MetaVictims>>,
}

/// The answer to `preempt`: the nodes on which the scheduler may delete the victims.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct PreemptionResult {
    pub(super) node_name_to_meta_victims: BTreeMap<String, MetaVictims>,
}

/// The pods that would be deleted on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct MetaVictims {
    /// Go writes an empty list as `null`.
    pub(super) pods: Option<Vec<MetaPod>>,
    #[serde(rename = "NumPDBViolations", default)]
    pub(super) pdb_violations: i64,
}

/// One of these pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MetaPod {
    #[serde(rename = "UID")]
    pub(super) uid: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_are_read_as_kube_scheduler_writes_them() {
        let text = json!({"Pod": {"metadata": {"name": "a"}, "spec": {"containers": null}}, "Nodes": null, "NodeNames": ["n"]});
        let args: ExtenderArgs = serde_json::from_value(text).unwrap();
        assert_eq!(args.pod.0.metadata.name.as_deref(), Some("a"));
        assert_eq!(args.node_names, Some(vec!["n".to_owned()]));
        let victims = json!({"n": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}, "m": {"Pods": null}});
        let text = json!({"Pod": {}, "NodeNameToVictims": null, "NodeNameToMetaVictims": victims});
        let args: PreemptionArgs = serde_json::from_value(text).unwrap();
        let victims = args.node_name_to_meta_victims.unwrap();
        assert_eq!(
            (victims["n"].pods.as_ref().unwrap()[0].uid.as_str(), victims["n"].pdb_violations),
            ("u", 1)
        );
        assert_eq!(victims["m"], MetaVictims::default());
    }

    #[test]
    fn answers_always_name_the_nodes() {
        assert_eq!(
            json!(FilterResult::default()),
            json!({"NodeNames": [], "FailedNodes": {}, "FailedAndUnresolvableNodes": {}})
        );
        assert_eq!(json!(PreemptionResult::default()), json!({"NodeNameToMetaVictims": {}}));
        let score = HostPriority { host: "n".to_owned(), score: 3 };
        assert_eq!(json!([score]), json!([{"Host": "n", "Score": 3}]));
    }
}
