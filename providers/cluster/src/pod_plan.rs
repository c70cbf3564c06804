//! What becomes of a pod, by what is found below.

use k8s_openapi::api::core::v1::Pod;

use crate::{
    config::LostPodPolicy,
    names::{ORIGIN_NAME, ORIGIN_NAMESPACE, ORIGIN_UID, Owner, annotation, label},
};

/// What to do about a pod that is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodPlan {
    /// There is nothing: make it.
    Create,
    /// It is there.
    Adopt,
    /// A pod of its name that was ours is there still: it has to go first, under this UID.
    Await {
        /// The predecessor's.
        uid: String,
        /// Whether it is going already.
        going: bool,
    },
    /// A pod of its name is there that is not ours, which stays.
    Conflict,
    /// It ran, and somebody deleted it.
    Lost,
}

/// What to do about an upper pod, with the lower pod of its name that was found.
pub fn plan(upper: &Pod, found: Option<&Pod>, owner: &Owner, lost: LostPodPolicy) -> PodPlan {
    let Some(lower) = found else {
        return if has_run(upper) && !is_recreated(upper, lost) { PodPlan::Lost } else { PodPlan::Create };
    };
    if !owner.owns(&lower.metadata) {
        return PodPlan::Conflict;
    }
    if is_lower_pod_of(upper, lower) {
        return PodPlan::Adopt;
    }
    PodPlan::Await {
        uid: lower.metadata.uid.clone().unwrap_or_default(),
        going: lower.metadata.deletion_timestamp.is_some(),
    }
}

/// Whether a lower pod was made of this upper one, and of no namesake.
pub fn is_lower_pod_of(upper: &Pod, lower: &Pod) -> bool {
    let uid = upper.metadata.uid.as_deref();
    uid.is_some() && label(&lower.metadata, ORIGIN_UID) == uid
}

/// The upper pod that a lower one was made of: namespace, name and UID.
pub fn upper_pod_of(lower: &Pod) -> Option<(&str, &str, &str)> {
    let metadata = &lower.metadata;
    Some((
        annotation(metadata, ORIGIN_NAMESPACE)?,
        annotation(metadata, ORIGIN_NAME)?,
        label(metadata, ORIGIN_UID)?,
    ))
}

/// Whether a pod that ran and is lost is made again. What may run once only is not.
pub(crate) fn is_recreated(upper: &Pod, lost: LostPodPolicy) -> bool {
    let policy = upper.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    lost == LostPodPolicy::Recreate && policy != Some("Never")
}

/// Whether something of the pod was seen to run.
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

    fn owner() -> Owner {
        Owner { origin: "upper".to_owned(), node: "node".to_owned() }
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
    fn a_pod_that_never_ran_is_made() {
        for status in [json!({}), json!({"phase": "Pending"})] {
            assert_eq!(plan(&upper(&status), None, &owner(), LostPodPolicy::Fail), PodPlan::Create);
        }
    }

    #[test]
    fn a_pod_that_is_there_is_adopted_also_after_a_restart() {
        let there = lower("upper", "node", "u1");
        assert_eq!(plan(&upper(&json!({})), Some(&there), &owner(), LostPodPolicy::Fail), PodPlan::Adopt);
        assert_eq!(
            plan(&upper(&json!({"phase": "Running"})), Some(&there), &owner(), LostPodPolicy::Fail),
            PodPlan::Adopt
        );
        assert_eq!(upper_pod_of(&there), Some(("web", "a", "u1")));
    }

    #[test]
    fn a_namesake_that_was_ours_goes_first() {
        let mut there = lower("upper", "node", "u0");
        let awaits = |going| PodPlan::Await { uid: "l1".to_owned(), going };
        assert_eq!(plan(&upper(&json!({})), Some(&there), &owner(), LostPodPolicy::Fail), awaits(false));
        there.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
            "2026-01-01T00:00:00Z".parse().unwrap(),
        ));
        assert_eq!(plan(&upper(&json!({})), Some(&there), &owner(), LostPodPolicy::Fail), awaits(true));
    }

    #[test]
    fn what_is_not_ours_is_in_the_way_and_stays() {
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
    fn what_may_run_once_is_not_made_again() {
        let mut job = upper(&json!({"phase": "Running"}));
        job.spec.get_or_insert_default().restart_policy = Some("Never".to_owned());
        assert_eq!(plan(&job, None, &owner(), LostPodPolicy::Recreate), PodPlan::Lost);
    }

    #[test]
    fn a_pod_that_ran_and_is_gone_is_lost_unless_it_shall_come_again() {
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
