//! Runs nodes: connects to the API server, opens the backends, and starts a controller for each node.

pub(crate) mod address;
mod admin;
mod bootstrap;
mod connection_check;
mod exposition;
mod fleet;
mod hostname;
mod kubelet;
mod leadership;
mod listener;
mod node_impersonation;
mod placement;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Context as _;
use prometheus_client::registry::Registry as Counters;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};
use tracing::{info, warn};
use vk_kube::{Client, ClientOptions, Identity, access::AccessCheck};
use vk_node::node;
use vk_placement::ask::{AskLimits, FitClient};
use vk_supervisor::{Clock, Supervisor, task};

use self::{
    bootstrap::Bootstrap,
    exposition::{Exposition, PREFIX},
    fleet::{Fleet, Means},
    kubelet::{KubeletResources, Kubelets},
    listener::{listen, retry_deadline, shown},
    node_impersonation::NodeImpersonation,
    placement::ServingResources,
};
pub(crate) use self::{
    fleet::{PROVIDER_LABEL, context},
    placement::run_alone as run_placement,
};
use crate::{
    Registry,
    cli::Failure,
    config::{EffectiveConfig, OnShutdown, Problem},
};

/// The exit code after a second signal, as shells report an interrupt.
pub(crate) const INTERRUPTED: i32 = 130;

/// The least time that backends get to stop, also if the nodes have used up the limit.
const BACKEND_SHUTDOWN: Duration = Duration::from_secs(1);

/// A running process: its nodes and their backends.
#[derive(Debug)]
pub(crate) struct Running {
    /// Owns everything; the tasks of backends are children of it.
    process: Supervisor,
    /// Owns the nodes, and stops before the backends do.
    nodes: Supervisor,
    fleet: Fleet,
    /// How long stopping may take.
    limit: Duration,
}

/// Runs the nodes of the configuration until the process receives SIGINT or SIGTERM.
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

/// Starts the nodes of the configuration. Configuration errors are reported before the first write to the cluster; until
/// then the future may be dropped.
pub(crate) async fn start(config: EffectiveConfig, registry: Registry) -> Result<Running, Failure> {
    raise_file_limit();
    let process = Supervisor::new();
    let supervisor = process.child();
    let mut counters = Counters::with_prefix(PREFIX);
    let api_metrics = vk_kube::Metrics::register(&mut counters);
    let node_metrics = node::Metrics::register(&mut counters);
    let server_metrics = vk_server::Metrics::register(&mut counters);
    let placement_metrics =
        config.placement.is_some().then(|| vk_placement::metrics::Metrics::register(&mut counters));
    let exposition = Exposition::new(counters);

    let deadline = retry_deadline();
    let admin = match config.metrics_addr {
        Some(address) => {
            let context = || format!("cannot listen on {} for health and metrics", shown(address));
            Some(listen(address, deadline).await.with_context(context)?)
        }
        None => None,
    };
    let resources = KubeletResources::open(&config, deadline).await?;
    let placement = match config.placement.clone().zip(placement_metrics) {
        Some((placement, metrics)) => {
            let serving = ServingResources::open(&placement, deadline).await?;
            Some((placement, serving, metrics))
        }
        None => None,
    };

    // Before the first request to the API server, which may take long: probes of this process must not wait for it.
    let running_fleet = Arc::new(OnceLock::new());
    if let Some(listener) = admin {
        let server =
            admin::serve(listener, exposition.clone(), Arc::clone(&running_fleet), supervisor.clone());
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
    let source = ClientOptions { kubeconfig, server: config.api_server.clone() };
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
    let readers = NodeImpersonation::choose(&config, &registry, &client, &identity).await?;
    let fit_client = match &placement {
        Some((placement, ..)) => {
            FitClient::for_namespace(client.clone(), AskLimits::default(), &placement.namespace)
        }
        None => FitClient::new(client.clone(), AskLimits::default()),
    };
    if let Some((placement, serving, metrics)) = placement {
        placement::spawn(&placement, serving, client.clone(), fit_client.clone(), metrics, &supervisor).await;
    }
    let kubelets =
        Kubelets::new(resources, &config, &client, exposition.clone(), server_metrics, &supervisor);
    let means = Means { client, identity, readers, metrics: node_metrics, kubelets, fit_client, exposition };
    let fleet = Fleet::start(config, &registry, means, &supervisor, &process).await?;
    drop(running_fleet.set(fleet.clone()));
    Ok(Running { process, nodes: supervisor, fleet, limit })
}

/// Raises the limit of open files to the hard limit, as the Go runtime does: every node has a listener, and every caller a
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

/// Refuses a configuration that the rights of a node identity do not cover.
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
    if config.placement.is_some() {
        let message = "a node identity may not place pods: use a ServiceAccount with the permissions of `virtual-kubelet placement print rbac`";
        problems.push(Problem::new("placement", message));
    }
    if config.shutdown.node == OnShutdown::Delete {
        let message =
            "a node identity may not delete its Node: use `leave`, or credentials that may delete nodes";
        problems.push(Problem::new("shutdown.node", message));
    }
    if problems.is_empty() { Ok(()) } else { Err(Failure::Configuration(problems)) }
}

