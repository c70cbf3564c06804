//! Running one probe.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Probe};
use tokio::time::Instant;
use vk_provider::{PodRef, Result};
use vk_supervisor::Clock;

use super::{
    connection, exec, grpc,
    http::{HttpClient, HttpGet},
    tracker::seconds,
};
use crate::backend::ContainerBackend;

/// Maximum number of attempts of a probe that could not be run.
const ATTEMPTS: usize = 3;

/// Runs probes and hooks, for all pods of an engine.
pub struct Prober {
    pub(crate) backend: Arc<dyn ContainerBackend>,
    pub(crate) http: HttpClient,
    pub(crate) clock: Clock,
    started: Timestamp,
    start_instant: Instant,
}

/// The outcome of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// It succeeded.
    Success,
    /// It succeeded, with a warning.
    Warning(String),
    /// It failed.
    Failure(String),
    /// The probe could not be run. It changes no result.
    Error {
        /// The state in the event of the kubelet.
        state: &'static str,
        /// The error.
        message: String,
    },
}

/// The container to probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeRequest<'a> {
    pub(super) pod: &'a PodRef,
    pub(super) container: &'a Container,
    pub(super) id: &'a str,
    pub(super) ip: Option<&'a str>,
}

// === impl Outcome ===

impl ProbeOutcome {
    pub(super) fn unknown(message: impl Into<String>) -> Self {
        Self::Error { state: "unknown", message: message.into() }
    }
}

// === impl Prober ===

impl Prober {
    /// A prober. Its creation counts as the start of the agent: probes that begin soon after it are spread over their period, and containers
    /// that run already keep their results.
    pub fn new(backend: Arc<dyn ContainerBackend>, clock: Clock) -> Result<Arc<Self>> {
        let http = HttpClient::new()
            .map_err(|error| vk_provider::Error::internal("set up TLS for probes").caused_by(error))?;
        let started = clock.now();
        Ok(Arc::new(Self { backend, http, clock, started, start_instant: Instant::now() }))
    }

    /// When the agent was started.
    pub(super) fn started(&self) -> Timestamp {
        self.started
    }

    /// The delay before the first probe, so that the probes of a node do not all run at once after a restart.
    pub(super) fn initial_offset(&self, period: Duration) -> Option<Duration> {
        (period > self.start_instant.elapsed()).then(|| period.mul_f64(rand::random()))
    }

    /// Runs a probe, and retries it if it could not be run.
    pub(super) async fn probe(&self, probe: &Probe, subject: ProbeRequest<'_>) -> ProbeOutcome {
        let mut outcome = self.once(probe, subject).await;
        for _ in 1..ATTEMPTS {
            if !matches!(outcome, ProbeOutcome::Error { .. }) {
                break;
            }
            outcome = self.once(probe, subject).await;
        }
        outcome
    }

    async fn once(&self, probe: &Probe, subject: ProbeRequest<'_>) -> ProbeOutcome {
        let timeout = seconds(probe.timeout_seconds, 1);
        let container = subject.container;
        let host = |given: Option<&String>| {
            let given = given.map(String::as_str).filter(|host| !host.is_empty());
            // Without an address the connection would go to this tracker.
            given.or(subject.ip).map(str::to_owned).ok_or_else(|| "the pod has no IP address yet".to_owned())
        };
        if let Some(action) = &probe.exec {
            return exec::probe(&*self.backend, subject.id, action, container, timeout).await;
        }
        let outcome = if let Some(action) = &probe.http_get {
            match host(action.host.as_ref()).and_then(|host| HttpGet::new(action, container, &host, "probe"))
            {
                Ok(get) => Ok(self.http.probe(get, timeout).await),
                Err(why) => Err(why),
            }
        } else if let Some(action) = &probe.tcp_socket {
            let port = connection::port(&action.port, container);
            match port.and_then(|port| Ok((host(action.host.as_ref())?, port))) {
                Ok((host, port)) => Ok(connection::probe(&host, port, timeout).await),
                Err(why) => Err(why),
            }
        } else if let Some(action) = &probe.grpc {
            let port =
                u16::try_from(action.port).map_err(|_| format!("invalid port number: {}", action.port));
            match port.and_then(|port| Ok((host(None)?, port))) {
                Ok((host, port)) => {
                    let service = action.service.as_deref().unwrap_or_default();
                    Ok(grpc::probe(&host, port, service, timeout).await)
                }
                Err(why) => Err(why),
            }
        } else {
            let PodRef { namespace, name, uid } = subject.pod;
            Err(format!("missing probe handler for {name}_{namespace}({uid}):{}", container.name))
        };
        outcome.unwrap_or_else(ProbeOutcome::unknown)
    }
}
