//! The client of a container runtime.

mod backend;
mod cpu_rate;
mod diagnostics;
mod events;

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tonic::{
    Code, Request, Response, Status,
    transport::{Channel, Endpoint},
};
use vk_provider::{Error, Result};

use self::cpu_rate::CpuRateTracker;
use crate::{
    error::{self, DialError},
    proto::{
        VersionRequest, VersionResponse, image_service_client::ImageServiceClient,
        runtime_service_client::RuntimeServiceClient,
    },
};

/// The kubelet's limit for one message; the lists of a full node are long.
const MAX_MESSAGE_SIZE: usize = 16 << 20;
/// The version that kubelets send. Runtimes return their own and do not compare.
const KUBELET_API_VERSION: &str = "0.1.0";
/// The longest timeout that is sent to the runtime: the gRPC header has room for eight digits.
const MAX_GRPC_TIMEOUT: Duration = Duration::from_hours(30 * 24);

/// Timeouts of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Timeout of a call; added to the duration of calls that have one (stop, exec).
    pub call: Duration,
    /// Timeout of an image pull; `None` for no limit.
    pub pull: Option<Duration>,
}

impl Default for Limits {
    /// The kubelet's defaults.
    fn default() -> Self {
        Self { call: Duration::from_mins(2), pull: None }
    }
}

/// A container runtime that implements version 1 of the Container Runtime Interface on a unix socket.
///
/// The first call connects, and the next call after a loss reconnects: while the runtime is down, calls return `Unavailable`.
/// Cheap to clone.
#[derive(Clone)]
pub struct Cri {
    socket: PathBuf,
    channel: Channel,
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    limits: Limits,
    /// Set when the runtime has reported that it does not support events.
    has_no_events: Arc<AtomicBool>,
    cpu_rates: Arc<Mutex<CpuRateTracker>>,
    /// The cgroup driver in the runtime's configuration, once it was read: for runtimes that do not report it otherwise.
    cgroup_driver: Arc<OnceLock<Option<String>>>,
    /// Sandboxes by container id, from the lists since the last complete one: the status of a container does not contain it.
    sandboxes: Arc<Mutex<HashMap<String, String>>>,
}

// === impl Cri ===

impl Cri {
    /// Creates a client for a socket, which need not exist yet. Call it inside a tokio runtime.
    pub fn new(socket: impl Into<PathBuf>, limits: Limits) -> Self {
        let socket = socket.into();
        let path: Arc<Path> = socket.clone().into();
        // A plain host name: containerd 2 rejects a path as authority.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(
            tower::service_fn(move |_| {
                let path = Arc::clone(&path);
                async move {
                    let stream =
                        UnixStream::connect(&path).await.map_err(|error| DialError::new(&path, &error))?;
                    Ok::<_, DialError>(TokioIo::new(stream))
                }
            }),
        );
        let runtime = RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_SIZE);
        let images = ImageServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_SIZE);
        Self {
            socket,
            channel,
            runtime,
            images,
            limits,
            has_no_events: Arc::default(),
            cpu_rates: Arc::default(),
            cgroup_driver: Arc::default(),
            sandboxes: Arc::default(),
        }
    }

    /// Connects with the kubelet's timeouts and checks the version: `Unavailable` if nothing answers, `Unsupported` if the
    /// runtime does not implement version 1.
    pub async fn connect(socket: impl Into<PathBuf>) -> Result<Self> {
        let cri = Self::new(socket, Limits::default());
        cri.version().await?;
        Ok(cri)
    }

    /// The path of the socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Name and version of the runtime.
    pub async fn version(&self) -> Result<VersionResponse> {
        let request = VersionRequest { version: KUBELET_API_VERSION.to_owned() };
        let mut client = self.runtime.clone();
        let outcome = self
            .call(Some(self.limits.call), request, |request| async move { client.version(request).await });
        outcome.await.map_err(|failure| match failure {
            CallError::Status(status) if status.code() == Code::Unimplemented => Error::unsupported(format!(
                "the runtime at {} does not implement version 1 of the Container Runtime Interface ({}): containerd 1.6, \
                 CRI-O 1.23 or cri-dockerd 0.3 and newer do, unless their configuration turns the interface off",
                self.socket.display(),
                status.message()
            )),
            failure => failure.into(),
        })
    }

    /// Makes a call with a timeout, which is also sent to the runtime.
    async fn call<Q, A, F>(
        &self,
        limit: Option<Duration>,
        request: Q,
        call: impl FnOnce(Request<Q>) -> F,
    ) -> Result<A, CallError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut request = Request::new(request);
        let answer = match limit {
            None => call(request).await,
            Some(limit) => {
                request.set_timeout(limit.min(MAX_GRPC_TIMEOUT));
                tokio::time::timeout(limit, call(request)).await.map_err(|_| CallError::TimedOut)?
            }
        };
        answer.map(Response::into_inner).map_err(CallError::Status)
    }
}

impl fmt::Debug for Cri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cri")
            .field("socket", &self.socket)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Why a call failed.
enum CallError {
    /// The runtime returned an error, or the connection was lost.
    Status(Status),
    /// The timeout has expired.
    TimedOut,
}

// === impl CallError ===

impl CallError {
    /// Whether the runtime's timeout or ours has expired.
    fn is_timeout(&self) -> bool {
        match self {
            Self::TimedOut => true,
            Self::Status(status) => status.code() == Code::DeadlineExceeded || error::is_timeout(status),
        }
    }

    /// Whether the runtime does not implement this call.
    fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Status(status) if status.code() == Code::Unimplemented)
    }
}

impl From<CallError> for Error {
    fn from(failure: CallError) -> Self {
        match failure {
            CallError::Status(status) => error::from_status(&status),
            CallError::TimedOut => error::deadline_exceeded(),
        }
    }
}
