//! The status that is reported for each pod.

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use vk_provider::{Error, PodRef, Result};

use super::{VirtualNode, pod_creation::replaced};
use crate::{
    config::LostStatefulSetPolicy,
    names::SCHEDULED,
    pod_plan,
    status::{NODE_LOST, POD_DELETED, failed_status, has_ended, upper_status},
};

/// The reason of pods that are not run in the lower cluster.
pub(super) const NOT_OFFLOADED: &str = "NotOffloaded";
/// The reason of pods that the lower cluster rejects.
const REJECTED: &str = "LowerAdmissionRejected";

impl VirtualNode {
    pub(super) async fn status(&self, pod: &PodRef) -> Result<PodStatus> {
        let known = self.records.lock().get(pod);
        if let Some(lower) = self.lower_pod(pod) {
            // While the watch is interrupted, its state is not trusted for a pod that is stopping.
            if !known.stopping || self.lower.is_watch_healthy() {
                return Ok(self.report(pod, &lower));
            }
        } else if let Some(why) = known.upper.as_deref().and_then(|upper| self.not_offloaded(upper)) {
            return if known.stopping { Err(absent(pod)) } else { Ok(not_offloaded_status(why)) };
        }
        // A pod that the watch does not know is only missing if the watch is complete.
        self.check_synced_for(pod)?;
        if let Some(lower) = known.recently_created() {
            return Ok(self.report(pod, &lower));
        }
        if let Some(lower) = self.read_lower_pod(pod).await? {
            return Ok(self.report(pod, &lower));
        }
        if known.stopping {
            self.forget_pod(pod);
            return Err(absent(pod));
        }
        self.missing_status(pod).ok_or_else(|| absent(pod))
    }

    /// Pods without a known lower pod that have a status all the same.
    pub(super) fn pods_without_lower(&self) -> Vec<(PodRef, PodStatus)> {
        let known = self.records.lock().pods();
        let status_of = |pod: PodRef| {
            if self.lower_pod(&pod).is_some() {
                return None;
            }
            let known = self.records.lock().get(&pod);
            let not_offloaded_status =
                known.upper.as_deref().and_then(|upper| self.not_offloaded(upper)).map(not_offloaded_status);
            let recently_created = || known.recently_created().map(|lower| self.report(&pod, &lower));
            let status =
                not_offloaded_status.or_else(recently_created).or_else(|| self.missing_status(&pod))?;
            Some((pod, status))
        };
        known.into_iter().filter_map(status_of).collect()
    }

    /// The status of a pod with this lower pod.
    pub(super) fn report(&self, pod: &PodRef, lower: &Pod) -> PodStatus {
        let known = self.records.lock().get(pod);
        // Until the core passes the upper pod, the lower pod is all that is known.
        let upper = known.upper.as_deref().unwrap_or(lower);
        let status = upper_status(lower, upper, replaced(lower));
        if known.stopping || !self.is_stuck(lower) {
            return status;
        }
        let wait = self.settings.lost_stateful_sets == LostStatefulSetPolicy::Wait;
        if wait && may_get_successor_of_same_name(upper) {
            let message = format!(
                "the lower node {} is unreachable: its containers may be running, so the pod stays until the lower cluster confirms \
                 their end; if you know that the machine is off, delete the lower pod with force",
                lower.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default(),
            );
            return PodStatus { reason: Some(NODE_LOST.to_owned()), message: Some(message), ..status };
        }
        let message = format!(
            "the lower node {} is unreachable, and its pod should have terminated {:?} ago",
            lower.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default(),
            self.settings.lost_after,
        );
        failed_status(upper, Some(&status), NODE_LOST, &message)
    }

