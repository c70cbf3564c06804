//! Changing and stopping pods that are below.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use vk_kube::{Kind as Lower, Patch};
use vk_provider::{Error, PodBundle, PodRef, Result};

use super::{VirtualNode, fault};
use crate::translate::update;

/// A pod that may run has as much time to stop: with less the lower cluster forgets it without asking its node.
const SHORTEST: Duration = Duration::from_secs(1);

impl VirtualNode {
    pub(super) async fn update(&self, bundle: PodBundle) -> Result<()> {
        let pod = bundle.reference().ok_or_else(|| Error::invalid("the pod has no uid"))?;
        self.memory.lock().given(&pod, &bundle.pod);
        if self.not_offloaded(&bundle.pod).is_some() {
            return Ok(());
        }
        self.known_for(&pod)?;
        // As it is at this moment: what was written a moment ago may not have been told of yet, and would not be taken back.
        let Some(lower) = self.find_now(&pod).await? else {
            // One that is lost is told to be when its status is asked for.
            if self.absent(&pod).is_none() {
                return Err(Error::not_found(format!("pod {pod} is not in the lower cluster")));
            }
            self.look(&pod);
            return Ok(());
        };
        self.supply(&pod, &bundle.pod, &lower).await?;
        self.bring(&pod, &bundle.pod, &lower).await
    }

    /// Brings a lower pod to what the upper one says now. What is refused keeps nothing else back.
    pub(super) async fn bring(&self, pod: &PodRef, upper: &Arc<Pod>, lower: &Pod) -> Result<()> {
        let policy = &self.settings.policy;
        let changes = update(upper, lower, &self.owner, policy, &self.lower.facts());
        let Some(changes) = changes.map_err(|reject| Error::invalid(reject.0))? else { return Ok(()) };
        let Some((namespace, name)) = self.key(pod) else { return Ok(()) };
        let pods = self.pods_in(&namespace);
        let mut refusals = Vec::new();
        if let Some(patch) = &changes.metadata_and_spec {
            refusals.extend(pods.patch(&name, Patch::Strategic(patch)).await.err());
        }
        if let Some(patch) = &changes.ephemeral_containers {
            let added = pods.patch_subresource(&name, "ephemeralcontainers", Patch::Strategic(patch)).await;
            refusals.extend(added.err());
        }
        if let Some(patch) = &changes.resize {
            let mut resized = pods.patch_subresource(&name, "resize", Patch::Strategic(patch)).await;
            if resized.is_ok()
                && let Some(patch) = &changes.resized
            {
                resized = pods.patch(&name, Patch::Strategic(patch)).await;
            }
            refusals.extend(resized.err());
        }
        match refusals.into_iter().next() {
            None => Ok(()),
            Some(error) if fault::is_verdict(&error) => {
                Err(Error::invalid("the lower cluster refuses the change").caused_by(error))
            }
            Some(error) => Err(fault::of("change the pod", error)),
        }
    }

    pub(super) async fn delete(&self, pod: &PodRef, last_known: Option<&Pod>, grace: Duration) -> Result<()> {
        let gone = || Error::not_found(format!("pod {pod} is not in the lower cluster"));
        if last_known.is_some_and(|upper| self.not_offloaded(upper).is_some()) && self.twin(pod).is_none() {
            // It never was there, and need not be asked for.
            self.let_go(pod);
            return Err(gone());
        }
        self.memory.lock().stops(pod);
        let Some(lower) = self.find(pod).await? else {
            self.let_go(pod);
            return Err(gone());
        };
        let metadata = &lower.metadata;
        let grace = if may_vanish(&lower, last_known) { grace } else { grace.max(SHORTEST) };
        let stops_soon_enough = metadata.deletion_timestamp.is_some()
            && metadata
                .deletion_grace_period_seconds
                .is_some_and(|seconds| seconds.max(0).unsigned_abs() <= grace.as_secs());
        if stops_soon_enough {
            return Ok(());
        }
        let Some((namespace, name)) = self.key(pod) else { return Err(gone()) };
        let uid = metadata.uid.as_deref().unwrap_or_default();
        match self.pods_in(&namespace).delete_with_grace(&name, uid, grace).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind == Lower::NotFound => {
                self.let_go(pod);
                Err(gone())
            }
            // Another pod has its name, as far as somebody knows: it is looked at again.
            Err(error) => Err(fault::of("delete the pod", error)),
        }
    }

    /// Nothing of it is below, and nothing will be.
    pub(super) fn let_go(&self, pod: &PodRef) {
        self.memory.lock().forget(pod);
        if let Ok(term) = self.term() {
            term.reflector.release(pod);
        }
    }
}

/// Whether a lower pod may be gone before its node has said that it is: it has no node, has ended, or a user wants it gone by force, who took
/// it away above without waiting for anybody.
fn may_vanish(lower: &Pod, last_known: Option<&Pod>) -> bool {
    let bound = lower.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let forced = last_known.is_some_and(|upper| {
        upper.metadata.deletion_timestamp.is_none() && !super::reporting::has_ended(upper)
    });
    !bound || super::reporting::has_ended(lower) || forced
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_pod_that_may_run_is_not_forgotten_before_its_node_has_ended_it() {
        let runs = pod(json!({"spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running"}}));
        let stops = pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        let failed = pod(json!({"status": {"phase": "Failed"}}));
        for last_known in [None, Some(&stops), Some(&failed)] {
            assert!(!may_vanish(&runs, last_known), "{last_known:?}");
        }
        assert!(may_vanish(&runs, Some(&pod(json!({})))), "deleted by force");
        assert!(may_vanish(&pod(json!({"spec": {"containers": []}})), None), "it has no node");
        assert!(may_vanish(
            &pod(json!({"spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Failed"}})),
            None
        ));
    }
}
