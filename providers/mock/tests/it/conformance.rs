//! The mock keeps the contract: with its pods in this process, and with them behind a socket.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use tokio::{net::UnixListener, task::JoinSet};
use vk_provider::{Context, Provider, Result};
use vk_provider_mock::{ANNOTATION_PREFIX, Clock, Host, Mock, serve};
use vk_testing::conformance::{PodBehavior, Subject};

const LIMIT: Duration = Duration::from_secs(30);

/// Pods in this process. The host outlives the mocks that are opened on it.
struct Here(Host);

/// Pods behind a socket.
struct There {
    folder: tempfile::TempDir,
    _server: JoinSet<()>,
}

impl Here {
    fn new() -> Self {
        Self(Host::new(Clock::system()))
    }
}

impl There {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("mock.sock")).unwrap();
        let mut server = JoinSet::new();
        server.spawn(async { serve(listener, Host::new(Clock::system())).await.unwrap() });
        Self { folder, _server: server }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("mock.sock")
    }
}

#[async_trait]
impl Subject for Here {
    async fn open(&self, context: Context) -> Result<Arc<dyn Provider>> {
        Ok(Arc::new(Mock::builder(context.node_name).host(self.0.clone()).build()))
    }

    fn configure_pod(&self, pod: &mut Pod, life: &PodBehavior) {
        life.script(ANNOTATION_PREFIX, pod);
    }

    fn port(&self) -> Option<u16> {
        Some(80)
    }
}

#[async_trait]
impl Subject for There {
    async fn open(&self, context: Context) -> Result<Arc<dyn Provider>> {
        let mock = Mock::builder(context.node_name).backend(self.socket()).build();
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

mod here {
    vk_testing::conformance!(super::Here::new());
}

mod there {
    vk_testing::conformance!(super::There::new());
}
