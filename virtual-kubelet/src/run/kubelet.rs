//! The kubelet APIs of the process: a listener and a certificate for each node, and one gate for all of them.

mod certificate;
mod described;

use std::{
    collections::HashMap,
    net::{SocketAddr, TcpListener as StdListener},
    sync::Arc,
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::Mutex;
use prometheus_client::registry::Registry as Counters;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
};
use tracing::error;
use vk_kube::Client;
use vk_node::pods::pod_store::PodStore;
use vk_provider::{Context, Provider};
use vk_server::{
    Api, Limits, Metrics, Pods, Switches,
    auth::{ApiServer, Gate, Lifetimes},
    tls::{self, Serving, clients::Authorities, files::Files},
};
use vk_supervisor::{Clock, Supervisor, task};

use super::{admin, bind, shown};
use crate::{
    cli::Failure,
    config::{self, EffectiveConfig, Listen, Problem},
};

/// What must be there before the cluster is touched: ports that are free, and files that can be read.
pub(super) struct Doors {
    listeners: HashMap<String, TcpListener>,
    serving: Option<Serving>,
    authorities: Option<Authorities>,
}

/// The kubelet APIs. Clones share them.
#[derive(Clone)]
pub(super) struct Kubelets(Arc<Shared>);

struct Shared {
    listeners: Mutex<HashMap<String, TcpListener>>,
    /// From files; else each node has its own.
    serving: Option<Serving>,
    gate: Arc<Gate>,
    client: Client,
    config: EffectiveConfig,
    counters: Arc<Counters>,
    metrics: Metrics,
    sessions: Arc<Semaphore>,
    supervisor: Supervisor,
}

/// One node, as its API sees it.
pub(super) struct Served<'a> {
    pub(super) name: &'a str,
    pub(super) node: &'a config::Node,
    pub(super) context: &'a Context,
    pub(super) provider: Arc<dyn Provider>,
    pub(super) roll: PodStore,
    /// The Node as it was seen last.
    pub(super) seen: watch::Receiver<Option<Arc<Node>>>,
    /// Stops the node.
    pub(super) supervisor: Supervisor,
}

/// The roll as the server wants it.
struct Known(PodStore);

// === impl Doors ===

impl Doors {
    /// Opens them. A clash, and a file that cannot be used, is better told now.
    pub(super) async fn open(config: &EffectiveConfig) -> Result<Self, Failure> {
        let mut listeners = HashMap::new();
        for node in &config.nodes {
            let listen = Listen { address: node.address, port: node.port };
            let taken =
                || format!("node {}: cannot listen on {} for the kubelet API", node.name, shown(listen));
            listeners.insert(node.name.clone(), bind(listen).await.with_context(taken)?);
        }
        let refused =
            |key: &str, error: tls::Error| Failure::Configuration(vec![Problem::new(key, error.to_string())]);
        let serving = match files(config) {
            Some(files) => Some(Serving::new(files.read().map_err(|error| refused("tls.certFile", error))?)),
            None => None,
        };
        let authorities = match &config.tls.client_ca {
            Some(path) => {
                Some(Authorities::from_file(path).map_err(|error| refused("tls.clientCAFile", error))?)
            }
            None => None,
        };
        Ok(Self { listeners, serving, authorities })
    }
}

fn files(config: &EffectiveConfig) -> Option<Files> {
    config.tls.serving.clone().map(|(cert, key)| Files { cert, key })
}

// === impl Kubelets ===

