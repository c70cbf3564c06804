//! Implements [`Provider`] for [`Mock`].

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, stream, stream::BoxStream};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::watch;
use vk_provider::{
    Changes, Error, NodeChange, NodeTemplate, ObservedPod, PodBundle, PodChange, PodRef, Provider, Result,
    ability::{Attach, Exec, Fit, Logs, PortForward, Stats},
    error::Kind,
    node::{Condition, ConditionStatus},
    pod::is_terminal_phase,
    resolve::Facts,
};

use crate::{
    fault::Call,
    lifecycle::PodScript,
    mock::Mock,
    resolved_inputs::ResolvedInputs,
    simulator::{DesiredPod, Request},
};

#[async_trait]
impl Provider for Mock {
    async fn create_pod(&self, bundle: PodBundle) -> Result<()> {
        let guard = self.0.faults.enter(Call::Create).await?;
        let script = PodScript::of(&bundle.pod, &self.0.life)?;
        if let Some((kind, message)) = script.fail_create {
            return Err(Error::new(kind, message));
        }
        let answer = self.create(bundle, script.life).await;
        guard.finish(answer)
    }

    async fn update_pod(&self, bundle: PodBundle) -> Result<()> {
        let guard = self.0.faults.enter(Call::Update).await?;
        let script = PodScript::of(&bundle.pod, &self.0.life)?;
        let answer = self.done(Request::update(self.desired(&bundle, script.life))).await;
        if let (Ok(()), Some(pod)) = (&answer, bundle.reference()) {
            self.0.lower_nodes.add(&bundle.pod);
            let known = self.0.inputs.lock().get(&pod.uid).cloned();
            match known {
                Some(inputs) => inputs.update(bundle),
                None => self.remember(ResolvedInputs::unknown(bundle), pod.uid),
            }
        }
        guard.finish(answer)
    }

    async fn delete_pod(&self, pod: &PodRef, _last_known: Option<Arc<Pod>>, grace: Duration) -> Result<()> {
        let guard = self.0.faults.enter(Call::Delete).await?;
        let answer = self.done(Request::Delete { pod: pod.clone(), grace }).await;
        guard.finish(self.forget_if_gone(pod, answer))
    }

    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
        let guard = self.0.faults.enter(Call::Status).await?;
        let answer = self.0.connection.status(pod).await;
        if let Ok(status) = &answer {
            self.release_if_ended(pod, status);
        }
        guard.finish(self.forget_if_gone(pod, answer))
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        let guard = self.0.faults.enter(Call::List).await?;
        let listed = self.0.connection.list(&self.0.node).await.map(|pods| {
            pods.into_iter()
                .map(|listed| ObservedPod {
                    pod: listed.pod,
                    node: Some(listed.node.to_string()),
                    status: listed.status,
                })
                .collect()
        });
        guard.finish(listed)
    }

    fn changes(&self) -> Changes {
        let mock = self.clone();
        let changes = self.0.connection.changes(&self.0.node).inspect(move |change| {
            if let PodChange::Status(pod, status) = change {
                mock.release_if_ended(pod, status);
            }
        });
        Changes::Push(changes.boxed())
    }

    async fn ping(&self) -> Result<()> {
        let guard = self.0.faults.enter(Call::Ping).await?;
        guard.finish(self.done(Request::Ping).await)
    }

    fn configure_node(&self, node: &mut NodeTemplate) {
        let capacity = self.0.capacity.lock().clone();
        node.allocatable.extend(capacity.clone());
        node.capacity.extend(capacity);
        node.system.container_runtime_version = format!("mock://{}", env!("CARGO_PKG_VERSION"));
        if self.0.settings.provider_id.is_some() {
            node.provider_id.clone_from(&self.0.settings.provider_id);
        }
        for (kind, reason, message) in [
            ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ] {
            node.set_condition(Condition {
                kind: kind.to_owned(),
                status: ConditionStatus::False,
                reason: reason.to_owned(),
                message: message.to_owned(),
            });
        }
    }

    fn node_changes(&self) -> Option<BoxStream<'static, NodeChange>> {
        let described = refreshes(self.0.described.subscribe());
        let faults = refreshes(self.0.faults.watch());
        let connected = self.0.connection.connected().map_or_else(|| stream::pending().boxed(), refreshes);
        Some(stream::select_all([described, faults, connected]).boxed())
    }

    fn logs(&self) -> Option<&dyn Logs> {
        Some(self)
    }

    fn exec(&self) -> Option<&dyn Exec> {
        Some(self)
    }

    fn attach(&self) -> Option<&dyn Attach> {
        Some(self)
    }

    fn port_forward(&self) -> Option<&dyn PortForward> {
        Some(self)
    }

    fn stats(&self) -> Option<&dyn Stats> {
        Some(self)
    }

    fn fit(&self) -> Option<&dyn Fit> {
        Some(self)
    }
}

