//! Calls that a kubelet does not make: for `virtual-kubelet doctor`, and for what older runtimes only show in their configuration.

use std::collections::BTreeMap;

use serde_json::Value;
use tonic::{Code, Status, client::Grpc, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;
use vk_provider::Result;

use super::{CallError, Cri, KUBELET_API_VERSION};
use crate::proto::{ListPodSandboxRequest, StatusRequest, VersionRequest, VersionResponse};

impl Cri {
    /// The version over the v1alpha2 interface, which has the same two messages.
    pub(crate) async fn v1alpha2_version(&self) -> Result<VersionResponse> {
        let request = VersionRequest { version: KUBELET_API_VERSION.to_owned() };
        let channel = self.channel.clone();
        let call = |request| async move {
            let mut client = Grpc::new(channel);
            let ready = client.ready().await;
            ready.map_err(|error| Status::new(Code::Unavailable, error.to_string()))?;
            let path = PathAndQuery::from_static("/runtime.v1alpha2.RuntimeService/Version");
            client.unary(request, path, ProstCodec::default()).await
        };
        Ok(self.call(Some(self.limits.call), request, call).await?)
    }

    /// The configuration of the runtime, if it exposes it: containerd does in a verbose status.
    pub(crate) async fn verbose_config(&self) -> Value {
        let mut client = self.runtime.clone();
        let answer =
            self.call(Some(self.limits.call), StatusRequest { verbose: true }, |request| async move {
                client.status(request).await
            });
        let shown =
            answer.await.ok().and_then(|answer| serde_json::from_str(answer.info.get("config")?).ok());
        shown.unwrap_or_default()
    }

    /// The cgroup driver in the runtime's configuration. It is read once: containerd 1.6 needs a restart to change it, and this
    /// process does too.
    pub(super) async fn configured_cgroup_driver(&self) -> Option<String> {
        if let Some(known) = self.cgroup_driver.get() {
            return known.clone();
        }
        let config = self.verbose_config().await;
        if config.is_null() {
            // The runtime did not answer, or does not show it.
            return None;
        }
        let systemd =
            config.pointer("/containerd/runtimes/runc/options/SystemdCgroup").and_then(Value::as_bool);
        let driver = systemd.map(|systemd| if systemd { "systemd" } else { "cgroupfs" }.to_owned());
        self.cgroup_driver.get_or_init(|| driver).clone()
    }

    /// The labels of all sandboxes, including those of other clients.
    pub(crate) async fn sandbox_labels(&self) -> Result<Vec<BTreeMap<String, String>>> {
        let mut client = self.runtime.clone();
        let answer =
            self.call(Some(self.limits.call), ListPodSandboxRequest { filter: None }, |request| async move {
                client.list_pod_sandbox(request).await
            });
        let answer = answer.await.map_err(|failure: CallError| vk_provider::Error::from(failure))?;
        Ok(answer.items.into_iter().map(|sandbox| sandbox.labels).collect())
    }
}
