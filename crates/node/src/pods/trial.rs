//! Pods on trial: placement lets a node run a pod before it is bound, to learn whether the backend takes it.
//!
//! While a pod has the trial label with the name of a node, that node may have something of the pod in its backend, and no other node may. So
//! the node removes the label last: when the pod is bound to it, or when the trial is over and nothing of the pod is left. Until the pod is
//! bound, all that the node writes is what the scheduler of the backend decided.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use serde::{Serialize, Serializer};
use serde_json::json;
use vk_provider::{
    Provider,
    placement::{
        LONGEST_TRIAL, SCHEDULED_CONDITION, TRIAL_LABEL, TRIAL_UNTIL_ANNOTATION, trial_node, trial_until,
    },
};
use vk_supervisor::Now;

/// The longest value of a label.
const MAX_LABEL_VALUE: usize = 63;

/// Whether a node takes pods on trial. `restricted`: the process has the identity of a node, and is shown no pod before it is bound.
pub fn takes_trials(provider: &dyn Provider, node: &str, restricted: bool) -> bool {
    !restricted
        && node.len() <= MAX_LABEL_VALUE
        && provider.fit().is_some_and(vk_provider::ability::Fit::takes_trials)
}

/// What a pod is to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Assignment {
    /// It is bound to the node.
    Bound,
    /// It is on trial on the node, until this time of the controller's clock, or this time of the wall clock, which may be corrected.
    OnTrial { until: Duration, wall: Timestamp },
    /// Its trial on the node is over, and the node has not removed the label yet.
    TrialOver,
    /// It is none of the node's.
    NotOurs,
}

/// A write about a pod on trial: only to the version that was seen, because the pod may be on its way to another node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TrialPatch {
    uid: Arc<str>,
    version: String,
    change: TrialChange,
}

/// What is written about a pod on trial.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TrialChange {
    /// What the scheduler of the backend decided.
    Condition(PodCondition),
    /// Nothing of the pod is left.
    End,
}

// === impl Assignment ===

impl Assignment {
    pub(super) fn of(pod: &Pod, node: &str, now: Now) -> Self {
        if let Some(bound_to) = bound_to(pod) {
            return if bound_to == node { Self::Bound } else { Self::NotOurs };
        }
        if trial_node(pod) != Some(node) {
            return Self::NotOurs;
        }
        let Some(wall) = trial_until(pod).filter(|_| pod.metadata.deletion_timestamp.is_none()) else {
            return Self::TrialOver;
        };
        match Duration::try_from(wall.duration_since(now.wall)) {
            Ok(left) if left <= LONGEST_TRIAL => Self::OnTrial { until: now.elapsed + left, wall },
            _ => Self::TrialOver,
        }
    }
}

