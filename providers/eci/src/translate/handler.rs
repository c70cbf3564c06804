//! Probes and hooks.

use k8s_openapi::{
    api::core::v1::{Container, LifecycleHandler},
    apimachinery::pkg::util::intstr::IntOrString,
};
use vk_container_group::plan::{
    Diagnostics,
    probe::{self, ProbeAction, ProbeCaps, ProbePlan},
};

use crate::api::{Parameters, flatten};

const PROBES: ProbeCaps =
    ProbeCaps { startup: false, grpc: false, http_headers: false, host: false, max_initial_delay: None };

/// Writes the probes of a container.
pub(super) fn write_probes(
    container: &Container,
    path: &str,
    prefix: &str,
    out: &mut Parameters,
    diagnostics: &mut Diagnostics,
) {
    // The field policy has spoken of a startup probe that is refused.
    let is_refused = |diagnostics: &Diagnostics| {
        diagnostics.errors().iter().any(|error| error.field == format!("{path}.startupProbe"))
    };
    let probes = if is_refused(diagnostics) {
        let without = Container { startup_probe: None, ..container.clone() };
        probe::probes(path, &without, &PROBES, diagnostics)
    } else {
        probe::probes(path, container, &PROBES, diagnostics)
    };
    let found = [("LivenessProbe", probes.liveness), ("ReadinessProbe", probes.readiness)];
    for (name, plan) in found {
        if let Some(plan) = plan {
            write_probe(&plan, &format!("{prefix}.{name}"), out);
        }
    }
}

fn write_probe(plan: &ProbePlan, prefix: &str, out: &mut Parameters) {
    let numbers = [
        ("InitialDelaySeconds", plan.initial_delay),
        ("PeriodSeconds", plan.period),
        ("TimeoutSeconds", plan.timeout),
        ("SuccessThreshold", plan.success_threshold),
        ("FailureThreshold", plan.failure_threshold),
    ];
    for (name, number) in numbers {
        out.set(format!("{prefix}.{name}"), number);
    }
    match &plan.action {
        ProbeAction::Exec(command) => out.set_list(&format!("{prefix}.Exec.Command"), command),
        ProbeAction::HttpGet { path, port, scheme, .. } => {
            out.set(format!("{prefix}.HttpGet.Path"), path);
            out.set(format!("{prefix}.HttpGet.Port"), *port);
            out.set(format!("{prefix}.HttpGet.Scheme"), scheme);
        }
        ProbeAction::TcpSocket { port, .. } => out.set(format!("{prefix}.TcpSocket.Port"), *port),
        // Was refused.
        ProbeAction::Grpc { .. } => {}
    }
}

/// Writes the hooks of a container.
pub(super) fn write_hooks(
    container: &Container,
    path: &str,
    prefix: &str,
    out: &mut Parameters,
    diagnostics: &mut Diagnostics,
) {
    let Some(lifecycle) = &container.lifecycle else { return };
    let hooks =
        [("PostStart", "postStart", &lifecycle.post_start), ("PreStop", "preStop", &lifecycle.pre_stop)];
    for (name, field, hook) in hooks {
        if let Some(hook) = hook {
            let prefix = format!("{prefix}.Lifecycle{name}Handler");
            write_hook(hook, container, &format!("{path}.lifecycle.{field}"), &prefix, out, diagnostics);
        }
    }
}

fn write_hook(
    hook: &LifecycleHandler,
    container: &Container,
    path: &str,
    prefix: &str,
    out: &mut Parameters,
    diagnostics: &mut Diagnostics,
) {
    if let Some(exec) = &hook.exec {
        out.set_list(&format!("{prefix}Exec"), exec.command.iter().flatten());
    }
    if let Some(sleep) = &hook.sleep {
        out.set_list(&format!("{prefix}Exec"), ["sleep", &sleep.seconds.to_string()]);
    }
    if let Some(http) = &hook.http_get {
        out.set_some(format!("{prefix}HttpGetHost"), http.host.as_ref().filter(|host| !host.is_empty()));
        out.set(format!("{prefix}HttpGetPath"), http.path.as_deref().unwrap_or("/"));
        out.set(format!("{prefix}HttpGetScheme"), http.scheme.as_deref().unwrap_or("HTTP"));
        let field = format!("{path}.httpGet.port");
        out.set_some(format!("{prefix}HttpGetPort"), port(&http.port, container, &field, diagnostics));
        for (at, header) in http.http_headers.iter().flatten().enumerate() {
            let list = format!("{prefix}HttpGetHttpHeader");
            out.set(flatten(&list, at, "Name"), &header.name);
            // Tokens are written there.
            out.set_secret(flatten(&list, at, "Value"), &header.value);
        }
    }
    if let Some(tcp) = &hook.tcp_socket {
        out.set_some(format!("{prefix}TcpSocketHost"), tcp.host.as_ref().filter(|host| !host.is_empty()));
        let field = format!("{path}.tcpSocket.port");
        out.set_some(format!("{prefix}TcpSocketPort"), port(&tcp.port, container, &field, diagnostics));
    }
}

/// The number of a port, which may be the name of a port of the container.
fn port(
    port: &IntOrString,
    container: &Container,
    field: &str,
    diagnostics: &mut Diagnostics,
) -> Option<i32> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|port| port.name.as_ref() == Some(name));
            named.map(|port| port.container_port).or_else(|| name.parse().ok())
        }
    };
    let number = number.filter(|number| (1..=65535).contains(number));
    if number.is_none() {
        diagnostics.refuse(field, "neither a port number nor the name of a port of the container");
    }
    number
}
