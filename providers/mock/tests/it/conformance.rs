//! The conformance suite, with pods in this process and in another.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use tokio::{net::UnixListener, task::JoinSet};
use vk_provider::{Context, Provider, Result};
use vk_provider_mock::{ANNOTATION_PREFIX, Mock, PodHost, serve};
use vk_testing::conformance::{PodBehavior, Subject};

const LIMIT: Duration = Duration::from_secs(30);

/// Pods in this process. The host outlives the mocks.
struct InProcess(PodHost);

/// Pods behind a socket.
struct OtherProcess {
    folder: tempfile::TempDir,
    _server: JoinSet<()>,
}

impl InProcess {
    fn new() -> Self {
        Self(PodHost::default())
    }
}

impl OtherProcess {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("mock.sock")).unwrap();
        let mut server = JoinSet::new();
        server.spawn(async { serve(listener, PodHost::default()).await.unwrap() });
        Self { folder, _server: server }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("mock.sock")
    }
}

#[async_trait]
impl Subject for InProcess {
    async fn open(&self, context: Context) -> Result<Arc<dyn Provider>> {
        Ok(Arc::new(Mock::builder(context.node_name).host(self.0.clone()).volumes(true).build()))
    }

    fn configure_pod(&self, pod: &mut Pod, life: &PodBehavior) {
        life.script(ANNOTATION_PREFIX, pod);
    }

    fn port(&self) -> Option<u16> {
        Some(80)
    }
}

#[async_trait]
impl Subject for OtherProcess {
    async fn open(&self, context: Context) -> Result<Arc<dyn Provider>> {
        let mock = Mock::builder(context.node_name).backend(self.socket()).volumes(true).build();
        mock.connected(LIMIT).await?;
        Ok(Arc::new(mock))
    }

    fn configure_pod(&self, pod: &mut Pod, life: &PodBehavior) {
        life.script(ANNOTATION_PREFIX, pod);
    }

    fn port(&self) -> Option<u16> {
        Some(80)
    }
}

mod in_process {
    vk_testing::conformance!(super::InProcess::new());
}

mod other_process {
    vk_testing::conformance!(super::OtherProcess::new());
}