/// The node to which a pod is bound.
pub(super) fn bound_to(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// Whether an annotation or label says something about a trial, which is no change for the provider.
pub(super) fn is_about_trial(key: &str) -> bool {
    [TRIAL_LABEL, TRIAL_UNTIL_ANNOTATION, vk_provider::placement::PINNED_ANNOTATION].contains(&key)
}

/// The pod as a provider gets it: as if it were bound to the node.
pub(super) fn as_bound(pod: Arc<Pod>, node: &str) -> Arc<Pod> {
    if bound_to(&pod).is_some() {
        return pod;
    }
    let mut bound = Pod::clone(&pod);
    let spec = bound.spec.get_or_insert_default();
    spec.node_name = Some(node.to_owned());
    spec.scheduling_gates = None;
    Arc::new(bound)
}

// === impl TrialPatch ===

impl TrialPatch {
    pub(super) fn new(uid: Arc<str>, pod: &Pod, change: TrialChange) -> Self {
        Self { uid, version: pod.metadata.resource_version.clone().unwrap_or_default(), change }
    }

    /// What it changes.
    #[cfg(test)]
    pub(super) fn change(&self) -> &TrialChange {
        &self.change
    }

    /// The version that it changes.
    #[cfg(test)]
    pub(super) fn version(&self) -> &str {
        &self.version
    }
}

impl Serialize for TrialPatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut metadata = json!({"uid": &*self.uid, "resourceVersion": self.version});
        let condition = match &self.change {
            TrialChange::Condition(condition) => json!(condition),
            TrialChange::End => {
                metadata["labels"] = json!({TRIAL_LABEL: null});
                metadata["annotations"] = json!({TRIAL_UNTIL_ANNOTATION: null});
                json!({"$patch": "delete", "type": SCHEDULED_CONDITION})
            }
        };
        json!({"metadata": metadata, "status": {"conditions": [condition]}}).serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use vk_provider::placement::{ON_TRIAL_REASON, PLACED_CONDITION};

    use super::*;

    fn pod(bound_to: &str, trial: &str, until: &str) -> Pod {
        let placed = json!({"type": PLACED_CONDITION, "status": "Unknown", "reason": ON_TRIAL_REASON,
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let pod = json!({
            "metadata": {"labels": {TRIAL_LABEL: trial}, "annotations": {TRIAL_UNTIL_ANNOTATION: until}},
            "spec": {"nodeName": bound_to, "containers": [], "schedulingGates": [{"name": "g"}]},
            "status": {"conditions": [placed]},
        });
        serde_json::from_value(pod).unwrap()
    }

    fn now() -> Now {
        Now { elapsed: Duration::from_mins(1), wall: "2026-01-01T00:00:00Z".parse().unwrap() }
    }

    #[test]
    fn a_pod_is_this_nodes_if_it_is_bound_or_on_trial_here_until_a_time_that_can_be_believed() {
        let until = "2026-01-01T00:00:30Z";
        let wall = until.parse().unwrap();
        let on_trial = Assignment::OnTrial { until: Duration::from_secs(90), wall };
        for ((bound_to, trial, until), expected) in [
            (("vk", "", ""), Assignment::Bound),
            (("vk", "other", until), Assignment::Bound),
            (("other", "vk", until), Assignment::NotOurs),
            (("", "other", until), Assignment::NotOurs),
            (("", "vk", until), on_trial),
            (("", "vk", "2025-12-31T23:59:59Z"), Assignment::TrialOver),
            (("", "vk", "tomorrow"), Assignment::TrialOver),
        ] {
            let pod = pod(bound_to, trial, until);
            assert_eq!(Assignment::of(&pod, "vk", now()), expected, "{pod:?}");
        }
        let mut by_user = pod("", "vk", until);
        by_user.status = None;
        assert_eq!(Assignment::of(&by_user, "vk", now()), Assignment::TrialOver);
        let late = Now { wall: "2025-12-31T23:00:00Z".parse().unwrap(), ..now() };
        assert_eq!(Assignment::of(&pod("", "vk", until), "vk", late), Assignment::TrialOver, "a wrong clock");
        let mut deleted = pod("", "vk", until);
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!(until)).unwrap();
        assert_eq!(Assignment::of(&deleted, "vk", now()), Assignment::TrialOver);
        deleted.metadata.annotations = None;
        deleted.metadata.deletion_timestamp = None;
        assert_eq!(Assignment::of(&deleted, "vk", now()), Assignment::TrialOver);
    }

    #[test]
    fn a_provider_gets_a_pod_on_trial_as_if_it_were_bound() {
        let spec = as_bound(Arc::new(pod("", "vk", "")), "vk").spec.clone().unwrap();
        assert_eq!((spec.node_name.as_deref(), spec.scheduling_gates), (Some("vk"), None));
        let bound = Arc::new(pod("vk", "", ""));
        assert!(Arc::ptr_eq(&as_bound(Arc::clone(&bound), "vk"), &bound));
    }

    #[test]
    fn a_patch_changes_one_version_and_takes_back_all_that_the_trial_left() {
        let mut pod = pod("", "vk", "");
        pod.metadata.resource_version = Some("7".to_owned());
        let patch = |change| -> Value { json!(TrialPatch::new("u1".into(), &pod, change)) };
        assert_eq!(
            patch(TrialChange::End),
            json!({
                "metadata": {
                    "uid": "u1",
                    "resourceVersion": "7",
                    "labels": {TRIAL_LABEL: null},
                    "annotations": {TRIAL_UNTIL_ANNOTATION: null},
                },
                "status": {"conditions": [{"$patch": "delete", "type": SCHEDULED_CONDITION}]},
            })
        );
        let condition = PodCondition { status: "True".to_owned(), ..PodCondition::default() };
        let patch = patch(TrialChange::Condition(condition));
        assert_eq!(
            (&patch["metadata"]["labels"], &patch["status"]["conditions"][0]["status"]),
            (&Value::Null, &json!("True"))
        );
    }
}
