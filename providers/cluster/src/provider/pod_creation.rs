//! Creates lower pods and adopts existing ones.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use vk_kube::{Kind as Lower, Objects};
use vk_provider::{Error, EventKind, PodBundle, PodEvent, PodRef, Result, error::Kind};

use super::{VirtualNode, lower_error, pod_status::NOT_OFFLOADED};
use crate::{
    copies::NAME_CONFLICT,
    dependencies::{Dependencies, dependencies},
    lower_cluster::ObjectKey,
    names::{REPLACED, annotation},
    owner_config_map,
    pod_plan::{self, PodPlan, plan},
    status::has_ended,
    translate::translate,
};

/// The default grace period of pods, in seconds.
const GRACE: i64 = 30;
/// The reason of pods that wait for quota in the lower cluster.
const QUOTA_EXCEEDED: &str = "LowerQuotaExceeded";

impl VirtualNode {
    pub(super) async fn create(&self, bundle: PodBundle) -> Result<()> {
        let pod = bundle.reference().ok_or_else(|| Error::invalid("the pod has no uid"))?;
        let made = self.create_or_adopt(&pod, bundle).await;
        if matches!(&made, Err(error) if *error.kind() == Kind::Invalid) {
            // The pod failed permanently. The core will not ask for it again.
            self.records.lock().forget(&pod);
        }
        made
    }

    async fn create_or_adopt(&self, pod: &PodRef, bundle: PodBundle) -> Result<()> {
        let upper = bundle.pod;
        let is_new = self.records.lock().set_upper(pod, &upper);
        if let Some(why) = self.not_offloaded(&upper) {
            if is_new {
                self.warn(pod, NOT_OFFLOADED, why);
            }
            self.request_status(pod);
            return Ok(());
        }
        self.check_synced_for(pod)?;
        let Some(key) = self.key(pod) else {
            return Err(Error::invalid(format!(
                "namespace {} is not mapped to the lower cluster: see `namespaces` in the configuration of the provider",
                pod.namespace
            )));
        };
        let mut found = self.lower.pod(&key);
        // A pod is only considered lost, or that of somebody else, after the API server was asked.
        let is_known = found.as_deref().is_some_and(|lower| self.upper_pod_of(lower).is_some());
        if !is_known && pod_plan::has_run(&upper) {
            found = self.read(&key).await?;
            if let Some(lower) = found.take() {
                let identified = self.identify(pod, Some(&upper), Arc::clone(&lower)).await;
                found = Some(identified.unwrap_or(lower));
            }
        }
        match self.follow_plan(pod, &upper, &key, found.as_deref()).await? {
            CreateOutcome::Done => Ok(()),
            // A pod with this name exists that the watch has not reported.
            CreateOutcome::Taken => {
                let found = self.read(&key).await?;
                match self.follow_plan(pod, &upper, &key, found.as_deref()).await? {
                    CreateOutcome::Done => Ok(()),
                    CreateOutcome::Taken => Err(Error::unavailable(format!(
                        "pod {}/{} of the lower cluster is created and deleted repeatedly",
                        key.0, key.1
                    ))),
                }
            }
        }
    }

    async fn read(&self, key: &ObjectKey) -> Result<Option<Arc<Pod>>> {
        let found = self
            .lower
            .read(key)
            .await
            .map_err(|error| lower_error::to_provider_error("read the pod", error))?;
        Ok(found.map(Arc::new))
    }

