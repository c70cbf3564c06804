//! The kubelet APIs of the process: a listener and a certificate per node, and one authenticator for all nodes.

mod certificate;
mod configz;

use std::{
    collections::HashMap,
    net::{SocketAddr, TcpListener as StdListener},
    sync::Arc,
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
    time::Instant,
};
use tracing::error;
use vk_kube::Client;
use vk_node::pods::pod_store::PodStore;
use vk_provider::{Context, Provider};
use vk_server::{
    Api, ConnectionLimits, DebugHandlers, Metrics, PodLister,
    auth::{ApiReviewer, Authenticator, Authorizer, CacheTtls, Reviewer},
    tls::{self, ServingCertificate, certificate_files::CertificateFiles, client_ca::ClientCa},
};
use vk_supervisor::{Clock, Supervisor, task};

use super::{
    exposition::Exposition,
    hostname::Hostname,
    listener::{listen, shown},
};
use crate::{
    cli::Failure,
    config::{self, EffectiveConfig, Listen, Problem},
};

/// Ports and files that must be available before the process changes anything in the cluster.
pub(super) struct KubeletResources {
    listeners: HashMap<String, TcpListener>,
    serving: Option<ServingCertificate>,
    authorities: Option<ClientCa>,
}

/// The kubelet APIs. Clones share them.
#[derive(Clone)]
pub(super) struct Kubelets(Arc<Inner>);

struct Inner {
    listeners: Mutex<HashMap<String, TcpListener>>,
    /// The certificate from files; `None` if each node has its own.
    serving: Option<ServingCertificate>,
    authenticator: Arc<Authenticator>,
    authorizer: Arc<Authorizer>,
    client: Client,
    config: EffectiveConfig,
    exposition: Exposition,
    metrics: Metrics,
    sessions: Arc<Semaphore>,
    fit_queries: Arc<Semaphore>,
    supervisor: Supervisor,
}

/// A node whose kubelet API is served.
pub(super) struct ServedNode<'a> {
    pub(super) name: &'a str,
    pub(super) node: &'a config::Node,
    pub(super) context: &'a Context,
    pub(super) provider: Arc<dyn Provider>,
    pub(super) pods: PodStore,
    /// Its `Hostname` address.
    pub(super) hostname: Hostname,
    /// The last observed Node object.
    pub(super) observed_node: watch::Receiver<Option<Arc<Node>>>,
    /// Stops the node.
    pub(super) supervisor: Supervisor,
}

/// Where a kubelet API is served, and with which key.
pub(super) struct Endpoint {
    pub(super) port: u16,
    /// The fingerprint of the key; `None` if nothing is served.
    pub(super) key: watch::Receiver<Option<Arc<str>>>,
}

/// Adapts the pod store to the server's interface.
struct PodStoreView(PodStore);

// === impl KubeletResources ===

impl KubeletResources {
    /// Binds the ports, retrying until the deadline, and reads the files, so that errors are reported at startup.
    pub(super) async fn open(config: &EffectiveConfig, deadline: Instant) -> Result<Self, Failure> {
        let mut listeners = HashMap::new();
        for node in &config.nodes {
            let address = Listen { address: node.address, port: node.port };
            let context =
                || format!("node {}: cannot listen on {} for the kubelet API", node.name, shown(address));
            listeners.insert(node.name.clone(), listen(address, deadline).await.with_context(context)?);
        }
        let invalid =
            |key: &str, error: tls::Error| Failure::Configuration(vec![Problem::new(key, error.to_string())]);
        let serving = match files(config) {
            Some(files) => {
                Some(ServingCertificate::new(files.read().map_err(|error| invalid("tls.certFile", error))?))
            }
            None => None,
        };
        let authorities = match &config.tls.client_ca {
            Some(path) => {
                Some(ClientCa::from_file(path).map_err(|error| invalid("tls.clientCAFile", error))?)
            }
            None => None,
        };
        Ok(Self { listeners, serving, authorities })
    }
}

fn files(config: &EffectiveConfig) -> Option<CertificateFiles> {
    config.tls.serving.clone().map(|(cert, key)| CertificateFiles { cert, key })
}

// === impl Kubelets ===

