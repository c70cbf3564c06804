//! Changes of pods that run: made in the running group where the cloud can.

use std::{sync::Arc, time::Duration};

use vk_provider::{Error, EventKind, PodBundle, PodRef, Result, error::Kind};

use super::{context::EngineContext, inputs};
use crate::{
    GroupBackend,
    backend::{Action, CallResult, Class, GroupRef, Owner, Plan, Update},
    identity::SpecHash,
    reconciler::{Input, PodView},
};

/// The reason of the event for a change that was made while no process ran, and cannot be made in the running group.
const NOT_UPDATED: &str = "ProviderUpdateUnsupported";
/// For how long, and how often, a change is tried while an earlier one is in progress.
const UPDATE_LIMIT: Duration = Duration::from_secs(20);
const UPDATE_RETRY: Duration = Duration::from_secs(1);

impl<B: GroupBackend> EngineContext<B> {
    /// Makes a running group follow its pod.
    pub(super) async fn sync_spec(
        self: &Arc<Self>,
        pod: &PodRef,
        group: &GroupRef,
        bundle: &PodBundle,
    ) -> Result<()> {
        let desired = SpecHash::of(&bundle.pod);
        let current = self.state.lock().record(pod).spec_hash.clone();
        let change = current.map(|current| current.changes(&desired)).unwrap_or_default();
        if change.is_empty() {
            return Ok(());
        }
        let updates = self.backend.caps().updates;
        let possible = (updates.images || !change.images)
            && (updates.resources || !change.resources)
            && !change.deadline
            && !change.ephemeral;
        if !possible {
            let fields = change.fields().join(", ");
            let text =
                format!("update pod {pod}: this cloud cannot change {fields} of a running container group");
            return Err(Error::new(Kind::Unsupported, text));
        }
        let resolved = inputs::resolve(bundle, &self.settings.node_ips).await?;
        let plan = self.backend.translate(&resolved)?;
        let started = tokio::time::Instant::now();
        loop {
            match self.update_group(pod, group, &plan, &desired).await {
                Ok(()) => break,
                // An earlier change is in progress.
                Err(error) if error.class == Class::Conflict && started.elapsed() < UPDATE_LIMIT => {
                    tokio::time::sleep(UPDATE_RETRY).await;
                }
                Err(error) => return Err(error.for_operation(&format!("update pod {pod}"))),
            }
        }
        if change.resources {
            let mut state = self.state.lock();
            state.record(pod).begin_resize(self.now(), plan.size);
            self.publish(&mut state, pod);
        }
        self.handle(Input::Refresh);
        Ok(())
    }

    /// The same for a group that was there before this process: a change that cannot be made is no reason to refuse a pod that runs.
    pub(super) async fn sync_adopted(
        self: &Arc<Self>,
        pod: &PodRef,
        group: &GroupRef,
        bundle: &PodBundle,
    ) -> Result<()> {
        let Err(error) = self.sync_spec(pod, group, bundle).await else { return Ok(()) };
        if !matches!(error.kind(), Kind::Unsupported | Kind::Invalid | Kind::Unresolved(_)) {
            return Err(error);
        }
        self.event(pod, EventKind::Warning, NOT_UPDATED, error.report());
        Ok(())
    }

    /// Makes a running group what the plan says. Its tags say so afterwards, so that no later process does it again.
    pub(super) async fn update_group(
        &self,
        pod: &PodRef,
        group: &GroupRef,
        plan: &Plan<B::Request>,
        desired: &SpecHash,
    ) -> CallResult<()> {
        let (hash, tags) = self.updated_identity(pod, desired);
        let update = Update { plan, tags: &tags };
        self.call(Action::Update, self.backend.update(group, &update)).await?;
        self.state.lock().record(pod).spec_hash = Some(hash);
        Ok(())
    }

    /// The hash of a group after an update, and its tags.
    fn updated_identity(&self, pod: &PodRef, desired: &SpecHash) -> (SpecHash, Vec<(String, String)>) {
        let state = self.state.lock();
        let current = state.records.get(&pod.uid).and_then(|record| record.spec_hash.as_ref());
        let hash = current.map_or_else(|| desired.clone(), |current| current.updated_to(desired));
        let PodView::Present(group) = state.reconciler.view(&pod.uid) else { return (hash, Vec::new()) };
        // Groups of other providers have no hash, and keep the tags by which their own provider knows them.
        if group.observed().owner.as_ref().is_some_and(|owner| owner.spec_hash.is_none()) {
            return (hash, Vec::new());
        }
        let owner = Owner {
            cluster: Arc::clone(&self.scope.cluster),
            node: self.settings.node.as_str().into(),
            pod: pod.clone(),
            attempt: group.attempt(),
            spec_hash: Some(hash.to_string()),
        };
        let tags = self.identity.tags(&owner);
        (hash, tags)
    }
}
