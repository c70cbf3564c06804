//! Probes, for clouds whose agent probes containers.
//!
//! Few clouds have startup probes. What a startup probe mostly does, keeping the liveness probe from killing a slow start, is emulated
//! by a later start of the liveness probe.

use k8s_openapi::{
    api::core::v1::{Container, HTTPGetAction, HTTPHeader, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::Diagnostics;

/// What the probes of a cloud can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCaps {
    /// Startup probes; if not, they are emulated.
    pub startup: bool,
    /// gRPC probes.
    pub grpc: bool,
    /// Headers of HTTP probes.
    pub http_headers: bool,
    /// Another host than the pod in HTTP and TCP probes.
    pub host: bool,
    /// The most seconds before a first probe; `None` without a limit.
    pub max_initial_delay: Option<i32>,
}

/// The probes of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerProbes {
    /// The liveness probe.
    pub liveness: Option<ProbePlan>,
    /// The readiness probe.
    pub readiness: Option<ProbePlan>,
    /// The startup probe; only with [`ProbeCaps::startup`].
    pub startup: Option<ProbePlan>,
}

/// A probe, complete: with Kubernetes' defaults, and ports as numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbePlan {
    /// What it does.
    pub action: ProbeAction,
    /// Seconds before the first probe.
    pub initial_delay: i32,
    /// Seconds between probes.
    pub period: i32,
    /// Seconds that a probe may take.
    pub timeout: i32,
    /// Successes in a row that count as success.
    pub success_threshold: i32,
    /// Failures in a row that count as failure.
    pub failure_threshold: i32,
}

/// What a probe does.
#[derive(Clone, Debug, PartialEq)]
pub enum ProbeAction {
    /// Runs a command in the container.
    Exec(Vec<String>),
    /// Sends an HTTP request.
    HttpGet {
        /// The path, from `/` on.
        path: String,
        /// The port.
        port: i32,
        /// `HTTP` or `HTTPS`.
        scheme: String,
        /// Another host than the pod.
        host: Option<String>,
        /// Additional headers.
        headers: Vec<HTTPHeader>,
    },
    /// Opens a connection.
    TcpSocket {
        /// The port.
        port: i32,
        /// Another host than the pod.
        host: Option<String>,
    },
    /// Calls the gRPC health service.
    Grpc {
        /// The port.
        port: i32,
        /// The service's name.
        service: String,
    },
}

/// The probes of a container at `path`, such as `spec.containers[web]`. What the cloud's probes cannot do is refused, except for the
/// startup probe: its parts matter only for its duration, so the emulation is a warning.
pub fn probes(
    path: &str,
    container: &Container,
    caps: &ProbeCaps,
    diagnostics: &mut Diagnostics,
) -> ContainerProbes {
    let mut convert = |kind: &str, probe: &Option<Probe>| {
        let probe = probe.as_ref()?;
        plan(&format!("{path}.{kind}"), probe, container, caps, diagnostics)
    };
    let mut liveness = convert("livenessProbe", &container.liveness_probe);
    let readiness = convert("readinessProbe", &container.readiness_probe);
    let Some(startup) = &container.startup_probe else {
        return ContainerProbes { liveness, readiness, startup: None };
    };
    if caps.startup {
        return ContainerProbes {
            liveness,
            readiness,
            startup: convert("startupProbe", &container.startup_probe),
        };
    }
    let field = format!("{path}.startupProbe");
    let Some(probe) = &mut liveness else {
        // The readiness probe, if there is one, fails by itself until the container has started.
        diagnostics.warn(field, "ignored: a container that never starts is not restarted");
        return ContainerProbes { liveness, readiness, startup: None };
    };
    let delay = startup_seconds(startup);
    probe.initial_delay = probe.initial_delay.saturating_add(delay);
    match caps.max_initial_delay.filter(|most| probe.initial_delay > *most) {
        Some(most) => {
            probe.initial_delay = most;
            diagnostics.warn(
                field,
                format!(
                    "liveness probe starts after {most} s, the most of this cloud; a longer start is killed"
                ),
            );
        }
        None => diagnostics
            .warn(field, format!("liveness probe starts {delay} s later; a slow start looks like a hang")),
    }
    ContainerProbes { liveness, readiness, startup: None }
}

/// The seconds that a startup probe gives a container to start.
pub fn startup_seconds(probe: &Probe) -> i32 {
    let period = positive(probe.period_seconds, 10);
    let failures = positive(probe.failure_threshold, 3);
    probe.initial_delay_seconds.unwrap_or(0).max(0).saturating_add(period.saturating_mul(failures))
}

