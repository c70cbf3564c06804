//! Test code: a node that serves its API on a free port, and its clients.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName, sign::SingleCertAndKey};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use vk_provider::{
    ContainerRef, Error, ObservedPod, PodBundle, PodRef, Provider, Quantity, Result,
    ability::{Exec, ExecOptions, Fit, LogBody, LogOptions, Logs, LowerNode, Output, Started, Verdict},
    placement::TOKEN_AUDIENCE,
};
use vk_server::{
    Api, ConnectionLimits, DebugHandlers, Metrics, PodLister,
    auth::{Authenticator, Authorizer, CacheTtls, Reviewer, UserInfo, review::AccessRequest},
    tls::{self, ServingCertificate, client_ca::ClientCa},
};
use vk_supervisor::{Clock, Supervisor, task};

use crate::certificates::{CA, TestCertificate};

/// The token of a user who may do everything.
pub(crate) const TOKEN: &str = "everything";
/// The token of a user who may do nothing.
pub(crate) const POWERLESS: &str = "nothing";
/// The token of a user who may do one thing to nodes begins with this and continues with the verb and the subresource, as in
/// `may:get/log`.
pub(crate) const MAY: &str = "may:";
/// Before another token: it is not for the API server, but for the audience of placement.
pub(crate) const FOR_PLACEMENT: &str = "placement:";
/// Limit of sessions in tests.
pub(crate) const SESSIONS: usize = 3;
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Allows everything to the user of [`TOKEN`] and to `admin`, and to users of tokens with [`MAY`] what they say. A token that begins with
/// [`FOR_PLACEMENT`] is one for the audience of placement.
struct FakeReviewer;

#[async_trait]
impl Reviewer for FakeReviewer {
    async fn review_token(
        &self,
        token: &str,
        audience: Option<&str>,
    ) -> std::result::Result<Option<UserInfo>, vk_kube::Error> {
        let token = match (audience, token.strip_prefix(FOR_PLACEMENT)) {
            (None, None) => token,
            (Some(TOKEN_AUDIENCE), Some(rest)) => rest,
            _ => return Ok(None),
        };
        let name = match token {
            TOKEN => "bearer",
            POWERLESS => "powerless",
            _ if token.starts_with(MAY) => token,
            _ => return Ok(None),
        };
        Ok(Some(UserInfo { name: name.to_owned(), ..UserInfo::default() }))
    }

    async fn review_access(&self, access: &AccessRequest) -> std::result::Result<bool, vk_kube::Error> {
        let AccessRequest { user, verb, subresource, .. } = access;
        let allowed = format!("{MAY}{verb}/{subresource}");
        Ok(["bearer", "admin", &allowed].contains(&user.name.as_str()))
    }
}

/// A provider without pods, whose logs and commands the test sets.
#[derive(Default)]
pub(crate) struct FakeProvider {
    pub(crate) log: Mutex<Option<LogBody>>,
    pub(crate) asked: Mutex<Option<LogOptions>>,
    /// The result of the next exec.
    pub(crate) started: Mutex<Option<Started>>,
    /// Whether it tells whether pods fit.
    pub(crate) has_fit: AtomicBool,
}

#[async_trait]
impl Provider for FakeProvider {
    async fn create_pod(&self, _: PodBundle) -> Result<()> {
        Ok(())
    }

    async fn update_pod(&self, _: PodBundle) -> Result<()> {
        Ok(())
    }

    async fn delete_pod(&self, _: &PodRef, _: Option<Arc<Pod>>, _: Duration) -> Result<()> {
        Ok(())
    }

    async fn pod_status(&self, _: &PodRef) -> Result<PodStatus> {
        Err(Error::not_found("nothing runs"))
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        Ok(Vec::new())
    }

    fn logs(&self) -> Option<&dyn Logs> {
        Some(self)
    }

    fn exec(&self) -> Option<&dyn Exec> {
        Some(self)
    }

    fn fit(&self) -> Option<&dyn Fit> {
        self.has_fit.load(Ordering::Relaxed).then_some(self as &dyn Fit)
    }
}

/// Its answers show the question: the room is the number of held pods and of those that are gone.
impl Fit for FakeProvider {
    fn fit(&self, held: &[Arc<Pod>], pods: &[Arc<Pod>], without: &[Arc<str>]) -> Vec<Verdict> {
        let room = u32::try_from(held.len() * 10 + without.len()).unwrap();
        pods.iter().map(|_| Verdict::Fits { room, fullness: 50 }).collect()
    }

    fn best_nodes(&self, _: &Pod, count: usize) -> Vec<LowerNode> {
        let free = BTreeMap::from([("cpu".to_owned(), Quantity::units(2))]);
        (0..count).map(|number| LowerNode { name: format!("lower-{number}"), free: free.clone() }).collect()
    }
}

#[async_trait]
impl Exec for FakeProvider {
    async fn start(&self, _: &ContainerRef, _: &[String], _: &ExecOptions) -> Result<Started> {
        self.started.lock().take().ok_or_else(|| Error::not_found("nothing is prepared"))
    }
}

#[async_trait]
impl Logs for FakeProvider {
    async fn open(&self, _: &ContainerRef, options: &LogOptions) -> Result<LogBody> {
        *self.asked.lock() = Some(options.clone());
        if options.output != Output::All {
            return Err(Error::unsupported("the streams of a container are one"));
        }
        self.log.lock().take().ok_or_else(|| Error::unavailable("it has not started"))
    }
}

