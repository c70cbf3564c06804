//! The provider under test, as its author introduces it.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use vk_provider::{Context, Provider, Result};

/// A backend for one case, and how a process opens its provider on it.
///
/// Only [`open`](Self::open) must be written. Each case makes a value of its own and opens it once. The cases about a
/// restart drop what they opened and open it again, as the next process would; so does the end of a case, to remove the
/// pods that it made.
#[async_trait]
pub trait Subject: Send + Sync + 'static {
    /// Opens the provider of the node `context.node_name`, as a process does at its start. Called again on the same
    /// value, it stands for the next process: whatever outlives a process must be found again, by way of `self` or of
    /// `context.state_dir`, which is the same folder each time.
    async fn open(&self, context: Context) -> Result<Arc<dyn Provider>>;

    /// What the backend cannot do. The cases about it then say that they do not apply. Said of something that the
    /// provider has, or not said of something that it has not, it fails them.
    fn lacks(&self) -> &[Feature] {
        &[]
    }

    /// Makes a pod do on this backend what the case wants of it. The pods come with the image `busybox:1.37` and shell
    /// commands that do it on a container runtime; other backends set what they go by, such as annotations.
    fn configure_pod(&self, _pod: &mut Pod, _life: &PodBehavior) {}

    /// How long anything may take: an answer, a start, an end. Generous, because it is waited for in full only when a
    /// rule is broken.
    fn limit(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// A port on which the pods listen, for the case that connects to it. On port 1 nothing may listen.
    fn port(&self) -> Option<u16> {
        None
    }
}

/// What a pod of a case shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodBehavior {
    /// Each of its regular containers.
    pub containers: ContainerBehavior,
    /// Each of its init containers, if it has any.
    pub init: ContainerBehavior,
}

impl PodBehavior {
    /// Tells a mock, which goes by annotations that begin so.
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

/// What a container does once it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerBehavior {
    /// Runs until it is asked to stop, and then ends soon.
    UntilStopped,
    /// Runs until it is killed: a request to stop does not impress it.
    UntilKilled,
    /// Ends by itself after a moment, with this code.
    Ends(i32),
}

/// Something that a backend may be without.
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
    /// Containers that end by themselves, with an exit code.
    Endings,
    /// Containers that start again after they ended.
    Restarts,
    /// Containers that run before the others. Without them such a pod must be refused.
    InitContainers,
    /// Containers that join a running pod. Without them such an update must be refused.
    EphemeralContainers,
    /// Pods that outlive the process. Without it the next process lists none.
    Survival,
    /// Two pods of one name at a time. Without it the newer one must wait, with `Unavailable`, until the older one is gone.
    Namesakes,
    /// Knowing that nothing listens on a port before anything was sent there. Without it reading tells.
    ClosedPorts,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Logs => "logs",
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "port-forward",
            Self::Stats => "stats",
            Self::Endings => "containers that end by themselves",
            Self::Restarts => "restarts",
            Self::InitContainers => "init containers",
            Self::EphemeralContainers => "ephemeral containers",
            Self::Survival => "pods that outlive the process",
            Self::Namesakes => "two pods of one name at a time",
            Self::ClosedPorts => "answer about closed ports before something was sent",
        })
    }
}