fn plan(
    path: &str,
    probe: &Probe,
    container: &Container,
    caps: &ProbeCaps,
    diagnostics: &mut Diagnostics,
) -> Option<ProbePlan> {
    let action = action(path, probe, container, caps, diagnostics)?;
    let initial_delay = probe.initial_delay_seconds.unwrap_or(0).max(0);
    if let Some(most) = caps.max_initial_delay.filter(|most| initial_delay > *most) {
        diagnostics.refuse(format!("{path}.initialDelaySeconds"), format!("write at most {most}"));
    }
    Some(ProbePlan {
        action,
        initial_delay,
        period: positive(probe.period_seconds, 10),
        timeout: positive(probe.timeout_seconds, 1),
        success_threshold: positive(probe.success_threshold, 1),
        failure_threshold: positive(probe.failure_threshold, 3),
    })
}

fn action(
    path: &str,
    probe: &Probe,
    container: &Container,
    caps: &ProbeCaps,
    diagnostics: &mut Diagnostics,
) -> Option<ProbeAction> {
    if let Some(exec) = &probe.exec {
        return Some(ProbeAction::Exec(exec.command.clone().unwrap_or_default()));
    }
    if let Some(http) = &probe.http_get {
        return http_get(path, http, container, caps, diagnostics);
    }
    if let Some(tcp) = &probe.tcp_socket {
        check_host(&format!("{path}.tcpSocket.host"), tcp.host.as_deref(), caps, diagnostics);
        let port = port(&format!("{path}.tcpSocket.port"), &tcp.port, container, diagnostics)?;
        return Some(ProbeAction::TcpSocket { port, host: named(tcp.host.as_ref()) });
    }
    if let Some(grpc) = &probe.grpc {
        if !caps.grpc {
            diagnostics.refuse(
                format!("{path}.grpc"),
                "this cloud has no gRPC probes: use tcpSocket, or exec with grpc_health_probe",
            );
            return None;
        }
        let service = grpc.service.clone().unwrap_or_default();
        return Some(ProbeAction::Grpc { port: grpc.port, service });
    }
    diagnostics.refuse(path, "the probe does nothing: write one of exec, httpGet and tcpSocket");
    None
}

fn http_get(
    path: &str,
    http: &HTTPGetAction,
    container: &Container,
    caps: &ProbeCaps,
    diagnostics: &mut Diagnostics,
) -> Option<ProbeAction> {
    let headers = http.http_headers.clone().unwrap_or_default();
    if !headers.is_empty() && !caps.http_headers {
        diagnostics.refuse(
            format!("{path}.httpGet.httpHeaders"),
            "this cloud's HTTP probes send no headers: remove them, or use exec",
        );
    }
    check_host(&format!("{path}.httpGet.host"), http.host.as_deref(), caps, diagnostics);
    let port = port(&format!("{path}.httpGet.port"), &http.port, container, diagnostics)?;
    let path = http.path.clone().filter(|path| !path.is_empty()).unwrap_or_else(|| "/".to_owned());
    let scheme = http.scheme.clone().unwrap_or_else(|| "HTTP".to_owned());
    Some(ProbeAction::HttpGet { path, port, scheme, host: named(http.host.as_ref()), headers })
}

fn check_host(field: &str, host: Option<&str>, caps: &ProbeCaps, diagnostics: &mut Diagnostics) {
    if host.is_some_and(|host| !host.is_empty()) && !caps.host {
        diagnostics.refuse(field, "this cloud probes only the pod itself: remove it, or use exec");
    }
}

fn named(host: Option<&String>) -> Option<String> {
    host.filter(|host| !host.is_empty()).cloned()
}

/// The number of a port, which may be the name of a port of the container.
fn port(
    field: &str,
    port: &IntOrString,
    container: &Container,
    diagnostics: &mut Diagnostics,
) -> Option<i32> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let found = ports.find(|port| port.name.as_ref() == Some(name)).map(|port| port.container_port);
            found.or_else(|| name.parse().ok())
        }
    };
    let valid = number.filter(|number| (1..=65535).contains(number));
    if valid.is_none() {
        let shown = match port {
            IntOrString::Int(number) => number.to_string(),
            IntOrString::String(name) => name.clone(),
        };
        diagnostics.refuse(
            field,
            format!("{shown} is neither a port number nor the name of a port of the container"),
        );
    }
    valid
}

fn positive(value: Option<i32>, default: i32) -> i32 {
    value.filter(|value| *value > 0).unwrap_or(default)
}

#[cfg(test)]
mod tests;