    async fn follow_plan(
        &self,
        pod: &PodRef,
        upper: &Arc<Pod>,
        key: &ObjectKey,
        found: Option<&Pod>,
    ) -> Result<CreateOutcome> {
        match plan(upper, found, &self.owner, self.settings.lost) {
            PodPlan::Create => self.create_lower_pod(pod, upper, key).await,
            PodPlan::Adopt => {
                if let Some(lower) = found {
                    self.adopt(pod, upper, lower).await?;
                }
                self.request_status(pod);
                Ok(CreateOutcome::Done)
            }
            // The loss is reported with the status.
            PodPlan::Lost => {
                self.request_status(pod);
                Ok(CreateOutcome::Done)
            }
            PodPlan::Conflict => Err(Error::new(
                Kind::Blocked(NAME_CONFLICT),
                format!(
                    "{NAME_CONFLICT}: the lower cluster has a pod {}/{} that is not of this node: it stays, and this one waits until \
                     it is gone",
                    key.0, key.1
                ),
            )),
            PodPlan::Await { uid, going } => {
                if !going && let Some(lower) = found {
                    self.delete_predecessor(pod, key, &uid, lower).await?;
                }
                Err(Error::unavailable(format!(
                    "WaitingForPredecessor: the lower cluster still has the earlier pod {}/{}",
                    key.0, key.1
                )))
            }
        }
    }

    /// Adopts an existing lower pod. A rejected update is a warning, not a reason to stop a running pod.
    async fn adopt(&self, pod: &PodRef, upper: &Arc<Pod>, lower: &Pod) -> Result<()> {
        let taken = async {
            self.ensure_copies(pod, upper, lower).await?;
            self.apply_update(pod, upper, lower).await
        };
        match taken.await {
            Err(error) if *error.kind() == Kind::Invalid => {
                self.warn(pod, "LowerUpdateRefused", error.report());
                Ok(())
            }
            other => other,
        }
    }