impl Kubelets {
    /// Creates the shared parts. From now on certificate files and client CAs are watched for changes.
    pub(super) fn new(
        resources: KubeletResources,
        config: &EffectiveConfig,
        client: &Client,
        exposition: Exposition,
        metrics: Metrics,
        supervisor: &Supervisor,
    ) -> Self {
        if let (Some(files), Some(serving)) = (files(config), resources.serving.clone()) {
            spawn_until_stop(supervisor, "serving certificate", files.follow(serving));
        }
        let authorities = resources.authorities.unwrap_or_default();
        let known = authorities.clone();
        if let Some(path) = config.tls.client_ca.clone() {
            spawn_until_stop(supervisor, "authorities of clients", known.follow_file(path));
        } else {
            spawn_until_stop(supervisor, "authorities of clients", known.follow_cluster(client.clone()));
        }
        let ttls = CacheTtls {
            token: config.auth.token_ttl,
            authorized: config.auth.authorized_ttl,
            unauthorized: config.auth.unauthorized_ttl,
        };
        let reviewer: Arc<dyn Reviewer> = Arc::new(ApiReviewer::new(client));
        let authenticator = Authenticator::new(authorities, Arc::clone(&reviewer), ttls, Clock::system());
        Self(Arc::new(Inner {
            listeners: Mutex::new(resources.listeners),
            serving: resources.serving,
            authenticator: Arc::new(authenticator),
            authorizer: Arc::new(Authorizer::new(reviewer, ttls)),
            client: client.clone(),
            config: config.clone(),
            exposition,
            metrics,
            sessions: Arc::new(Semaphore::new(Api::DEFAULT_MAX_SESSIONS)),
            fit_queries: Arc::new(Semaphore::new(Api::DEFAULT_MAX_FIT_QUERIES)),
            supervisor: supervisor.clone(),
        }))
    }

    /// Starts serving a node's API. If that fails, the node still runs pods, but logs, exec and the like do not work.
    pub(super) fn serve(&self, served: ServedNode<'_>) -> Endpoint {
        let (name, port) = (served.name.to_owned(), served.context.kubelet_port);
        match self.start(served) {
            Ok(endpoint) => endpoint,
            Err(error) => {
                error!(node = name, error = format!("{error:#}"), "the node has no kubelet API");
                Endpoint { port, key: watch::Sender::new(None).subscribe() }
            }
        }
    }

    fn start(&self, served: ServedNode<'_>) -> anyhow::Result<Endpoint> {
        let shared = &*self.0;
        let supervisor = served.supervisor.clone();
        let listener = self.listener(&served)?;
        let port = listener.local_addr().context("the listener has no address")?.port();
        let serving = match &shared.serving {
            Some(serving) => serving.clone(),
            None => certificate::of_node(&served, shared)?,
        };
        let endpoint = Endpoint { port, key: serving.key() };
        let tls = tls::config(serving)?;
        let exposition = shared.exposition.clone();
        let mut streaming = vk_streaming::SessionLimits::default();
        streaming.idle = shared.config.streaming.idle_timeout;
        streaming.creation = shared.config.streaming.creation_timeout;
        let api = Api {
            node: served.name.to_owned(),
            configuration: configz::kubelet_configuration(&shared.config, &served, port),
            provider: served.provider,
            pods: Arc::new(PodStoreView(served.pods)),
            authenticator: Arc::clone(&shared.authenticator),
            authorizer: Arc::clone(&shared.authorizer),
            clock: Clock::system(),
            metrics: shared.metrics.clone(),
            encode_metrics: Arc::new(move || exposition.encode().unwrap_or_default()),
            debug_handlers: DebugHandlers {
                logs: shared.config.debug.system_logs.clone(),
                profiling: shared.config.debug.profiling,
            },
            streaming,
            supervisor: shared.supervisor.clone(),
            node_supervisor: served.supervisor,
            sessions: Arc::clone(&shared.sessions),
            fit_queries: Arc::clone(&shared.fit_queries),
        };
        let serve = vk_server::serve(listener, tls, Arc::new(api), ConnectionLimits::default());
        supervisor.spawn(format!("kubelet API of {}", served.name), task::Kind::Critical, serve);
        Ok(endpoint)
    }

    /// The listener that was opened for the node. A node that the backend added gets any free port, which is published in its
    /// Node object.
    fn listener(&self, served: &ServedNode<'_>) -> anyhow::Result<TcpListener> {
        if let Some(listener) = self.0.listeners.lock().remove(served.name) {
            return Ok(listener);
        }
        let any = match served.node.address {
            Some(address) => SocketAddr::new(address, 0),
            None => SocketAddr::from(([0_u8; 4], 0)),
        };
        let listener = StdListener::bind(any).with_context(|| format!("listen on {any}"))?;
        listener.set_nonblocking(true).context("set up the listener")?;
        TcpListener::from_std(listener).context("set up the listener")
    }
}

fn spawn_until_stop(supervisor: &Supervisor, name: &str, work: impl Future<Output = ()> + Send + 'static) {
    let guard = supervisor.clone();
    supervisor.spawn(name, task::Kind::Work, async move {
        tokio::select! {
            () = work => {}
            () = guard.stopping() => {}
        }
    });
}

// === impl PodStoreView ===

impl PodLister for PodStoreView {
    fn list(&self) -> Vec<Arc<Pod>> {
        self.0.all()
    }

    fn get(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.0.find(namespace, name)
    }
}
