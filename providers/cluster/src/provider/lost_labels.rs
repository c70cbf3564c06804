//! Lower pods from which somebody removed our labels. The watch, which selects by label, calls them deleted, but they run.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tracing::warn;
use vk_kube::Patch;
use vk_provider::PodRef;

use super::VirtualNode;
use crate::{
    names::{NODE, ORIGIN, ORIGIN_NAME, ORIGIN_NAMESPACE, ORIGIN_UID, label},
    owner_config_map, pod_plan,
};

/// The reason of the event.
const LABELS_RESTORED: &str = "LowerLabelsRestored";

impl VirtualNode {
    /// The lower pod of an upper pod, if the pod that was found under its name is that. A pod without our labels gets them back.
    pub(super) async fn identify(
        &self,
        pod: &PodRef,
        upper: Option<&Pod>,
        found: Arc<Pod>,
    ) -> Option<Arc<Pod>> {
        if self.upper_pod_of(&found).is_some_and(|owner| owner.uid == pod.uid) {
            return Some(found);
        }
        if !self.is_unlabelled_pod_of(pod, upper, &found) {
            return None;
        }
        Some(Box::pin(self.restore_labels(pod, found)).await)
    }

    /// Whether a lower pod that has the right name, but not our labels, is that of an upper pod: it has the UID that we know, or an upper
    /// pod that has run and an owner that only we give. Such an upper pod had the name in the lower cluster, so this is no predecessor.
    fn is_unlabelled_pod_of(&self, pod: &PodRef, upper: Option<&Pod>, found: &Pod) -> bool {
        if label(&found.metadata, ORIGIN_UID).is_some_and(|uid| uid != &*pod.uid) {
            return false;
        }
        let known = self.records.lock().get(pod);
        if known.lower_uid.is_some() {
            return known.lower_uid == found.metadata.uid;
        }
        let owner_map = owner_config_map::name(&self.owner);
        let mut owners = found.metadata.owner_references.iter().flatten();
        let is_owned = owners.any(|owner| {
            owner.controller == Some(true) && owner.kind == "ConfigMap" && owner.name == owner_map
        });
        is_owned && upper.or(known.upper.as_deref()).is_some_and(pod_plan::has_run)
    }

    /// Restores our labels and annotations, and returns the pod after that, or as it is if that fails.
    async fn restore_labels(&self, pod: &PodRef, found: Arc<Pod>) -> Arc<Pod> {
        let Some((namespace, name)) = self.key(pod) else { return found };
        let Ok(pods) = self.pods_in(&namespace) else { return found };
        if !self.records.lock().begin_restoring_labels(pod) {
            return found;
        }
        let labels = json!({ORIGIN: self.owner.origin, NODE: self.owner.node_label(), ORIGIN_UID: &*pod.uid});
        let annotations = json!({ORIGIN_NAMESPACE: &*pod.namespace, ORIGIN_NAME: &*pod.name});
        let uid = &found.metadata.uid;
        let patch = json!({"metadata": {"uid": uid, "labels": labels, "annotations": annotations}});
        match pods.patch(&name, Patch::Strategic(&patch)).await {
            Ok(restored) => {
                let message = format!(
                    "somebody removed labels of the virtual node from pod {namespace}/{name} of the lower cluster: they were restored"
                );
                self.warn(pod, LABELS_RESTORED, message);
                Arc::new(restored)
            }
            Err(error) => {
                warn!(%pod, %error, "cannot restore the labels of a pod in the lower cluster");
                found
            }
        }
    }
}
