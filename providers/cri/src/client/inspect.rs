//! What only somebody asks who looks for a mistake.

use std::collections::BTreeMap;

use serde_json::Value;
use tonic::{Code, Status, client::Grpc, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;
use vk_provider::Result;

use super::{ASKED_VERSION, Cri, Failure};
use crate::proto::{ListPodSandboxRequest, StatusRequest, VersionRequest, VersionResponse};

impl Cri {
    /// The answer to the version before this one, which had the same two messages.
    pub(crate) async fn old_version(&self) -> Result<VersionResponse> {
        let request = VersionRequest { version: ASKED_VERSION.to_owned() };
        let channel = self.channel.clone();
        let call = |request| async move {
            let mut client = Grpc::new(channel);
            let ready = client.ready().await;
            ready.map_err(|error| Status::new(Code::Unavailable, error.to_string()))?;
            let path = PathAndQuery::from_static("/runtime.v1alpha2.RuntimeService/Version");
            client.unary(request, path, ProstCodec::default()).await
        };
        Ok(self.ask(Some(self.limits.call), request, call).await?)
    }

    /// The runtime's configuration, where it shows it: containerd does, when it is asked at length.
    pub(crate) async fn shown_config(&self) -> Value {
        let mut client = self.runtime.clone();
        let answer =
            self.ask(Some(self.limits.call), StatusRequest { verbose: true }, |request| async move {
                client.status(request).await
            });
        let shown =
            answer.await.ok().and_then(|answer| serde_json::from_str(answer.info.get("config")?).ok());
        shown.unwrap_or_default()
    }

    /// The labels of every sandbox, whoever made it.
    pub(crate) async fn owners(&self) -> Result<Vec<BTreeMap<String, String>>> {
        let mut client = self.runtime.clone();
        let answer =
            self.ask(Some(self.limits.call), ListPodSandboxRequest { filter: None }, |request| async move {
                client.list_pod_sandbox(request).await
            });
        let answer = answer.await.map_err(|failure: Failure| vk_provider::Error::from(failure))?;
        Ok(answer.items.into_iter().map(|sandbox| sandbox.labels).collect())
    }
}
