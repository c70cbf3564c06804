//! A fake container runtime that returns prepared responses and records requests.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    path::{Path, PathBuf},
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::{net::UnixListener, runtime, sync::mpsc};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{BoxStream, http},
    server::NamedService,
    transport::Server,
};
use vk_provider_cri::proto::{
    self,
    image_service_server::{ImageService, ImageServiceServer},
    runtime_service_server::{RuntimeService, RuntimeServiceServer},
};

/// Prepared responses, and the recorded requests.
#[derive(Default)]
pub(crate) struct Responses {
    /// Whether calls hang.
    pub(crate) hangs: bool,
    /// Errors by name of the call.
    pub(crate) errors: BTreeMap<&'static str, Status>,
    pub(crate) conditions: Vec<proto::RuntimeCondition>,
    pub(crate) info: BTreeMap<String, String>,
    pub(crate) sandboxes: Vec<proto::PodSandbox>,
    pub(crate) containers: Vec<proto::Container>,
    pub(crate) container_status: Option<proto::ContainerStatus>,
    pub(crate) image: Option<proto::Image>,
    pub(crate) image_ref: String,
    pub(crate) url: String,
    pub(crate) ran: proto::ExecSyncResponse,
    pub(crate) pod_stats: Option<Vec<proto::PodSandboxStats>>,
    pub(crate) container_stats: Vec<proto::ContainerStats>,
    pub(crate) events: Option<mpsc::Receiver<Result<proto::ContainerEventResponse, Status>>>,
    pub(crate) created: Option<proto::CreateContainerRequest>,
    pub(crate) pulled: Option<proto::PullImageRequest>,
    pub(crate) filters: Vec<BTreeMap<String, String>>,
    pub(crate) authorities: Vec<String>,
    pub(crate) calls: Vec<&'static str>,
}

/// The version of the interface that it implements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CriVersion {
    V1,
    Alpha,
    Nothing,
}

/// The fake runtime. Dropping it stops the server.
pub(crate) struct FakeRuntime {
    folder: TempDir,
    script: Arc<Mutex<Responses>>,
    /// A tokio runtime of its own, so that its connections end with it.
    threads: Option<runtime::Runtime>,
}

impl FakeRuntime {
    /// Starts one with empty responses.
    pub(crate) fn start() -> Self {
        let mut fake = Self::absent();
        fake.serve(CriVersion::V1);
        fake
    }

    /// Creates one that does not listen yet.
    pub(crate) fn absent() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), script: Arc::default(), threads: None }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("cri.sock")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn script(&self) -> parking_lot::MutexGuard<'_, Responses> {
        self.script.lock()
    }

    pub(crate) fn serve(&mut self, version: CriVersion) {
        let threads = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = {
            let _entered = threads.enter();
            UnixListener::bind(self.socket()).unwrap()
        };
        let answers = FakeService(Arc::clone(&self.script));
        let runtime = RuntimeServiceServer::new(answers.clone()).max_encoding_message_size(32 << 20);
        let mut server = Server::builder();
        let script = Arc::clone(&self.script);
        let router = match version {
            CriVersion::V1 => server
                .add_service(AuthorityRecorder { inner: runtime, script })
                .add_service(ImageServiceServer::new(answers)),
            CriVersion::Alpha => server.add_service(V1alpha2Service(runtime)),
            CriVersion::Nothing => server.add_service(ImageServiceServer::new(answers)),
        };
        threads.spawn(async move {
            router.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
        });
        self.threads = Some(threads);
    }

    /// Stops the server and drops all calls under way.
    pub(crate) fn die(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
        std::fs::remove_file(self.socket()).unwrap();
    }
}

impl Drop for FakeRuntime {
    fn drop(&mut self) {
        // A tokio runtime must not be dropped inside another one.
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}

#[derive(Clone)]
struct FakeService(Arc<Mutex<Responses>>);

impl FakeService {
    async fn record_call(&self, call: &'static str) -> Result<(), Status> {
        let hangs = {
            let mut script = self.0.lock();
            script.calls.push(call);
            script.hangs
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        match self.0.lock().errors.get(call) {
            Some(status) => Err(status.clone()),
            None => Ok(()),
        }
    }

    async fn answer<A>(
        &self,
        call: &'static str,
        make: impl FnOnce(&mut Responses) -> A,
    ) -> Result<Response<A>, Status> {
        self.record_call(call).await?;
        Ok(Response::new(make(&mut self.0.lock())))
    }
}

type Answer<A> = Result<Response<A>, Status>;

#[tonic::async_trait]
impl RuntimeService for FakeService {
    async fn version(&self, _: Request<proto::VersionRequest>) -> Answer<proto::VersionResponse> {
        self.answer("Version", |_| proto::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "fake".into(),
            runtime_version: "1.2.3".into(),
            runtime_api_version: "v1".into(),
        })
        .await
    }

