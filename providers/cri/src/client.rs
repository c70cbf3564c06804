//! A runtime behind its socket.

mod backend;
mod events;
mod inspect;
mod meter;

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
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

use self::meter::Meter;
use crate::{
    fault::{self, Undialled},
    proto::{
        VersionRequest, VersionResponse, image_service_client::ImageServiceClient,
        runtime_service_client::RuntimeServiceClient,
    },
};

/// As much as a kubelet takes in one answer: a list of a full node is long.
const LARGEST_ANSWER: usize = 16 << 20;
/// The version that kubelets ask with. Runtimes answer with their own and compare nothing.
const ASKED_VERSION: &str = "0.1.0";
/// The longest limit that is told to the runtime: the header has room for eight digits.
const LONGEST_TOLD: Duration = Duration::from_hours(30 * 24);

/// How long calls may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Any call, and what a call with a time of its own (stop, run) may take beside.
    pub call: Duration,
    /// A pull; `None` is as long as it takes.
    pub pull: Option<Duration>,
}

impl Default for Limits {
    /// A kubelet's.
    fn default() -> Self {
        Self { call: Duration::from_mins(2), pull: None }
    }
}

/// A container runtime that speaks version 1 of the Container Runtime Interface, behind a unix socket.
///
/// The connection is made by the first call, and made again by the next one after it was lost: a runtime that is away costs an
/// `Unavailable` per call and nothing else. Cheap to clone.
#[derive(Clone)]
pub struct Cri {
    socket: PathBuf,
    channel: Channel,
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    limits: Limits,
    /// Set once the runtime has said that it has no events.
    silent: Arc<AtomicBool>,
    meter: Arc<Mutex<Meter>>,
    /// In which sandbox containers are, as the lists said since the last whole one: a container's status does not.
    homes: Arc<Mutex<HashMap<String, String>>>,
}

// === impl Cri ===

impl Cri {
    /// The runtime at this socket, which need not be there yet. Must be called within a tokio runtime.
    pub fn new(socket: impl Into<PathBuf>, limits: Limits) -> Self {
        let socket = socket.into();
        let path: Arc<Path> = socket.clone().into();
        // The authority is a plain name: containerd 2 refuses a path there.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(
            tower::service_fn(move |_| {
                let path = Arc::clone(&path);
                async move {
                    let stream =
                        UnixStream::connect(&path).await.map_err(|error| Undialled::new(&path, &error))?;
                    Ok::<_, Undialled>(TokioIo::new(stream))
                }
            }),
        );
        let runtime = RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(LARGEST_ANSWER);
        let images = ImageServiceClient::new(channel.clone()).max_decoding_message_size(LARGEST_ANSWER);
        Self {
            socket,
            channel,
            runtime,
            images,
            limits,
            silent: Arc::default(),
            meter: Arc::default(),
            homes: Arc::default(),
        }
    }

    /// The same, with a kubelet's limits, once it has answered: `Unavailable` where nobody does, `Unsupported` where the
    /// runtime does not speak version 1.
    pub async fn connect(socket: impl Into<PathBuf>) -> Result<Self> {
        let cri = Self::new(socket, Limits::default());
        cri.version().await?;
        Ok(cri)
    }

    /// Where it is.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Who it is.
    pub async fn version(&self) -> Result<VersionResponse> {
        let request = VersionRequest { version: ASKED_VERSION.to_owned() };
        let mut client = self.runtime.clone();
        let outcome =
            self.ask(Some(self.limits.call), request, |request| async move { client.version(request).await });
        outcome.await.map_err(|failure| match failure {
            Failure::Status(status) if status.code() == Code::Unimplemented => Error::unsupported(format!(
                "the runtime at {} does not speak version 1 of the Container Runtime Interface ({}): containerd 1.6, \
                 CRI-O 1.23 or cri-dockerd 0.3 and newer do, unless their configuration turns the interface off",
                self.socket.display(),
                status.message()
            )),
            failure => failure.into(),
        })
    }

    /// One call within a limit, which the runtime is told too.
    async fn ask<Q, A, F>(
        &self,
        limit: Option<Duration>,
        request: Q,
        call: impl FnOnce(Request<Q>) -> F,
    ) -> Result<A, Failure>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut request = Request::new(request);
        let answer = match limit {
            None => call(request).await,
            Some(limit) => {
                request.set_timeout(limit.min(LONGEST_TOLD));
                tokio::time::timeout(limit, call(request)).await.map_err(|_| Failure::Overdue)?
            }
        };
        answer.map(Response::into_inner).map_err(Failure::Status)
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

/// Why a call has no answer.
enum Failure {
    /// The runtime refused, or the connection broke.
    Status(Status),
    /// The limit is over.
    Overdue,
}

// === impl Failure ===

impl Failure {
    /// Whether the runtime's own limit or ours is over.
    fn is_overdue(&self) -> bool {
        match self {
            Self::Overdue => true,
            Self::Status(status) => status.code() == Code::DeadlineExceeded || fault::expired(status),
        }
    }

    /// Whether the runtime does not have this call.
    fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Status(status) if status.code() == Code::Unimplemented)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Status(status) => fault::error(&status),
            Failure::Overdue => fault::overdue(),
        }
    }
}