impl Kubelets {
    /// What all nodes have in common: from now on files and authorities are followed.
    pub(super) fn new(
        doors: Doors,
        config: &EffectiveConfig,
        client: &Client,
        counters: Arc<Counters>,
        metrics: Metrics,
        supervisor: &Supervisor,
    ) -> Self {
        if let (Some(files), Some(serving)) = (files(config), doors.serving.clone()) {
            until_stop(supervisor, "serving certificate", files.follow(serving));
        }
        let authorities = doors.authorities.unwrap_or_default();
        let known = authorities.clone();
        if let Some(path) = config.tls.client_ca.clone() {
            until_stop(supervisor, "authorities of clients", known.follow_file(path));
        } else {
            until_stop(supervisor, "authorities of clients", known.follow_cluster(client.clone()));
        }
        let lifetimes = Lifetimes {
            token: config.auth.token_ttl,
            authorized: config.auth.authorized_ttl,
            unauthorized: config.auth.unauthorized_ttl,
        };
        let gate = Gate::new(authorities, Arc::new(ApiServer::new(client)), lifetimes, Clock::system());
        Self(Arc::new(Shared {
            listeners: Mutex::new(doors.listeners),
            serving: doors.serving,
            gate: Arc::new(gate),
            client: client.clone(),
            config: config.clone(),
            counters,
            metrics,
            sessions: Arc::new(Semaphore::new(Api::SESSIONS)),
            supervisor: supervisor.clone(),
        }))
    }

    /// Serves a node's API from now on, and answers on which port. Without one the node goes on: it runs pods, and shows
    /// neither their logs nor lets anybody in.
    pub(super) fn serve(&self, served: Served<'_>) -> u16 {
        let (name, port) = (served.name.to_owned(), served.context.kubelet_port);
        match self.start(served) {
            Ok(port) => port,
            Err(error) => {
                error!(node = name, error = format!("{error:#}"), "the node has no kubelet API");
                port
            }
        }
    }

    fn start(&self, served: Served<'_>) -> anyhow::Result<u16> {
        let shared = &*self.0;
        let listener = self.listener(&served)?;
        let port = listener.local_addr().context("the listener has no address")?.port();
        let serving = match &shared.serving {
            Some(serving) => serving.clone(),
            None => certificate::of_node(&served, shared)?,
        };
        let tls = tls::config(serving)?;
        let counters = Arc::clone(&shared.counters);
        let mut streaming = vk_streaming::Limits::default();
        streaming.idle = shared.config.streaming.idle_timeout;
        streaming.creation = shared.config.streaming.creation_timeout;
        let api = Api {
            node: served.name.to_owned(),
            configuration: described::configuration(&shared.config, &served, port),
            provider: served.provider,
            pods: Arc::new(Known(served.roll)),
            gate: Arc::clone(&shared.gate),
            clock: Clock::system(),
            metrics: shared.metrics.clone(),
            exposition: Arc::new(move || admin::exposition(&counters).unwrap_or_default()),
            switches: Switches {
                logs: shared.config.debug.system_logs.clone(),
                profiling: shared.config.debug.profiling,
            },
            streaming,
            owner: shared.supervisor.clone(),
            node_supervisor: served.supervisor,
            sessions: Arc::clone(&shared.sessions),
        };
        let serve = vk_server::serve(listener, tls, Arc::new(api), Limits::default());
        let task = super::fleet::keep(serve, shared.supervisor.clone());
        shared.supervisor.spawn(format!("kubelet API of {}", served.name), task::Kind::Critical, task);
        Ok(port)
    }

    /// The listener that was opened for the node. A node that its backend has added, beside the configured one, gets one on
    /// any free port: the Node object tells which.
    fn listener(&self, served: &Served<'_>) -> anyhow::Result<TcpListener> {
        if let Some(listener) = self.0.listeners.lock().remove(served.name) {
            return Ok(listener);
        }
        let any = match served.node.address {
            Some(address) => SocketAddr::new(address, 0),
            None => SocketAddr::from(([0_u8; 4], 0)),
        };
        let listener = StdListener::bind(any).with_context(|| format!("cannot listen on {any}"))?;
        listener.set_nonblocking(true).context("cannot use the listener")?;
        TcpListener::from_std(listener).context("cannot use the listener")
    }
}

fn until_stop(supervisor: &Supervisor, name: &str, work: impl Future<Output = ()> + Send + 'static) {
    let guard = supervisor.clone();
    supervisor.spawn(name, task::Kind::Work, async move {
        tokio::select! {
            () = work => {}
            () = guard.stopping() => {}
        }
    });
}

// === impl Known ===

impl Pods for Known {
    fn all(&self) -> Vec<Arc<Pod>> {
        self.0.all()
    }

    fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.0.find(namespace, name)
    }
}
