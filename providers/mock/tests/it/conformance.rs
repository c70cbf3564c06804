//! The mock keeps the contract: with its pods in this process, and with them behind a socket.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use tokio::{net::UnixListener, task::JoinSet};
use vk_provider::{Context, Provider, Result};
use vk_provider_mock::{ANNOTATION_PREFIX, Clock, Host, Mock, serve};
use vk_testing::conformance::{Life, Run, Subject};

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

    fn dress(&self, pod: &mut Pod, life: &Life) {
        script(pod, life);
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

    fn dress(&self, pod: &mut Pod, life: &Life) {
        script(pod, life);
    }

    fn port(&self) -> Option<u16> {
        Some(80)
    }
}

/// The mock's pods go by their annotations.
fn script(pod: &mut Pod, life: &Life) {
    let mut set = |name: &str, value: String| {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(format!("{ANNOTATION_PREFIX}{name}"), value);
    };
    set("restart-backoff", "100ms".to_owned());
    match life.containers {
        Run::UntilStopped => {}
        Run::UntilKilled => set("stop-delay", "24h".to_owned()),
        Run::Ends(code) => {
            set("run-for", "200ms".to_owned());
            set("exit-code", code.to_string());
        }
    }
    if let Run::Ends(code) = life.init {
        set("init-run-for", "200ms".to_owned());
        set("init-exit-code", code.to_string());
    }
}

mod here {
    vk_testing::conformance!(super::Here::new());
}

mod there {
    vk_testing::conformance!(super::There::new());
}
