//! Runs nodes: connects to the API server, opens the backends, and starts a controller for each node.

pub(crate) mod address;
mod admin;
mod bootstrap;
mod connection_check;
mod fleet;
mod kubelet;
mod node_impersonation;
mod terms;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Context as _;
use prometheus_client::registry::Registry as Counters;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tracing::{info, warn};
use vk_kube::{Client, Identity, Source, access::AccessCheck};
use vk_node::node;
use vk_supervisor::{Clock, Supervisor, task};

pub(crate) use self::fleet::context;
use self::{
    bootstrap::Bootstrap,
    fleet::{Fleet, Means},
    kubelet::{KubeletResources, Kubelets},
    node_impersonation::NodeImpersonation,
};
use crate::{
    Registry,
    cli::Failure,
    config::{EffectiveConfig, Listen, OnShutdown, Problem},
};

/// How a shell shows that a second signal ended the process.
pub(crate) const INTERRUPTED: i32 = 130;

/// A running process: its nodes, and what keeps them.
#[derive(Debug)]
pub(crate) struct Running {
    supervisor: Supervisor,
    fleet: Fleet,
    /// How long stopping may take.
    limit: Duration,
}

/// Runs the nodes of the configuration until the process is told to stop.
pub async fn run(config: EffectiveConfig, registry: Registry) -> Result<(), Failure> {
    let mut stop = Stop::listen()?;
    let running = tokio::select! {
        started = Box::pin(start(config, registry)) => started?,
        signal = stop.signal() => {
            info!(signal, "stopping before a node was started");
            return Ok(());
        }
    };
    running.until(&mut stop).await
}

/// Starts the nodes of the configuration. What can be refused is refused here, before the cluster is touched; until then
/// this may be dropped.
pub(crate) async fn start(config: EffectiveConfig, registry: Registry) -> Result<Running, Failure> {
    raise_file_limit();
    let supervisor = Supervisor::new();
    let mut counters = Counters::with_prefix("virtual_kubelet");
    let api_metrics = vk_kube::Metrics::register(&mut counters);
    let node_metrics = node::Metrics::register(&mut counters);
    let server_metrics = vk_server::Metrics::register(&mut counters);
    let counters = Arc::new(counters);

    let admin = match config.metrics_addr {
        Some(listen) => {
            Some(bind(listen).await.with_context(|| format!("cannot listen on {}", shown(listen)))?)
        }
        None => None,
    };
    let resources = KubeletResources::open(&config).await?;

    // Before the API server is asked: it may take its time, and a probe of this process must not hang on that.
    let running_fleet = Arc::new(OnceLock::new());
    if let Some(listener) = admin {
        let server =
            admin::serve(listener, Arc::clone(&counters), Arc::clone(&running_fleet), supervisor.clone());
        supervisor.spawn("admin", task::Kind::Critical, server);
    }

    let clock = Clock::system();
    let bootstrap = Bootstrap::new(&config, clock.clone())?;
    let (kubeconfig, hint) = match &bootstrap {
        Some(bootstrap) => {
            let path = bootstrap.identity(&supervisor, &api_metrics).await?;
            (Some(path.to_owned()), format!("remove {} to bootstrap again", path.display()))
        }
        None => (config.kubeconfig.clone(), "check the credentials in the kubeconfig".to_owned()),
    };
    let source = Source { kubeconfig, server: config.api_server.clone() };
    let client = source
        .connect(&supervisor, api_metrics.clone())
        .await
        .map_err(|error| Failure::Configuration(vec![Problem::new("kubeconfig", error.to_string())]))?;
    let identity =
        connection_check::wait_for_api_server(&client, config.startup_timeout, &hint, &clock).await?;
    if let Some(bootstrap) = bootstrap {
        bootstrap.keep(client.clone(), &supervisor, api_metrics).await;
    }
    info!(server = client.server(), user = identity.user, nodes = config.nodes.len(), "connected");
    check_identity(&identity, &config)?;
    check_deletion(&client, &identity, &config).await?;

    let limit = config.shutdown.timeout;
    let readers = NodeImpersonation::choose(&config, &client, &identity).await?;
    let kubelets = Kubelets::new(resources, &config, &client, counters, server_metrics, &supervisor);
    let means = Means { client, identity, readers, metrics: node_metrics, kubelets };
    let fleet = Fleet::start(config, &registry, means, &supervisor).await?;
    drop(running_fleet.set(fleet.clone()));
    Ok(Running { supervisor, fleet, limit })
}