    async fn status(&self, request: Request<proto::StatusRequest>) -> Answer<proto::StatusResponse> {
        let verbose = request.into_inner().verbose;
        self.answer("Status", |script| proto::StatusResponse {
            status: Some(proto::RuntimeStatus { conditions: script.conditions.clone() }),
            info: if verbose { script.info.clone() } else { BTreeMap::new() },
            runtime_handlers: Vec::new(),
        })
        .await
    }

    async fn run_pod_sandbox(
        &self,
        _: Request<proto::RunPodSandboxRequest>,
    ) -> Answer<proto::RunPodSandboxResponse> {
        self.answer("RunPodSandbox", |_| proto::RunPodSandboxResponse::default()).await
    }

    async fn stop_pod_sandbox(
        &self,
        _: Request<proto::StopPodSandboxRequest>,
    ) -> Answer<proto::StopPodSandboxResponse> {
        self.answer("StopPodSandbox", |_| proto::StopPodSandboxResponse {}).await
    }

    async fn remove_pod_sandbox(
        &self,
        _: Request<proto::RemovePodSandboxRequest>,
    ) -> Answer<proto::RemovePodSandboxResponse> {
        self.answer("RemovePodSandbox", |_| proto::RemovePodSandboxResponse {}).await
    }

    async fn pod_sandbox_status(
        &self,
        _: Request<proto::PodSandboxStatusRequest>,
    ) -> Answer<proto::PodSandboxStatusResponse> {
        self.answer("PodSandboxStatus", |_| proto::PodSandboxStatusResponse::default()).await
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<proto::ListPodSandboxRequest>,
    ) -> Answer<proto::ListPodSandboxResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        self.answer("ListPodSandbox", |script| {
            script.filters.push(filter.label_selector);
            proto::ListPodSandboxResponse { items: script.sandboxes.clone() }
        })
        .await
    }

    async fn create_container(
        &self,
        request: Request<proto::CreateContainerRequest>,
    ) -> Answer<proto::CreateContainerResponse> {
        self.answer("CreateContainer", |script| {
            script.created = Some(request.into_inner());
            proto::CreateContainerResponse { container_id: "new".into() }
        })
        .await
    }

    async fn start_container(
        &self,
        _: Request<proto::StartContainerRequest>,
    ) -> Answer<proto::StartContainerResponse> {
        self.answer("StartContainer", |_| proto::StartContainerResponse {}).await
    }

    async fn stop_container(
        &self,
        _: Request<proto::StopContainerRequest>,
    ) -> Answer<proto::StopContainerResponse> {
        self.answer("StopContainer", |_| proto::StopContainerResponse {}).await
    }

    async fn remove_container(
        &self,
        _: Request<proto::RemoveContainerRequest>,
    ) -> Answer<proto::RemoveContainerResponse> {
        self.answer("RemoveContainer", |_| proto::RemoveContainerResponse {}).await
    }

    async fn container_status(
        &self,
        _: Request<proto::ContainerStatusRequest>,
    ) -> Answer<proto::ContainerStatusResponse> {
        self.answer("ContainerStatus", |script| proto::ContainerStatusResponse {
            status: script.container_status.clone(),
        })
        .await
    }