/// A log in pieces.
pub(crate) fn pieces(text: &'static str) -> vk_provider::ability::LogStream {
    stream::iter(text.as_bytes().chunks(3).map(|piece| Ok(Bytes::from_static(piece)))).boxed()
}

struct SinglePod(Arc<Pod>);

impl PodLister for SinglePod {
    fn list(&self) -> Vec<Arc<Pod>> {
        vec![Arc::clone(&self.0)]
    }
}

/// A node that serves its API.
pub(crate) struct TestNode {
    pub(crate) port: u16,
    pub(crate) serving: ServingCertificate,
    pub(crate) metrics: Metrics,
    pub(crate) provider: Arc<FakeProvider>,
    pub(crate) supervisor: Supervisor,
    pub(crate) fit_queries: Arc<Semaphore>,
}

// === impl TestNode ===

impl TestNode {
    pub(crate) async fn start(limits: ConnectionLimits) -> Self {
        Self::start_with(limits, DebugHandlers::default()).await
    }

    /// The number of open sessions.
    pub(crate) fn sessions(&self, kind: &'static str) -> i64 {
        self.metrics.sessions.get_or_create(&vk_server::metrics::SessionLabels { kind }).get()
    }

    pub(crate) async fn start_with(limits: ConnectionLimits, debug_handlers: DebugHandlers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = ServingCertificate::new(CA.serving().certified_key());
        let client_ca = ClientCa::default();
        client_ca.replace(CA.pem.as_bytes()).unwrap();
        let minute = Duration::from_mins(1);
        let ttls = CacheTtls { token: minute, authorized: minute, unauthorized: minute };
        let clock = Clock::new(|| "2026-06-01T00:00:00Z".parse().unwrap());
        let (metrics, provider, supervisor) =
            (Metrics::default(), Arc::new(FakeProvider::default()), Supervisor::new());
        let fit_queries = Arc::new(Semaphore::new(Api::DEFAULT_MAX_FIT_QUERIES));
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "web", "uid": "1-2-3"},
            "spec": {"containers": [{"name": "main"}], "initContainers": [{"name": "first"}]},
            "status": {"containerStatuses": [{
                "name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "ErrImagePull"}},
            }]},
        }))
        .unwrap();
        let api = Api {
            node: "vk".to_owned(),
            provider: Arc::clone(&provider) as Arc<dyn Provider>,
            pods: Arc::new(SinglePod(Arc::new(pod))),
            authenticator: Arc::new(Authenticator::new(
                client_ca,
                Arc::new(FakeReviewer),
                ttls,
                clock.clone(),
            )),
            authorizer: Arc::new(Authorizer::new(Arc::new(FakeReviewer), ttls)),
            clock,
            metrics: metrics.clone(),
            encode_metrics: Arc::new(|| "# EOF\n".to_owned()),
            configuration: json!({"port": port}),
            debug_handlers,
            streaming: vk_streaming::SessionLimits::default(),
            supervisor: supervisor.clone(),
            node_supervisor: supervisor.clone(),
            sessions: Arc::new(Semaphore::new(SESSIONS)),
            fit_queries: Arc::clone(&fit_queries),
        };
        let config = tls::config(serving.clone()).unwrap();
        supervisor.spawn(
            "server",
            task::Kind::Critical,
            vk_server::serve(listener, config, Arc::new(api), limits),
        );
        Self { port, serving, metrics, provider, supervisor, fit_queries }
    }

    /// A TLS connection with this client certificate.
    pub(crate) async fn connect(
        &self,
        client: Option<&TestCertificate>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        connect(self.port, client, versions).await
    }

    /// Sends bytes and returns the response until the node closes the connection.
    pub(crate) async fn send_raw(
        &self,
        client: Option<&TestCertificate>,
        bytes: &[u8],
    ) -> std::io::Result<String> {
        let mut stream = self.connect(client, rustls::ALL_VERSIONS).await?;
        stream.write_all(bytes).await?;
        Ok(until_end(&mut stream).await)
    }

    /// The status code and body of the response to a request with the valid token.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        self.send("GET", path, TOKEN, "").await
    }

    /// The status code and body of the response to a request.
    pub(crate) async fn send(&self, method: &str, path: &str, token: &str, body: &str) -> (u16, String) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
        );
        let length =
            if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let request = format!("{head}{length}\r\n{body}");
        split(&self.send_raw(None, request.as_bytes()).await.unwrap())
    }
}

/// A TLS connection to a server of the test CA, with this client certificate.
pub(crate) async fn connect(
    port: u16,
    client: Option<&TestCertificate>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CA.der.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let config = match client {
        // Without the checks of rustls, which refuses certificates of version 1.
        Some(pair) => {
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified_key())))
        }
        None => builder.with_no_client_auth(),
    };
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Reads to the end, or until the connection breaks.
pub(crate) async fn until_end(stream: &mut TlsStream<TcpStream>) -> String {
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(length) = tokio::time::timeout(SOON, stream.read(&mut piece)).await.expect("an end in time")
    {
        if length == 0 {
            break;
        }
        answer.extend_from_slice(&piece[..length]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// The status code of a response, and its body with chunks joined.
pub(crate) fn split(answer: &str) -> (u16, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
    if !head.to_lowercase().contains("transfer-encoding: chunked") {
        return (code, body.to_owned());
    }
    let (mut whole, mut rest) = (String::new(), body);
    while let Some((size, more)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        if size == 0 {
            break;
        }
        whole += &more[..size];
        rest = more[size..].trim_start_matches("\r\n");
    }
    (code, whole)
}
