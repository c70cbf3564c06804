//! The status that is reported for each pod.
//!
//! Most of it comes from the watch of the lower cluster. But a watch can fall silent without an error, so no pod is called lost, missing or
//! ended before the lower API server was asked.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};
use vk_provider::{Error, PodRef, Result, error::Kind, pod::may_get_successor_of_same_name};

use super::{VirtualNode, lower_error, pod_creation::replaced, pod_records::PodRecord};
use crate::{
    config::LostStatefulSetPolicy,
    names::SCHEDULED,
    pod_plan,
    status::{NODE_LOST, POD_DELETED, failed_status, has_ended, is_terminal, upper_status},
};

/// How many pods are read at a time when all are listed.
const CONCURRENT_READS: usize = 8;

/// The reason of pods that are not run in the lower cluster.
pub(super) const NOT_OFFLOADED: &str = "NotOffloaded";
/// The reason of pods that the lower cluster rejects.
const REJECTED: &str = "LowerAdmissionRejected";

impl VirtualNode {
    pub(super) async fn status(&self, pod: &PodRef) -> Result<PodStatus> {
        let known = self.records.lock().get(pod);
        if let Some(lower) = self.lower_pod(pod) {
            let status = self.report(pod, &lower);
            if !needs_confirmation(&known, &lower, &status) {
                return Ok(status);
            }
        } else if let Some(why) = known.upper.as_deref().and_then(|upper| self.not_offloaded(upper)) {
            return if known.stopping { Err(absent(pod)) } else { Ok(not_offloaded_status(why)) };
        }
        // A pod that the watch does not know is only missing if the watch is complete.
        self.check_synced_for(pod)?;
        if let Some(lower) = known.recently_created() {
            return Ok(self.report(pod, &lower));
        }
        if let Some(lower) = self.read_lower_pod(pod, None).await? {
            self.refresh_lower_node(&lower).await?;
            return Ok(self.report(pod, &lower));
        }
        if known.stopping {
            self.forget_pod(pod);
            return Err(absent(pod));
        }
        self.missing_status(pod).ok_or_else(|| absent(pod))
    }

    /// The statuses of all pods. Only pods that would be called lost, missing or ended are read.
    pub(super) async fn statuses(&self) -> Result<Vec<(PodRef, PodStatus)>> {
        let (mut certain, mut uncertain) = (Vec::new(), Vec::new());
        for (pod, lower) in self.own_pods() {
            let known = self.records.lock().get(&pod);
            let status = self.report(&pod, &lower);
            if needs_confirmation(&known, &lower, &status) {
                uncertain.push(pod);
            } else {
                certain.push((pod, status));
            }
        }
        let known = self.records.lock().pods();
        for pod in known.into_iter().filter(|pod| self.lower_pod(pod).is_none()) {
            match self.status_without_lower(&pod) {
                Some((status, false)) => certain.push((pod, status)),
                Some((_, true)) => uncertain.push(pod),
                None => {}
            }
        }
        let reads = uncertain.into_iter().map(|pod| async move {
            match self.status(&pod).await {
                Ok(status) => Ok(Some((pod, status))),
                Err(error) if *error.kind() == Kind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        });
        let read: Vec<_> = stream::iter(reads).buffer_unordered(CONCURRENT_READS).try_collect().await?;
        certain.extend(read.into_iter().flatten());
        Ok(certain)
    }

    /// The status of a pod that the watch does not show, if it has one all the same, and whether it needs confirmation.
    fn status_without_lower(&self, pod: &PodRef) -> Option<(PodStatus, bool)> {
        let known = self.records.lock().get(pod);
        let upper = known.upper.as_deref()?;
        if let Some(why) = self.not_offloaded(upper) {
            return Some((not_offloaded_status(why), false));
        }
        if let Some(lower) = known.recently_created() {
            return Some((self.report(pod, &lower), false));
        }
        let status = self.missing_status(pod)?;
        Some((status, known.rejected.is_none() && !has_ended(upper)))
    }

    /// Reads the node of a lower pod that would be called lost because of it.
    async fn refresh_lower_node(&self, lower: &Pod) -> Result<()> {
        let node = lower.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let Some(node) = node.filter(|_| self.is_stuck(lower)) else { return Ok(()) };
        let read = self.lower.refresh_node(node).await;
        read.map_err(|error| lower_error::to_provider_error(&format!("read node {node}"), error))
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

/// Whether the API server must be asked before this status, from a lower pod in the watch, is reported: it says that the pod has ended, or
/// that a pod which is stopping runs no more, and the upper cluster does not know that yet.
fn needs_confirmation(known: &PodRecord, lower: &Pod, status: &PodStatus) -> bool {
    let ended = match &known.upper {
        Some(upper) => is_terminal(status) && !has_ended(upper),
        // After a start: the end of a lower pod was just listed, the loss of one is a conclusion.
        None => is_terminal(status) && !has_ended(lower),
    };
    ended || (known.stopping && !runs(status))
}

/// Whether a container runs.
fn runs(status: &PodStatus) -> bool {
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let is_running =
        |container: &ContainerStatus| container.state.as_ref().is_some_and(|state| state.running.is_some());
    lists.into_iter().flatten().flatten().any(is_running)
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