    async fn list_containers(
        &self,
        request: Request<proto::ListContainersRequest>,
    ) -> Answer<proto::ListContainersResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        self.answer("ListContainers", |script| {
            let wanted = |known: &&proto::Container| filter.id.is_empty() || known.id == filter.id;
            let containers = script.containers.iter().filter(wanted).cloned().collect();
            script.filters.push(filter.label_selector.clone());
            proto::ListContainersResponse { containers }
        })
        .await
    }

    async fn exec_sync(&self, _: Request<proto::ExecSyncRequest>) -> Answer<proto::ExecSyncResponse> {
        self.answer("ExecSync", |script| script.ran.clone()).await
    }

    async fn exec(&self, _: Request<proto::ExecRequest>) -> Answer<proto::ExecResponse> {
        self.answer("Exec", |script| proto::ExecResponse { url: script.url.clone() }).await
    }

    async fn attach(&self, _: Request<proto::AttachRequest>) -> Answer<proto::AttachResponse> {
        self.answer("Attach", |script| proto::AttachResponse { url: script.url.clone() }).await
    }

    async fn port_forward(
        &self,
        _: Request<proto::PortForwardRequest>,
    ) -> Answer<proto::PortForwardResponse> {
        self.answer("PortForward", |script| proto::PortForwardResponse { url: script.url.clone() }).await
    }

    async fn list_container_stats(
        &self,
        _: Request<proto::ListContainerStatsRequest>,
    ) -> Answer<proto::ListContainerStatsResponse> {
        self.answer("ListContainerStats", |script| proto::ListContainerStatsResponse {
            stats: script.container_stats.clone(),
        })
        .await
    }

    async fn list_pod_sandbox_stats(
        &self,
        _: Request<proto::ListPodSandboxStatsRequest>,
    ) -> Answer<proto::ListPodSandboxStatsResponse> {
        self.record_call("ListPodSandboxStats").await?;
        match self.0.lock().pod_stats.clone() {
            Some(stats) => Ok(Response::new(proto::ListPodSandboxStatsResponse { stats })),
            None => Err(Status::unimplemented("method ListPodSandboxStats not implemented")),
        }
    }

    /// Responds only with the first event, as containerd does.
    async fn get_container_events(
        &self,
        _: Request<proto::GetEventsRequest>,
    ) -> Answer<BoxStream<proto::ContainerEventResponse>> {
        self.record_call("GetContainerEvents").await?;
        let events = self.0.lock().events.take();
        let mut events = events.ok_or_else(|| Status::unavailable("no events are prepared"))?;
        let first = events.recv().await.ok_or_else(|| Status::unavailable("none comes any more"))?;
        let rest = ReceiverStream::new(events);
        Ok(Response::new(Box::pin(futures::StreamExt::chain(futures::stream::iter([first]), rest))))
    }
}

#[tonic::async_trait]
impl ImageService for FakeService {
    async fn image_status(
        &self,
        _: Request<proto::ImageStatusRequest>,
    ) -> Answer<proto::ImageStatusResponse> {
        self.answer("ImageStatus", |script| proto::ImageStatusResponse { image: script.image.clone() }).await
    }

    async fn pull_image(
        &self,
        request: Request<proto::PullImageRequest>,
    ) -> Answer<proto::PullImageResponse> {
        self.answer("PullImage", |script| {
            script.pulled = Some(request.into_inner());
            proto::PullImageResponse { image_ref: script.image_ref.clone() }
        })
        .await
    }

    async fn remove_image(
        &self,
        _: Request<proto::RemoveImageRequest>,
    ) -> Answer<proto::RemoveImageResponse> {
        self.answer("RemoveImage", |_| proto::RemoveImageResponse {}).await
    }
}

type Runtime = RuntimeServiceServer<FakeService>;
type Outcome = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

/// Records the authority of requests.
#[derive(Clone)]
struct AuthorityRecorder {
    inner: Runtime,
    script: Arc<Mutex<Responses>>,
}

impl NamedService for AuthorityRecorder {
    const NAME: &'static str = Runtime::NAME;
}

impl tower::Service<http::Request<Body>> for AuthorityRecorder {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Outcome;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Outcome {
        let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        self.script.lock().authorities.push(authority);
        tower::Service::call(&mut self.inner, request)
    }
}

/// The same service under the name of version v1alpha2.
#[derive(Clone)]
struct V1alpha2Service(Runtime);

impl NamedService for V1alpha2Service {
    const NAME: &'static str = "runtime.v1alpha2.RuntimeService";
}

impl tower::Service<http::Request<Body>> for V1alpha2Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Outcome;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Outcome {
        let path = request.uri().path().replace(Self::NAME, Runtime::NAME);
        *request.uri_mut() = path.parse().unwrap();
        tower::Service::call(&mut self.0, request)
    }
}
