//! Compares the settings of placement with those of the leader and of the admission policy, and warns where they do not go together.

use std::time::Duration;

use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use serde_json::json;
use tokio::sync::watch;
use tracing::{debug, info, warn};
use vk_kube::{Client, Error, Objects, Patch};
use vk_placement::{names::LEADER_SETTINGS, policy::NAME};

const PERIOD: Duration = Duration::from_mins(1);

/// Compares settings once a minute. Says each thing once.
pub(super) struct SettingsCheck {
    pub(super) client: Client,
    pub(super) namespace: String,
    /// The Lease of the processes that need the same settings.
    pub(super) lease: &'static str,
    /// The settings of this process.
    pub(super) own: String,
    /// Whether this process removes gates; `None` if that is not its business.
    pub(super) gates: Option<bool>,
    pub(super) leading: watch::Receiver<bool>,
}

// === impl SettingsCheck ===

impl SettingsCheck {
    /// Runs forever.
    pub(super) async fn run(mut self) {
        let mut said = Vec::new();
        loop {
            let found = self.problems().await.unwrap_or_else(|error| {
                debug!(%error, "cannot compare the settings of placement");
                said.clone()
            });
            for problem in found.iter().filter(|problem| !said.contains(*problem)) {
                warn!("{problem}");
            }
            said = found;
            tokio::select! {
                () = tokio::time::sleep(PERIOD) => {}
                changed = self.leading.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn problems(&self) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        let (namespace, own) = (&self.namespace, &self.own);
        let leases = Objects::<Lease>::namespaced(self.client.unfenced(), namespace);
        let annotations = leases.get(self.lease).await?.metadata.annotations.unwrap_or_default();
        let leader = annotations.get(LEADER_SETTINGS);
        if *self.leading.borrow() {
            if leader != Some(own) {
                // The lease's version changes, which the election is prepared for.
                let patch = json!({"metadata": {"annotations": {LEADER_SETTINGS: own}}});
                leases.patch(self.lease, Patch::Merge(&patch)).await?;
            }
        } else if let Some(leader) = leader.filter(|leader| *leader != own) {
            found.push(format!(
                "the process that leads placement has other settings, and they decide: {leader} there, {own} here; \
                 give all processes the same settings"
            ));
        }
        let Some(removes_gates) = self.gates else { return Ok(found) };
        let maps = Objects::<ConfigMap>::namespaced(self.client.clone(), namespace);
        let map = maps.get(NAME).await?;
        let gate = map.data.unwrap_or_default().remove("gate");
        if gate.is_none() && removes_gates {
            if *self.leading.borrow() {
                // Nobody has decided: who removes gates has them added. The version keeps a decision that is made meanwhile.
                let patch = json!({"metadata": {"resourceVersion": map.metadata.resource_version}, "data": {"gate": "true"}});
                maps.patch(NAME, Patch::Merge(&patch)).await?;
                info!(map = %format_args!("{namespace}/{NAME}"), "pods that opt in get the scheduling gate from now on");
            }
            return Ok(found);
        }
        let adds_gates = gate.as_deref() == Some("true");
        if adds_gates && !removes_gates {
            found.push(format!(
                "pods get the scheduling gate (ConfigMap {namespace}/{NAME}), and nobody removes it: set --gates estimate or trial here, \
                 or apply `virtual-kubelet placement print policy --gates off`"
            ));
        }
        if !adds_gates && removes_gates {
            found.push(format!(
                "pods do not get the scheduling gate (ConfigMap {namespace}/{NAME}), so none is placed: \
                 apply `virtual-kubelet placement print policy --gates estimate`"
            ));
        }
        Ok(found)
    }
}
