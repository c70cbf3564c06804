//! Places pods on virtual nodes: beside the nodes of this process, or in a process of its own.

mod servers;
mod settings_check;

use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use prometheus_client::registry::Registry as Counters;
use tokio::sync::watch;
use tracing::{info, warn};
use vk_kube::{Client, ClientOptions, Fence, Instance, ServerVersion, lease::Election, lease::LeaseTimes};
use vk_placement::{
    ask::{AskLimits, FitClient},
    controller::{Controller, run_while_leading},
    metrics::Metrics,
    policy::{NAME, untested_version},
    scheduling_gate::GateSettings,
    state_machine::Settings,
};
use vk_supervisor::{Clock, Supervisor, task};

pub(super) use self::servers::ServingResources;
use self::settings_check::SettingsCheck;
use super::{
    Stop, admin, connection_check,
    exposition::{Exposition, PREFIX},
    fleet::Fleet,
    listener::{listen, retry_deadline, shown},
};
use crate::{
    cli::Failure,
    config::{EffectiveConfig, Placement, Problem},
};

/// The first version whose kube-scheduler tries the node first for which a pod is nominated.
const NOMINATIONS_COUNT_SINCE: ServerVersion = ServerVersion { major: 1, minor: 35 };

/// Whether this process leads.
struct Leadership {
    /// Open while it does.
    fence: Fence,
    leading: watch::Receiver<bool>,
}

/// Runs placement alone until the process receives SIGINT or SIGTERM.
pub(crate) async fn run_alone(config: EffectiveConfig) -> Result<(), Failure> {
    let Some(placement) = config.placement.clone() else {
        let message = "is off: set --gates estimate or --gates trial, --descheduler, --extender-listen or --webhook-listen";
        return Err(Failure::Configuration(vec![Problem::new("placement", message)]));
    };
    let mut stop = Stop::listen()?;
    let supervisor = Supervisor::new();
    let mut counters = Counters::with_prefix(PREFIX);
    let api_metrics = vk_kube::Metrics::register(&mut counters);
    let metrics = Metrics::register(&mut counters);
    let is_connected = Arc::new(OnceLock::new());
    let deadline = retry_deadline();
    let serving = ServingResources::open(&placement, deadline).await?;
    if let Some(address) = config.metrics_addr {
        let context = || format!("cannot listen on {} for health and metrics", shown(address));
        let listener = listen(address, deadline).await.with_context(context)?;
        let server =
            admin::serve(listener, Exposition::new(counters), Arc::clone(&is_connected), supervisor.clone());
        supervisor.spawn("admin", task::Kind::Critical, server);
    }
    let options = ClientOptions { kubeconfig: config.kubeconfig.clone(), server: config.api_server.clone() };
    let start = async {
        let client = options
            .connect(&supervisor, api_metrics)
            .await
            .map_err(|error| Failure::Configuration(vec![Problem::new("kubeconfig", error.to_string())]))?;
        let hint = "check the credentials in the kubeconfig";
        let clock = Clock::system();
        let identity =
            connection_check::wait_for_api_server(&client, config.startup_timeout, hint, &clock).await?;
        info!(server = client.server(), user = identity.user, "connected");
        let fit_client = FitClient::for_namespace(client.clone(), AskLimits::default(), &placement.namespace);
        spawn(&placement, serving, client, fit_client, metrics, &supervisor).await;
        Ok(())
    };
    let started = tokio::select! {
        started = start => started,
        signal = stop.signal() => {
            info!(signal, "stopping before anything was placed");
            return Ok(());
        }
    };
    if let Err(failure) = started {
        supervisor.shut_down(config.shutdown.timeout).await;
        return Err(failure);
    }
    drop(is_connected.set(Fleet::default()));
    let failure = tokio::select! {
        signal = stop.signal() => {
            info!(signal, "stopping");
            None
        }
        failure = supervisor.failed() => Some(failure),
    };
    tokio::select! {
        _ = supervisor.shut_down(config.shutdown.timeout) => {}
        signal = stop.signal() => {
            warn!(signal, "second signal: exiting immediately");
            std::process::exit(super::INTERRUPTED);
        }
    }
    failure.map_or(Ok(()), |failure| Err(anyhow::anyhow!("{failure}").into()))
}

/// Starts the servers and the election and, whenever this process leads, placement.
pub(super) async fn spawn(
    placement: &Placement,
    serving: ServingResources,
    client: Client,
    fit_client: FitClient,
    metrics: Metrics,
    supervisor: &Supervisor,
) {
    serving.serve(placement, &client, fit_client.clone(), metrics.clone(), supervisor);
    let Some(summary) = placement.leader_summary() else { return };
    let pin = match ServerVersion::fetch(&client).await {
        Ok(version) => {
            if let Some(warning) = untested_version(version.minor) {
                warn!("{warning}: pods may not be placed as documented");
            }
            version < NOMINATIONS_COUNT_SINCE
        }
        Err(error) => {
            warn!(%error, "cannot read the version of the API server: pods get a node selector on the host name");
            true
        }
    };
    let gates = placement.gates.as_ref().map(|gates| GateSettings {
        preference: placement.preference.clone(),
        local: gates.local,
        pin,
        trial: gates.trial,
    });
    let settings = Settings { gates, descheduler: placement.descheduler };
    let clock = Clock::system();
    let Leadership { fence, leading } =
        Leadership::elect(placement, NAME, &client, clock.clone(), supervisor);
    let check = SettingsCheck {
        client: client.clone(),
        namespace: placement.namespace.clone(),
        lease: NAME,
        own: summary,
        gates: Some(placement.gates.is_some()),
        leading: leading.clone(),
    };
    spawn_until_stopped("placement settings", check.run(), supervisor);
    let (namespace, client) = (placement.namespace.clone(), client.fenced(fence));
    let make = move || Controller {
        client: client.clone(),
        fit_client: fit_client.clone(),
        settings: settings.clone(),
        namespace: namespace.clone(),
        clock: clock.clone(),
        metrics: metrics.clone(),
    };
    supervisor.spawn("placement", task::Kind::Critical, run_while_leading(make, leading, supervisor.clone()));
}

/// Runs a task that has nothing to finish.
fn spawn_until_stopped(
    name: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
    supervisor: &Supervisor,
) {
    let guard = supervisor.clone();
    supervisor.spawn(name, task::Kind::Work, async move {
        tokio::select! {
            () = work => {}
            () = guard.stopping() => {}
        }
    });
}

// === impl Leadership ===

impl Leadership {
    /// Starts the election for a Lease.
    fn elect(
        placement: &Placement,
        lease: &str,
        client: &Client,
        clock: Clock,
        supervisor: &Supervisor,
    ) -> Self {
        let fence = Fence::new(clock.clone());
        let election = Election {
            client: client.clone(),
            namespace: placement.namespace.clone(),
            name: lease.to_owned(),
            instance: Instance::current(),
            times: LeaseTimes::LEADER_ELECTION,
            clock,
        };
        let (leads, leading) = watch::channel(false);
        let running = election.run(fence.clone(), leads, supervisor.clone());
        supervisor.spawn(format!("election for {lease}"), task::Kind::Critical, running);
        Self { fence, leading }
    }
}