    /// Copies the dependencies and creates the lower pod.
    async fn create_lower_pod(
        &self,
        pod: &PodRef,
        upper: &Arc<Pod>,
        key: &ObjectKey,
    ) -> Result<CreateOutcome> {
        let translated = translate(upper, &self.owner, &self.settings.policy, &self.lower.classes())
            .map_err(|rejection| Error::invalid(rejection.0))?;
        self.records.lock().set_planned(pod, Arc::new(translated.pod.clone()));
        let session = self.session()?;
        if let Err(error) = session.copier.ensure(pod, self.needs(upper)).await {
            if matches!(error.kind(), Kind::Unresolved(_)) {
                self.warn(pod, "Failed", error.report());
            }
            return Err(error);
        }
        let not_offloaded_status = owner_config_map::ensure(&session.lower, &key.0, &self.owner)
            .await
            .map_err(|error| lower_error::to_provider_error("create the owner ConfigMap", error))?;
        let mut lower = translated.pod;
        lower.metadata.owner_references = Some(vec![not_offloaded_status]);
        let replaced = self.replacements(pod, upper);
        if replaced > 0 {
            let annotations = lower.metadata.annotations.get_or_insert_default();
            annotations.insert(REPLACED.to_owned(), replaced.to_string());
        }
        match self.pods_in(&key.0)?.create(&lower).await {
            Ok(made) => {
                self.records.lock().set_created(pod, Arc::new(made));
                self.request_status(pod);
                Ok(CreateOutcome::Done)
            }
            Err(error) if error.kind == Lower::AlreadyExists => Ok(CreateOutcome::Taken),
            // Whatever the pod's restart policy: it can run as soon as others leave.
            Err(error) if lower_error::is_full_quota(&error) => Err(Error::new(
                Kind::Blocked(QUOTA_EXCEEDED),
                format!("the lower cluster has no quota left for the pod: {error}"),
            )),
            Err(error) if lower_error::is_rejection(&error) => {
                let why = format!("the lower cluster rejects the pod: {error}");
                let never =
                    upper.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) == Some("Never");
                if !never {
                    self.records.lock().clear_planned(pod);
                    return Err(Error::new(Kind::Denied, why));
                }
                self.warn(pod, "LowerAdmissionRejected", why.clone());
                self.records.lock().set_rejected(pod, why);
                session.copier.release(pod);
                self.request_status(pod);
                Ok(CreateOutcome::Done)
            }
            Err(error) => Err(lower_error::to_provider_error("create the pod", error)),
        }
    }

    /// Makes sure that the dependencies of an existing lower pod are copied. A pod that has ended needs none. What such a pod refers to
    /// cannot change, except by new ephemeral containers: they wait for names that are not ours, and everything else goes on.
    pub(super) async fn ensure_copies(&self, pod: &PodRef, upper: &Pod, lower: &Pod) -> Result<()> {
        let session = self.session()?;
        if has_ended(lower) {
            session.copier.release(pod);
            return Ok(());
        }
        match session.copier.ensure(pod, self.needs(upper)).await {
            Err(error) if matches!(error.kind(), Kind::Blocked(_) | Kind::Unresolved(_)) => {
                if adds_containers(upper, lower) {
                    return Err(error);
                }
                if *error.kind() == Kind::Blocked(NAME_CONFLICT) {
                    self.warn(pod, NAME_CONFLICT, error.report());
                }
                Ok(())
            }
            other => other,
        }
    }

    /// What the lower pod of an upper pod refers to.
    fn needs(&self, upper: &Pod) -> Dependencies {
        let account = self.settings.policy.accounts.lower_account(upper, &self.owner);
        let service_account = Some(account).filter(|account| account != "default");
        Dependencies { service_account, ..dependencies(upper) }
    }

    /// How many lower pods the new one replaces. Restart counts must never decrease.
    fn replacements(&self, pod: &PodRef, upper: &Pod) -> i32 {
        let before = self.records.lock().get(pod).last.as_deref().map_or(0, replaced);
        let status = upper.status.as_ref();
        let containers = status.iter().flat_map(|status| {
            status.container_statuses.iter().chain(&status.init_container_statuses).flatten()
        });
        let restarts = containers.map(|container| container.restart_count).max().unwrap_or(0);
        if pod_plan::has_run(upper) { before.max(restarts) + 1 } else { before }
    }

    /// Deletes the predecessor, which has the name of the new pod. The upper API server is asked first, because our view of the upper pod
    /// may be outdated.
    async fn delete_predecessor(&self, pod: &PodRef, key: &ObjectKey, uid: &str, lower: &Pod) -> Result<()> {
        let above: Objects<Pod> =
            Objects::namespaced(self.upper.reader(&self.owner.node), pod.namespace.to_string());
        let now = above.get(&pod.name).await;
        if !matches!(&now, Ok(now) if now.metadata.uid.as_deref() == Some(&*pod.uid)) {
            let message = format!("the upper cluster does not confirm pod {pod}");
            return Err(match now {
                Err(error) => Error::unavailable(message).caused_by(error),
                Ok(_) => Error::unavailable(message),
            });
        }
        let grace =
            lower.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(GRACE);
        let grace = std::time::Duration::from_secs(grace.max(0).unsigned_abs());
        match self.pods_in(&key.0)?.delete_with_grace(&key.1, uid, grace).await {
            Err(error) if !matches!(error.kind, Lower::NotFound | Lower::Conflict) => {
                Err(lower_error::to_provider_error("delete the earlier pod", error))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn warn(&self, pod: &PodRef, reason: &str, message: String) {
        self.outbox.event(PodEvent {
            pod: pod.clone(),
            container: None,
            kind: EventKind::Warning,
            reason: reason.to_owned(),
            message,
        });
    }
}

/// Whether the upper pod has ephemeral containers that the lower pod does not have yet.
fn adds_containers(upper: &Pod, lower: &Pod) -> bool {
    fn of(pod: &Pod) -> impl Iterator<Item = &str> {
        let all = pod.spec.iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten());
        all.map(|container| container.name.as_str())
    }
    of(upper).any(|name| of(lower).all(|there| there != name))
}

/// The outcome of an attempt to create a pod.
enum CreateOutcome {
    Done,
    /// Another lower pod has the name.
    Taken,
}

/// How many lower pods this one replaced.
pub(super) fn replaced(lower: &Pod) -> i32 {
    let said = annotation(&lower.metadata, REPLACED).and_then(|count| count.parse().ok());
    said.filter(|count| *count > 0).unwrap_or(0)
}