/// Raises the limit of open files to the hard limit, like the Go runtime: every node has a listener and every caller a
/// connection.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        warn!(%error, "cannot raise the limit of open files");
    }
}

async fn bind(listen: Listen) -> io::Result<TcpListener> {
    match listen.address {
        Some(address) => TcpListener::bind(SocketAddr::new(address, listen.port)).await,
        // All interfaces, of both families where the system has both.
        None => match TcpListener::bind(SocketAddr::from(([0_u16; 8], listen.port))).await {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind(SocketAddr::from(([0_u8; 4], listen.port))).await
            }
            bound => bound,
        },
    }
}

fn shown(listen: Listen) -> String {
    crate::config::AdminAddr(Some(listen)).to_string()
}

/// What a node identity may not do is refused now, and not when it would be too late.
fn check_identity(identity: &Identity, config: &EffectiveConfig) -> Result<(), Failure> {
    let Some(own) = identity.node() else { return Ok(()) };
    let mut problems: Vec<Problem> = config
        .nodes
        .iter()
        .filter(|node| node.name != own)
        .map(|node| {
            let message = format!(
                "the credentials are those of node {own}, which may not run node {}: use a ServiceAccount for several nodes",
                node.name
            );
            Problem::new("nodeName", message)
        })
        .collect();
    if config.shutdown.node == OnShutdown::Delete {
        let message =
            "a node identity may not delete its Node: use `leave`, or credentials that may delete nodes";
        problems.push(Problem::new("shutdown.node", message));
    }
    if problems.is_empty() { Ok(()) } else { Err(Failure::Configuration(problems)) }
}

/// That the Nodes cannot be deleted in the end is better told now.
async fn check_deletion(
    client: &Client,
    identity: &Identity,
    config: &EffectiveConfig,
) -> Result<(), Failure> {
    if config.shutdown.node != OnShutdown::Delete {
        return Ok(());
    }
    // All of them, or else the first: whoever names nodes in a role names all of them.
    let first = config.nodes.first().map(|node| node.name.clone()).unwrap_or_default();
    for name in [String::new(), first] {
        let deed = AccessCheck {
            verb: "delete".to_owned(),
            resource: "nodes".to_owned(),
            name,
            ..AccessCheck::default()
        };
        match deed.allowed(client).await {
            Ok(false) => {}
            Ok(true) => return Ok(()),
            Err(error) => {
                warn!(%error, "cannot find out whether Nodes may be deleted");
                return Ok(());
            }
        }
    }
    let message =
        format!("{} may not delete Nodes: see deploy/rbac-delete-nodes.yaml, or use `leave`", identity.user);
    Err(Failure::Configuration(vec![Problem::new("shutdown.node", message)]))
}

// === impl Running ===

impl Running {
    /// Resolves when every node is Ready.
    pub(crate) async fn ready(&self) {
        self.fleet.all_ready().await;
    }

    /// Goes on until a signal or a failure, then stops everything in order.
    pub(crate) async fn until(self, stop: &mut Stop) -> Result<(), Failure> {
        let ready = async {
            self.ready().await;
            info!("all nodes are Ready");
            std::future::pending().await
        };
        let failure = tokio::select! {
            signal = stop.signal() => {
                info!(signal, "stopping");
                None
            }
            failure = self.supervisor.failed() => Some(failure),
            never = ready => never,
        };
        self.stop(stop).await?;
        match failure {
            Some(failure) => Err(anyhow::anyhow!("{failure}").into()),
            None => Ok(()),
        }
    }

    /// Stops everything in order; at once when a signal comes.
    pub(crate) async fn stop(self, stop: &mut Stop) -> Result<(), Failure> {
        tokio::select! {
            _ = self.supervisor.shut_down(self.limit) => Ok(()),
            signal = stop.signal() => {
                warn!(signal, "a second signal: ending at once");
                std::process::exit(INTERRUPTED);
            }
        }
    }
}

/// Tells of the signals that ask the process to stop.
pub(crate) struct Stop {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

// === impl Stop ===

impl Stop {
    /// Signals are caught from now on.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let catch = |kind| signal(kind).context("cannot catch signals");
        Ok(Self { interrupt: catch(SignalKind::interrupt())?, terminate: catch(SignalKind::terminate())? })
    }

    /// The next one.
    pub(crate) async fn signal(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
