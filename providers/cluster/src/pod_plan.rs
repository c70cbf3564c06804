//! Decides what to do about a pod, from the lower pod that was found.

use k8s_openapi::api::core::v1::Pod;

use crate::{
    config::LostPodPolicy,
    names::{ORIGIN_NAME, ORIGIN_NAMESPACE, ORIGIN_UID, OwnerId, annotation, label},
};

/// What to do about a pod that should run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodPlan {
    /// There is no lower pod: create it.
    Create,
    /// The lower pod exists.
    Adopt,
    /// A predecessor of ours has the name, or what a trial has left, and must be gone first.
    Await {
        /// The UID of the predecessor.
        uid: String,
        /// Whether the predecessor is already being deleted.
        going: bool,
    },
    /// A pod of somebody else has the name. It is left alone.
    Conflict,
    /// The pod ran, and somebody deleted the lower pod.
    Lost,
}

/// Plans for an upper pod and the lower pod of the same name, if there is one.
pub fn plan(upper: &Pod, found: Option<&Pod>, owner: &OwnerId, lost: LostPodPolicy) -> PodPlan {
    let Some(lower) = found else {
        return if has_run(upper) && !is_recreated(upper, lost) { PodPlan::Lost } else { PodPlan::Create };
    };
    if !owner.owns(&lower.metadata) {
        return PodPlan::Conflict;
    }
    let going = lower.metadata.deletion_timestamp.is_some();
    // A trial on this node is over, and the pod is to run here all the same.
    let is_left = going && upper.metadata.deletion_timestamp.is_none() && !has_run(upper);
    if is_lower_pod_of(upper, lower) && !is_left {
        return PodPlan::Adopt;
    }
    PodPlan::Await { uid: lower.metadata.uid.clone().unwrap_or_default(), going }
}

/// Whether a lower pod belongs to this upper pod, and not to one of the same name.
pub fn is_lower_pod_of(upper: &Pod, lower: &Pod) -> bool {
    let uid = upper.metadata.uid.as_deref();
    uid.is_some() && label(&lower.metadata, ORIGIN_UID) == uid
}

/// Namespace, name and UID of the upper pod that a lower pod belongs to.
pub fn upper_pod_of(lower: &Pod) -> Option<(&str, &str, &str)> {
    let metadata = &lower.metadata;
    Some((
        annotation(metadata, ORIGIN_NAMESPACE)?,
        annotation(metadata, ORIGIN_NAME)?,
        label(metadata, ORIGIN_UID)?,
    ))
}

/// Whether a lost pod is created again. A pod that may run only once is not.
pub(crate) fn is_recreated(upper: &Pod, lost: LostPodPolicy) -> bool {
    let policy = upper.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    lost == LostPodPolicy::Recreate && policy != Some("Never")
}

/// Whether a container of the pod was ever seen running.
pub(crate) fn has_run(upper: &Pod) -> bool {
    let Some(status) = &upper.status else { return false };
    let phase = status.phase.as_deref();
    let containers = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let mut states = containers.filter_map(|container| container.state.as_ref());
    matches!(phase, Some("Running" | "Succeeded" | "Failed"))
        || states.any(|state| state.running.is_some() || state.terminated.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::names::{NODE, ORIGIN};

    fn owner() -> OwnerId {
        OwnerId { origin: "upper".to_owned(), node: "node".to_owned() }
    }

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    fn upper(status: &Value) -> Pod {
        pod(json!({"metadata": {"namespace": "web", "name": "a", "uid": "u1"}, "status": status}))
    }

    fn lower(origin: &str, node: &str, uid: &str) -> Pod {
        pod(json!({"metadata": {"uid": "l1", "labels": {ORIGIN: origin, NODE: node, ORIGIN_UID: uid},
            "annotations": {ORIGIN_NAMESPACE: "web", ORIGIN_NAME: "a"}}}))
    }

    #[test]
    fn a_pod_that_never_ran_is_created() {
        for status in [json!({}), json!({"phase": "Pending"})] {
            assert_eq!(plan(&upper(&status), None, &owner(), LostPodPolicy::Fail), PodPlan::Create);
        }
    }

    #[test]
    fn an_existing_lower_pod_is_adopted() {
        let there = lower("upper", "node", "u1");
        assert_eq!(plan(&upper(&json!({})), Some(&there), &owner(), LostPodPolicy::Fail), PodPlan::Adopt);
        assert_eq!(
            plan(&upper(&json!({"phase": "Running"})), Some(&there), &owner(), LostPodPolicy::Fail),
            PodPlan::Adopt
        );
        assert_eq!(upper_pod_of(&there), Some(("web", "a", "u1")));
    }

    #[test]
    fn a_predecessor_is_deleted_first() {
        let mut there = lower("upper", "node", "u0");
        let awaits = |going| PodPlan::Await { uid: "l1".to_owned(), going };
        assert_eq!(plan(&upper(&json!({})), Some(&there), &owner(), LostPodPolicy::Fail), awaits(false));
        there.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
            "2026-01-01T00:00:00Z".parse().unwrap(),
        ));
        assert_eq!(plan(&upper(&json!({})), Some(&there), &owner(), LostPodPolicy::Fail), awaits(true));
    }

    #[test]
    fn what_is_left_of_a_trial_is_awaited_and_a_pod_that_ran_is_not() {
        let mut there = lower("upper", "node", "u1");
        there.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let awaits = PodPlan::Await { uid: "l1".to_owned(), going: true };
        let mut above = upper(&json!({"phase": "Pending"}));
        assert_eq!(plan(&above, Some(&there), &owner(), LostPodPolicy::Fail), awaits);
        let ran = upper(&json!({"phase": "Running"}));
        assert_eq!(plan(&ran, Some(&there), &owner(), LostPodPolicy::Fail), PodPlan::Adopt);
        above.metadata.deletion_timestamp.clone_from(&there.metadata.deletion_timestamp);
        assert_eq!(plan(&above, Some(&there), &owner(), LostPodPolicy::Fail), PodPlan::Adopt);
    }

    #[test]
    fn a_foreign_pod_is_a_conflict() {
        let foreign =
            [lower("other", "node", "u1"), lower("upper", "other", "u1"), pod(json!({"metadata": {}}))];
        for there in foreign {
            assert_eq!(
                plan(&upper(&json!({})), Some(&there), &owner(), LostPodPolicy::Fail),
                PodPlan::Conflict
            );
        }
    }

    #[test]
    fn a_pod_that_may_run_once_is_not_recreated() {
        let mut job = upper(&json!({"phase": "Running"}));
        job.spec.get_or_insert_default().restart_policy = Some("Never".to_owned());
        assert_eq!(plan(&job, None, &owner(), LostPodPolicy::Recreate), PodPlan::Lost);
    }

    #[test]
    fn a_deleted_pod_is_lost_or_recreated_by_policy() {
        let state = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1}}});
        for status in
            [json!({"phase": "Running"}), json!({"phase": "Pending", "initContainerStatuses": [state]})]
        {
            assert_eq!(plan(&upper(&status), None, &owner(), LostPodPolicy::Fail), PodPlan::Lost);
            assert_eq!(plan(&upper(&status), None, &owner(), LostPodPolicy::Recreate), PodPlan::Create);
        }
    }
}