impl Mock {
    fn desired(&self, bundle: &PodBundle, life: Arc<crate::Lifecycle>) -> DesiredPod {
        DesiredPod {
            node: Arc::clone(&self.0.node),
            host_ip: self.0.host_ip,
            pod_cidr: self.0.settings.pod_cidr,
            life,
            pod: Arc::clone(&bundle.pod),
        }
    }

    /// Creates a pod when everything that it needs can be resolved; an existing pod is adopted in any case.
    async fn create(&self, bundle: PodBundle, life: Arc<crate::Lifecycle>) -> Result<()> {
        let Some(pod) = bundle.reference() else {
            return Err(Error::invalid("create a pod: it has no name or no UID"));
        };
        let desired = self.desired(&bundle, life);
        let resolved = ResolvedInputs::resolve(bundle.clone(), self.0.settings.volumes, self.0.host_ip).await;
        let inputs = match resolved {
            Ok(inputs) => inputs,
            // It already runs, so missing objects do not matter.
            Err(_) if self.0.connection.status(&pod).await.is_ok() => ResolvedInputs::unknown(bundle),
            Err(error) => return Err(error),
        };
        let created = Arc::clone(&desired.pod);
        self.done(Request::create(desired)).await?;
        self.0.lower_nodes.add(&created);
        if inputs.wants_address() {
            let facts = self.facts(&pod).await?;
            for container in inputs.containers() {
                inputs.start(&container, 0, &facts).await?;
            }
        }
        self.remember(inputs, pod.uid);
        Ok(())
    }

    /// The values that are known when a container starts.
    pub(crate) async fn facts(&self, pod: &PodRef) -> Result<Facts> {
        let status = self.0.connection.status(pod).await?;
        let pod_ips = status.pod_ip.iter().filter_map(|ip| ip.parse().ok()).collect();
        Ok(Facts { pod_ips, host_ips: vec![self.0.host_ip], ..Facts::default() })
    }

    fn remember(&self, inputs: ResolvedInputs, uid: Arc<str>) {
        self.0.inputs.lock().insert(uid, Arc::new(inputs));
    }

    fn forget_if_gone<T>(&self, pod: &PodRef, answer: Result<T>) -> Result<T> {
        if answer.as_ref().is_err_and(|error| *error.kind() == Kind::NotFound) {
            self.0.inputs.lock().remove(&pod.uid);
            self.0.disks.forget(&pod.uid);
            self.0.lower_nodes.remove(&pod.uid);
        }
        answer
    }

    /// A pod that has ended leaves its room to others.
    fn release_if_ended(&self, pod: &PodRef, status: &PodStatus) {
        if is_terminal_phase(status.phase.as_deref()) {
            self.0.lower_nodes.remove(&pod.uid);
        }
    }
}

/// A refresh for each change of a value.
fn refreshes<T: Send + Sync + 'static>(value: watch::Receiver<T>) -> BoxStream<'static, NodeChange> {
    stream::unfold(value, |mut value| async move {
        value.changed().await.ok()?;
        Some((NodeChange::Refresh, value))
    })
    .boxed()
}