    /// The status of a pod whose lower pod is missing although nobody stopped it; `None` if it can be created.
    pub(super) fn missing_status(&self, pod: &PodRef) -> Option<PodStatus> {
        let known = self.records.lock().get(pod);
        let upper = known.upper.as_deref()?;
        if let Some(why) = known.rejected {
            return Some(PodStatus {
                phase: Some("Failed".to_owned()),
                reason: Some(REJECTED.to_owned()),
                message: Some(why),
                ..PodStatus::default()
            });
        }
        let last = known.last.as_deref().map(|last| (last, upper_status(last, upper, replaced(last))));
        if let Some((last, status)) = &last
            && has_ended(last)
        {
            return Some(status.clone());
        }
        let ran = pod_plan::has_run(upper) || last.as_ref().is_some_and(|(last, _)| pod_plan::has_run(last));
        if !ran || pod_plan::is_recreated(upper, self.settings.lost) {
            return None;
        }
        let message = "somebody deleted the pod in the lower cluster";
        Some(failed_status(upper, last.as_ref().map(|(_, status)| status), POD_DELETED, message))
    }

    /// Why a pod is not run in the lower cluster; `None` if it is. The nodes of the lower cluster have DaemonSet pods of their own.
    pub(super) fn not_offloaded(&self, upper: &Pod) -> Option<String> {
        let namespace = upper.metadata.namespace.as_deref().unwrap_or_default();
        if self.settings.ignored_namespaces.iter().any(|ignored| ignored == namespace) {
            return Some(format!("pods of namespace {namespace} are not run in the lower cluster"));
        }
        let mut owners = upper.metadata.owner_references.iter().flatten();
        let of_every_node = owners.any(|owner| owner.kind == "DaemonSet" && owner.controller == Some(true));
        (of_every_node && !self.settings.daemon_sets).then(|| {
            "pods of DaemonSets are not run in the lower cluster, whose nodes have their own: exclude this node with node affinity".to_owned()
        })
    }

    /// Whether a lower pod should have terminated long ago, but its node is not there to confirm it.
    pub(super) fn is_stuck(&self, lower: &Pod) -> bool {
        let Some(due) = &lower.metadata.deletion_timestamp else { return false };
        let late = self.clock.now().duration_since(due.0);
        let node = lower.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
        late > jiff::SignedDuration::try_from(self.settings.lost_after).unwrap_or(jiff::SignedDuration::MAX)
            && self.lower.has_node(node) != Some(true)
            && !has_ended(lower)
    }
}

/// Whether another pod of the same name may be created when this one has failed. Two of them must not run: they would write to the same
/// volumes, and both believe to be the member that the name stands for. Only pods without a controller, and those of controllers
/// that give every pod a new name, are known to be safe.
fn may_get_successor_of_same_name(upper: &Pod) -> bool {
    let mut owners = upper.metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    controller.is_some_and(|owner| {
        !matches!(owner.kind.as_str(), "ReplicaSet" | "ReplicationController" | "Job" | "DaemonSet")
    })
}

/// The status of a pod that stays pending because it is not offloaded.
fn not_offloaded_status(why: String) -> PodStatus {
    PodStatus {
        phase: Some("Pending".to_owned()),
        conditions: Some(vec![PodCondition {
            type_: SCHEDULED.to_owned(),
            status: "False".to_owned(),
            reason: Some(NOT_OFFLOADED.to_owned()),
            message: Some(why),
            ..PodCondition::default()
        }]),
        ..PodStatus::default()
    }
}

fn absent(pod: &PodRef) -> Error {
    Error::not_found(format!("pod {pod} is not in the lower cluster"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_controllers_that_name_pods_anew_let_a_lost_pod_fail() {
        let of = |kind: &str| -> Pod {
            let owner =
                json!({"apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": true});
            serde_json::from_value(json!({"metadata": {"ownerReferences": [owner]}})).unwrap()
        };
        for kind in ["StatefulSet", "StrimziPodSet", "Cluster"] {
            assert!(may_get_successor_of_same_name(&of(kind)), "{kind}");
        }
        for kind in ["ReplicaSet", "ReplicationController", "Job", "DaemonSet"] {
            assert!(!may_get_successor_of_same_name(&of(kind)), "{kind}");
        }
        assert!(!may_get_successor_of_same_name(&Pod::default()), "nobody creates it again");
    }
}
