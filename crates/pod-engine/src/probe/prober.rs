//! One probe, run once.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Probe};
use tokio::time::Instant;
use vk_provider::{PodRef, Result};
use vk_supervisor::Clock;

use super::{
    command, dial, grpc,
    http::{Get, Web},
    machine::seconds,
};
use crate::backend::ContainerBackend;

/// How often an error is tried again at once.
const ATTEMPTS: usize = 3;

/// Runs probes and hooks: one for an engine.
pub struct Prober {
    pub(crate) backend: Arc<dyn ContainerBackend>,
    pub(crate) web: Web,
    pub(crate) clock: Clock,
    started: Timestamp,
    born: Instant,
}

/// What came of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is well.
    Success,
    /// It is well, with something that its users should know.
    Warning(String),
    /// It is not well.
    Failure(String),
    /// Nobody knows: the probe itself failed. Changes no verdict.
    Error {
        /// The state that the kubelet names in its event.
        state: &'static str,
        /// Why.
        message: String,
    },
}

/// What is probed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) pod: &'a PodRef,
    pub(super) container: &'a Container,
    pub(super) id: &'a str,
    pub(super) ip: Option<&'a str>,
}

// === impl Outcome ===

impl Outcome {
    pub(super) fn unknown(message: impl Into<String>) -> Self {
        Self::Error { state: "unknown", message: message.into() }
    }
}

// === impl Prober ===

impl Prober {
    /// A prober whose birth counts as the start of the agent: probes that begin soon after are spread over their period, and
    /// containers that run already are not judged anew.
    pub fn new(backend: Arc<dyn ContainerBackend>, clock: Clock) -> Result<Arc<Self>> {
        let web = Web::new().map_err(|error| {
            vk_provider::Error::internal("the TLS of probes cannot be set up").caused_by(error)
        })?;
        let started = clock.now();
        Ok(Arc::new(Self { backend, web, clock, started, born: Instant::now() }))
    }

    /// When the agent was started.
    pub(super) fn started(&self) -> Timestamp {
        self.started
    }

    /// How long to wait before the first probe, so that those of a whole node do not come at once after a restart.
    pub(super) fn offset(&self, period: Duration) -> Option<Duration> {
        (period > self.born.elapsed()).then(|| period.mul_f64(rand::random()))
    }

    /// Runs a probe, and again where it could not be run.
    pub(super) async fn probe(&self, probe: &Probe, subject: Subject<'_>) -> Outcome {
        let mut outcome = self.once(probe, subject).await;
        for _ in 1..ATTEMPTS {
            if !matches!(outcome, Outcome::Error { .. }) {
                break;
            }
            outcome = self.once(probe, subject).await;
        }
        outcome
    }

    async fn once(&self, probe: &Probe, subject: Subject<'_>) -> Outcome {
        let limit = seconds(probe.timeout_seconds, 1);
        let container = subject.container;
        let host = |given: Option<&String>| {
            let given = given.map(String::as_str).filter(|host| !host.is_empty());
            // Without an address the connection would go to this machine.
            given.or(subject.ip).map(str::to_owned).ok_or_else(|| "the pod has no IP address yet".to_owned())
        };
        if let Some(action) = &probe.exec {
            return command::probe(&*self.backend, subject.id, action, container, limit).await;
        }
        let outcome = if let Some(action) = &probe.http_get {
            match host(action.host.as_ref()).and_then(|host| Get::new(action, container, &host, "probe")) {
                Ok(get) => Ok(self.web.probe(get, limit).await),
                Err(why) => Err(why),
            }
        } else if let Some(action) = &probe.tcp_socket {
            let port = dial::port(&action.port, container);
            match port.and_then(|port| Ok((host(action.host.as_ref())?, port))) {
                Ok((host, port)) => Ok(dial::probe(&host, port, limit).await),
                Err(why) => Err(why),
            }
        } else if let Some(action) = &probe.grpc {
            let port =
                u16::try_from(action.port).map_err(|_| format!("invalid port number: {}", action.port));
            match port.and_then(|port| Ok((host(None)?, port))) {
                Ok((host, port)) => {
                    let service = action.service.as_deref().unwrap_or_default();
                    Ok(grpc::probe(&host, port, service, limit).await)
                }
                Err(why) => Err(why),
            }
        } else {
            let PodRef { namespace, name, uid } = subject.pod;
            Err(format!("missing probe handler for {name}_{namespace}({uid}):{}", container.name))
        };
        outcome.unwrap_or_else(Outcome::unknown)
    }
}
