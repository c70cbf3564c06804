//! A node that serves its API on a free port, and callers of it.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
    sign::CertifiedKey,
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use vk_provider::{
    ContainerRef, Error, ObservedPod, PodBundle, PodRef, Provider, Result,
    ability::{Exec, ExecOptions, LogBody, LogOptions, Logs, Output, Started},
};
use vk_server::{
    Api, Limits, Metrics, Pods, Switches,
    auth::{Gate, Lifetimes, Reviews, User, review::Access},
    tls::{self, Serving, clients::Authorities},
};
use vk_supervisor::{Clock, Supervisor, task};

/// The token of somebody who may do everything.
pub(crate) const TOKEN: &str = "everything";
/// How many sessions a node has here.
pub(crate) const SESSIONS: usize = 3;
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// The authority of servers and clients.
pub(crate) static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::new("authority"));

pub(crate) struct Authority {
    pub(crate) pem: String,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) cert_pem: String,
    pub(crate) key_pem: String,
    chain: Vec<CertificateDer<'static>>,
    key: Vec<u8>,
}

// === impl Authority ===

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self { pem: certificate.pem(), der: certificate.der().clone(), issuer: Issuer::new(params, key) }
    }

    pub(crate) fn serving(&self) -> Pair {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&params)
    }

    pub(crate) fn client(&self, user: &str, until: i32) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Pair {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Pair {
            cert_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            chain: vec![certificate.der().clone()],
            key: key.serialize_der(),
        }
    }
}

// === impl Pair ===

impl Pair {
    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.clone()))
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        Arc::new(CertifiedKey::from_der(self.chain.clone(), self.key(), &provider).unwrap())
    }
}

/// Knows one token, and that its bearer and the user `admin` may do everything.
struct Oracle;

#[async_trait]
impl Reviews for Oracle {
    async fn token(&self, token: &str) -> std::result::Result<Option<User>, vk_kube::Error> {
        Ok((token == TOKEN).then(|| User { name: "bearer".to_owned(), ..User::default() }))
    }

    async fn access(&self, access: &Access) -> std::result::Result<bool, vk_kube::Error> {
        Ok(["bearer", "admin"].contains(&access.user.name.as_str()))
    }
}

/// Runs nothing, and has whatever log the test wants.
#[derive(Default)]
pub(crate) struct Puppet {
    pub(crate) log: Mutex<Option<LogBody>>,
    pub(crate) asked: Mutex<Option<LogOptions>>,
    /// What the next command is.
    pub(crate) started: Mutex<Option<Started>>,
}

#[async_trait]
impl Provider for Puppet {
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
}

#[async_trait]
impl Exec for Puppet {
    async fn start(&self, _: &ContainerRef, _: &[String], _: &ExecOptions) -> Result<Started> {
        self.started.lock().take().ok_or_else(|| Error::not_found("nothing is prepared"))
    }
}

#[async_trait]
impl Logs for Puppet {
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

struct One(Arc<Pod>);

impl Pods for One {
    fn all(&self) -> Vec<Arc<Pod>> {
        vec![Arc::clone(&self.0)]
    }
}

/// A node that serves its API.
pub(crate) struct Node {
    pub(crate) port: u16,
    pub(crate) serving: Serving,
    pub(crate) metrics: Metrics,
    pub(crate) provider: Arc<Puppet>,
    pub(crate) supervisor: Supervisor,
}

// === impl Node ===

impl Node {
    pub(crate) async fn start(limits: Limits) -> Self {
        Self::start_with(limits, Switches::default()).await
    }

    /// How many sessions go on.
    pub(crate) fn sessions(&self, kind: &'static str) -> i64 {
        self.metrics.sessions.get_or_create(&vk_server::metrics::Kind { kind }).get()
    }

    pub(crate) async fn start_with(limits: Limits, switches: Switches) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = Serving::new(AUTHORITY.serving().certified());
        let authorities = Authorities::default();
        authorities.replace(AUTHORITY.pem.as_bytes()).unwrap();
        let minute = Duration::from_mins(1);
        let lifetimes = Lifetimes { token: minute, authorized: minute, unauthorized: minute };
        let clock = Clock::new(|| "2026-06-01T00:00:00Z".parse().unwrap());
        let (metrics, provider, supervisor) =
            (Metrics::default(), Arc::new(Puppet::default()), Supervisor::new());
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
            pods: Arc::new(One(Arc::new(pod))),
            gate: Arc::new(Gate::new(authorities, Arc::new(Oracle), lifetimes, clock.clone())),
            clock,
            metrics: metrics.clone(),
            exposition: Arc::new(|| "# EOF\n".to_owned()),
            configuration: json!({"port": port}),
            switches,
            streaming: vk_streaming::Limits::default(),
            owner: supervisor.clone(),
            node_supervisor: supervisor.clone(),
            sessions: Arc::new(Semaphore::new(SESSIONS)),
        };
        let config = tls::config(serving.clone()).unwrap();
        supervisor.spawn(
            "server",
            task::Kind::Critical,
            vk_server::serve(listener, config, Arc::new(api), limits),
        );
        Self { port, serving, metrics, provider, supervisor }
    }

    /// A connection over TLS, as this client.
    pub(crate) async fn connect(
        &self,
        client: Option<&Pair>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(AUTHORITY.der.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let config = match client {
            Some(pair) => builder.with_client_auth_cert(pair.chain.clone(), pair.key()).unwrap(),
            None => builder.with_no_client_auth(),
        };
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// What is answered to these bytes until the node closes the connection.
    pub(crate) async fn say(&self, client: Option<&Pair>, bytes: &[u8]) -> std::io::Result<String> {
        let mut stream = self.connect(client, rustls::ALL_VERSIONS).await?;
        stream.write_all(bytes).await?;
        Ok(until_end(&mut stream).await)
    }

    /// The status code and body of the answer to a request with the good token.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
        );
        split(&self.say(None, request.as_bytes()).await.unwrap())
    }
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

/// The status code of an answer, and its body with chunks put together.
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