/// Refuses `shutdown.node: delete` if the credentials may not delete Nodes.
async fn check_deletion(
    client: &Client,
    identity: &Identity,
    config: &EffectiveConfig,
) -> Result<(), Failure> {
    if config.shutdown.node != OnShutdown::Delete {
        return Ok(());
    }
    // All nodes, or else the first one: a role that lists node names lists all of them.
    let first = config.nodes.first().map(|node| node.name.clone()).unwrap_or_default();
    for name in [String::new(), first] {
        let check = AccessCheck {
            verb: "delete".to_owned(),
            resource: "nodes".to_owned(),
            name,
            ..AccessCheck::default()
        };
        match check.allowed(client).await {
            Ok(false) => {}
            Ok(true) => return Ok(()),
            Err(error) => {
                warn!(%error, "cannot check whether Nodes may be deleted");
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

    /// Waits for a signal or a failure, then stops everything in order.
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
            failure = self.process.failed() => Some(failure),
            never = ready => never,
        };
        self.stop(stop).await?;
        match failure {
            Some(failure) => Err(anyhow::anyhow!("{failure}").into()),
            None => Ok(()),
        }
    }

    /// Stops the nodes, then the backends; exits immediately on a signal.
    pub(crate) async fn stop(self, stop: &mut Stop) -> Result<(), Failure> {
        let shut_down = async {
            let deadline = Instant::now() + self.limit;
            self.nodes.shut_down(self.limit).await;
            let left = deadline.saturating_duration_since(Instant::now());
            self.process.shut_down(left.max(BACKEND_SHUTDOWN)).await;
        };
        tokio::select! {
            () = shut_down => Ok(()),
            signal = stop.signal() => {
                warn!(signal, "second signal: exiting immediately");
                std::process::exit(INTERRUPTED);
            }
        }
    }
}

/// Receives the signals that stop the process.
pub(crate) struct Stop {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

// === impl Stop ===

impl Stop {
    /// Starts to catch signals.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let catch = |kind| signal(kind).context("cannot catch signals");
        Ok(Self { interrupt: catch(SignalKind::interrupt())?, terminate: catch(SignalKind::terminate())? })
    }

    /// Waits for the next signal and returns its name.
    pub(crate) async fn signal(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

#[cfg(test)]
mod tests {
    use vk_supervisor::task::Kind;

    use super::*;

    fn running(process: &Supervisor) -> Running {
        Running {
            process: process.clone(),
            nodes: process.child(),
            fleet: Fleet::default(),
            limit: Duration::from_secs(5),
        }
    }

    #[tokio::test]
    async fn the_unexpected_end_of_a_critical_task_of_a_backend_ends_the_process() {
        let process = Supervisor::new();
        // A backend gets a child in its context, and an engine makes a child of that.
        let backend = process.child();
        backend.child().spawn("relist", Kind::Critical, async { Err::<(), _>("the runtime is gone") });
        let ended = running(&process).until(&mut Stop::listen().unwrap()).await;
        let Err(Failure::Runtime(error)) = ended else { panic!("{ended:?}") };
        assert_eq!(error.to_string(), "relist: the runtime is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_backend_has_a_moment_to_stop_even_if_the_nodes_used_up_the_limit() {
        let process = Supervisor::new();
        let running = running(&process);
        running.nodes.spawn("stuck node", Kind::Critical, std::future::pending::<()>());
        let (backend, (sender, mut stopped)) = (process.child(), tokio::sync::oneshot::channel());
        backend.clone().spawn("backend", Kind::Critical, async move {
            backend.stopping().await;
            tokio::time::sleep(BACKEND_SHUTDOWN / 2).await;
            let _ = sender.send(());
        });
        running.stop(&mut Stop::listen().unwrap()).await.unwrap();
        assert_eq!(stopped.try_recv(), Ok(()), "the backend was aborted");
    }

    #[tokio::test(start_paused = true)]
    async fn backends_stop_after_the_nodes() {
        let process = Supervisor::new();
        let running = running(&process);
        let (backend, node) = (process.child(), running.nodes.clone());
        let (sender, answers) = tokio::sync::oneshot::channel::<()>();
        backend.spawn("backend", Kind::Critical, {
            let backend = backend.clone();
            async move {
                backend.stopping().await;
                drop(sender);
            }
        });
        let (outcome, mut seen) = tokio::sync::oneshot::channel();
        node.clone().spawn("node", Kind::Critical, async move {
            node.stopping().await;
            // A call under way, for as long as which the backend must not stop.
            let stopped = tokio::time::timeout(Duration::from_secs(1), answers).await;
            let _ = outcome.send(stopped.is_err());
        });
        running.stop(&mut Stop::listen().unwrap()).await.unwrap();
        assert_eq!(seen.try_recv(), Ok(true), "the backend stopped before the node");
    }
}
