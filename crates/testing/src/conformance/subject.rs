//! The provider under test.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use vk_provider::{Context, Provider, Result};

/// A backend for one case, and how a process opens its provider on it.
///
/// Only [`open`](Self::open) is required. Each case creates its own value and opens it once. Cases about restarts drop the provider and open it
/// again, as the next process does; so does the end of a case, to remove its pods.
#[async_trait]
pub trait Subject: Send + Sync + 'static {
    /// Opens the provider of the node `context.node_name`, as a process does at its start. A second call on the same value stands for the next
    /// process: it must find everything that outlives a process, through `self` or `context.state_dir`, which stays the same.
    async fn open(&self, context: Context) -> Result<Arc<dyn Provider>>;

    /// The features that the backend lacks; cases about them do not apply. A wrong declaration, in either direction, fails these cases.
    fn lacks(&self) -> &[Feature] {
        &[]
    }

    /// Configures a pod to behave on this backend as the case needs. Pods have the image `busybox:1.37` and shell commands that do this on a
    /// container runtime; other backends set, for example, annotations.
    fn configure_pod(&self, _pod: &mut Pod, _behavior: &PodBehavior) {}

    /// Time limit of every call, start and end. Generous, because only a violation takes that long.
    fn limit(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// A port on which the pods listen, for the case that connects to it. Nothing may listen on port 1.
    fn port(&self) -> Option<u16> {
        None
    }
}

/// How a pod of a case behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodBehavior {
    /// The behaviour of each regular container.
    pub containers: ContainerBehavior,
    /// The behaviour of each init container.
    pub init: ContainerBehavior,
}

impl PodBehavior {
    /// Sets the annotations of the mock provider, which have this prefix.
    pub fn script(&self, prefix: &str, pod: &mut Pod) {
        let mut set = |name: &str, value: String| {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(format!("{prefix}{name}"), value);
        };
        set("restart-backoff", "100ms".to_owned());
        match self.containers {
            ContainerBehavior::UntilStopped => {}
            ContainerBehavior::UntilKilled => set("stop-delay", "24h".to_owned()),
            ContainerBehavior::Ends(code) => {
                set("run-for", "200ms".to_owned());
                set("exit-code", code.to_string());
            }
        }
        if let ContainerBehavior::Ends(code) = self.init {
            set("init-run-for", "200ms".to_owned());
            set("init-exit-code", code.to_string());
        }
    }
}

/// How a running container behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerBehavior {
    /// Runs until SIGTERM, and then ends soon.
    UntilStopped,
    /// Ignores SIGTERM and runs until it is killed.
    UntilKilled,
    /// Exits after a moment with this code.
    Ends(i32),
}

/// A feature that a backend may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// [`Provider::logs`].
    Logs,
    /// [`Provider::exec`].
    Exec,
    /// [`Provider::attach`].
    Attach,
    /// [`Provider::port_forward`].
    PortForward,
    /// [`Provider::stats`].
    Stats,
    /// [`Provider::fit`].
    Fit,
    /// Containers that exit, with an exit code.
    Endings,
    /// Restarts of containers.
    Restarts,
    /// Init containers. A backend without them must reject such pods.
    InitContainers,
    /// Ephemeral containers. A backend without them must reject such updates.
    EphemeralContainers,
    /// Pods that outlive the process. Without this the next process lists none.
    Survival,
    /// Two pods of the same name at a time. Without this the newer one must wait, with `Unavailable`, until the older one has ended.
    Namesakes,
    /// Detecting a closed port before data is sent. Without this only reading fails.
    ClosedPorts,
    /// Shortening the grace period of a pod that is stopping.
    ShortenGrace,
    /// Files of configMap, secret, downwardAPI and projected volumes.
    Files,
    /// Variables from Secrets, and pull secrets.
    Secrets,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Logs => "logs",
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "port-forward",
            Self::Stats => "stats",
            Self::Fit => "fit",
            Self::Endings => "containers that exit",
            Self::Restarts => "restarts",
            Self::InitContainers => "init containers",
            Self::EphemeralContainers => "ephemeral containers",
            Self::Survival => "pods that outlive the process",
            Self::Namesakes => "two pods of the same name at a time",
            Self::ClosedPorts => "detection of closed ports before data is sent",
            Self::ShortenGrace => "shortening of a grace period that has begun",
            Self::Files => "files in volumes",
            Self::Secrets => "Secrets",
        })
    }
}
