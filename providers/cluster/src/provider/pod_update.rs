//! Applies changes of upper pods to their lower pods.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use vk_kube::Patch;
use vk_provider::{Error, PodBundle, PodRef, Result};

use super::{VirtualNode, lower_error};
use crate::translate::update;

impl VirtualNode {
    pub(super) async fn update(&self, bundle: PodBundle) -> Result<()> {
        let pod = bundle.reference().ok_or_else(|| Error::invalid("the pod has no uid"))?;
        self.records.lock().set_upper(&pod, &bundle.pod);
        if self.not_offloaded(&bundle.pod).is_some() {
            return Ok(());
        }
        self.check_synced_for(&pod)?;
        // The watch may not have seen our latest write, so the pod is read.
        let Some(lower) = self.read_lower_pod(&pod, Some(&bundle.pod)).await? else {
            // A lost pod is reported with its status.
            if self.missing_status(&pod).is_none() {
                return Err(Error::not_found(format!("pod {pod} is not in the lower cluster")));
            }
            self.request_status(&pod);
            return Ok(());
        };
        self.ensure_copies(&pod, &bundle.pod, &lower).await?;
        self.apply_update(&pod, &bundle.pod, &lower).await
    }

    /// Updates a lower pod to the current upper pod. A rejected part does not prevent the other parts.
    pub(super) async fn apply_update(&self, pod: &PodRef, upper: &Arc<Pod>, lower: &Pod) -> Result<()> {
        let policy = &self.settings.policy;
        let changes = update(upper, lower, &self.owner, policy, &self.lower.classes());
        let Some(changes) = changes.map_err(|rejection| Error::invalid(rejection.0))? else { return Ok(()) };
        let Some((namespace, name)) = self.key(pod) else { return Ok(()) };
        let pods = self.pods_in(&namespace)?;
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
            Some(error) if lower_error::is_rejection(&error) => {
                Err(Error::invalid("the lower cluster rejects the change").caused_by(error))
            }
            Some(error) => Err(lower_error::to_provider_error("change the pod", error)),
        }
    }
}
