//! Stops and deletes lower pods.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use vk_kube::Kind as LowerKind;
use vk_provider::{Error, PodRef, Result};

use super::{VirtualNode, lower_error};
use crate::status::has_ended;

/// Minimum grace period for a pod that may be running. With 0 the lower API server removes the pod without waiting for its kubelet.
const MIN_GRACE: Duration = Duration::from_secs(1);

impl VirtualNode {
    pub(super) async fn delete(&self, pod: &PodRef, last_known: Option<&Pod>, grace: Duration) -> Result<()> {
        let gone = || Error::not_found(format!("pod {pod} is not in the lower cluster"));
        if last_known.is_some_and(|upper| self.not_offloaded(upper).is_some())
            && self.lower_pod(pod).is_none()
        {
            // The pod was never created, so there is nothing to look for.
            self.forget_pod(pod);
            return Err(gone());
        }
        self.records.lock().set_stopping(pod);
        let Some(lower) = self.find_lower_pod(pod, last_known).await? else {
            self.forget_pod(pod);
            return Err(gone());
        };
        let metadata = &lower.metadata;
        let grace = if can_skip_grace(&lower, last_known) { grace } else { grace.max(MIN_GRACE) };
        let stops_soon_enough = metadata.deletion_timestamp.is_some()
            && metadata
                .deletion_grace_period_seconds
                .is_some_and(|seconds| seconds.max(0).unsigned_abs() <= grace.as_secs());
        if stops_soon_enough {
            return Ok(());
        }
        let Some((namespace, name)) = self.key(pod) else { return Err(gone()) };
        let uid = metadata.uid.as_deref().unwrap_or_default();
        match self.pods_in(&namespace)?.delete_with_grace(&name, uid, grace).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind == LowerKind::NotFound => {
                self.forget_pod(pod);
                Err(gone())
            }
            // On a conflict another pod has the name by now; the retry finds out.
            Err(error) => Err(lower_error::to_provider_error("delete the pod", error)),
        }
    }

    /// Forgets a pod that does not exist in the lower cluster and will not be created again.
    pub(super) fn forget_pod(&self, pod: &PodRef) {
        self.records.lock().forget(pod);
        if let Ok(session) = self.session() {
            session.copier.release(pod);
        }
    }
}

/// Whether a lower pod may be removed before its kubelet confirmed that it stopped: it has ended, or was deleted with force in the upper
/// cluster, where nobody waits for it. For the end of one on trial everybody waits: it is not bound in the upper cluster, and goes to another
/// node as soon as it is gone here. Whether the lower pod is bound is not asked: what we know of it may be old, and with a grace period the
/// lower API server itself removes a pod at once that is not.
fn can_skip_grace(lower: &Pod, last_known: Option<&Pod>) -> bool {
    let is_bound = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let forced = last_known.is_some_and(|upper| {
        is_bound(upper) && upper.metadata.deletion_timestamp.is_none() && !has_ended(upper)
    });
    has_ended(lower) || forced
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_pod_that_may_be_running_gets_a_grace_period() {
        let runs = pod(json!({"spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running"}}));
        let stops = pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        let failed = pod(json!({"status": {"phase": "Failed"}}));
        let on_trial = pod(json!({
            "metadata": {"labels": {"multicluster.virtual-kubelet.io/trial": "vk"}},
            "status": {"conditions": [{"type": "multicluster.virtual-kubelet.io/Placed", "status": "Unknown", "reason": "OnTrial"}]},
        }));
        for last_known in [None, Some(&stops), Some(&failed), Some(&on_trial)] {
            assert!(!can_skip_grace(&runs, last_known), "{last_known:?}");
        }
        let forced = pod(json!({"spec": {"nodeName": "vk", "containers": []}}));
        assert!(can_skip_grace(&runs, Some(&forced)), "deleted by force");
        assert!(
            !can_skip_grace(&pod(json!({"spec": {"containers": []}})), None),
            "it may have a node by now"
        );
        assert!(can_skip_grace(
            &pod(json!({"spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Failed"}})),
            None
        ));
    }
}
