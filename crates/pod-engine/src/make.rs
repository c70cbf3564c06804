//! Sandboxes and containers as a runtime wants them, from the pod's spec: what a kubelet puts into them, and nothing else.
//!
//! Everything here is computed from what is handed in. What has to be read from this machine is read once by [`Machine::detect`],
//! and for each sandbox by [`host_dns`], as a kubelet does.

mod admission;
mod dns;
mod hostname;
mod hosts;
mod labels;
mod machine;
mod mounts;
mod qos;
mod resources;
mod security;

use std::path::{Path, PathBuf};

use k8s_openapi::api::{
    core::v1::{Pod, PodSpec},
    node::v1::RuntimeClass,
};
use vk_provider::{Error, EventKind, PodRef, Result, resolve::ContainerInputs};

pub use self::{
    admission::admit,
    dns::host_dns,
    hostname::hostname,
    hosts::{hosts, mounts_hosts},
    machine::Machine,
    qos::{Qos, qos},
};
use crate::{
    Settings,
    backend::{
        ContainerConfig, Dns, Handler, Mount, Namespaces, PortMapping, Protocol, Runtime, SandboxConfig,
        Share, told,
    },
    image,
    parts::Part,
    status::Trouble,
};

/// Where events about a pod go: kind, reason and message.
pub type Tell<'a> = &'a (dyn Fn(EventKind, &str, String) + Send + Sync);

/// What a sandbox is made of.
#[derive(Clone, Copy, Debug)]
pub struct SandboxOrder<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Which one of this pod it is, from 0.
    pub attempt: u32,
    /// The node.
    pub settings: &'a Settings,
    /// The machine.
    pub machine: &'a Machine,
    /// The runtime, whose handlers count.
    pub runtime: &'a Runtime,
    /// The pod's RuntimeClass, where it names one.
    pub runtime_class: Option<&'a RuntimeClass>,
    /// The machine's resolver configuration, from [`host_dns`].
    pub host_dns: &'a Dns,
}

/// What a container is made of.
#[derive(Clone, Copy, Debug)]
pub struct ContainerOrder<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The container.
    pub part: &'a Part<'a>,
    /// Which one of this name it is, from 0: how often it was restarted.
    pub attempt: u32,
    /// What of its spec makes a restart necessary.
    pub hash: u64,
    /// The node.
    pub settings: &'a Settings,
    /// The machine.
    pub machine: &'a Machine,
    /// The runtime, whose handlers count.
    pub runtime: &'a Runtime,
    /// The sandbox that it is to be in.
    pub sandbox: &'a SandboxConfig,
    /// Its image.
    pub image: &'a image::Ready,
    /// Environment, command and arguments, resolved for this start.
    pub inputs: &'a ContainerInputs,
    /// Where its volumes are, by the path in the container. What the spec says about each mount is put on here.
    pub mounts: &'a [Mount],
    /// The pod's managed hosts file. Not mounted where the container mounts one itself.
    pub hosts_file: Option<&'a Path>,
    /// This attempt's file for the termination message.
    pub termination_file: Option<&'a Path>,
    /// The runtime's id of the container whose processes an ephemeral container is to see.
    pub target: Option<&'a str>,
}

/// The sandbox of a pod. An error is what a kubelet would say in the event `FailedCreatePodSandBox`: see [`sandbox_failure`].
pub fn sandbox(order: &SandboxOrder<'_>, tell: Tell<'_>) -> Result<SandboxConfig> {
    let SandboxOrder { pod, settings, machine, .. } = *order;
    let reference = PodRef::of(pod).ok_or_else(|| {
        Error::invalid("make sandbox: the pod has no namespace, name or UID: it was never stored")
    })?;
    let spec = spec(pod)?;
    let handler = order.runtime_class.map(|class| class.handler.clone()).unwrap_or_default();
    let dns = dns::pod_dns(pod, spec, settings, order.host_dns, tell);
    let name = if host_network(spec) {
        String::new()
    } else {
        let (name, domain) = hostname(pod, &settings.cluster_domain)?;
        hostname::for_kernel(name, &domain, spec.set_hostname_as_fqdn == Some(true))?
    };
    let namespaces = namespaces(spec, order.runtime, &handler)?;
    let sysctls = spec.security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
    Ok(SandboxConfig {
        attempt: order.attempt,
        handler,
        hostname: name,
        log_directory: log_directory(settings, &reference).to_string_lossy().into_owned(),
        dns: Some(dns),
        ports: ports(spec),
        labels: labels::of_sandbox(pod, &reference, settings),
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
        cgroup_parent: cgroup_parent(pod, &reference, settings),
        sysctls: sysctls.map(|sysctl| (admission::dotted(&sysctl.name), sysctl.value.clone())).collect(),
        security: security::of_sandbox(pod, spec, namespaces)?,
        overhead: resources::overhead(spec, machine),
        resources: Some(resources::of_sandbox(spec, machine)),
        pod: reference,
    })
}

/// The event that tells that a pod has no sandbox.
pub fn sandbox_failure(error: &Error) -> (EventKind, &'static str, String) {
    (EventKind::Warning, "FailedCreatePodSandBox", format!("Failed to create pod sandbox: {}", told(error)))
}

/// What a kubelet says when a pod names a RuntimeClass that is not there.
pub fn no_runtime_class(name: &str) -> Error {
    Error::invalid(format!("runtimeclass.node.k8s.io \"{name}\" not found"))
}

/// A container of a pod. The trouble is `CreateContainerConfigError`, with a kubelet's words.
pub fn container(order: &ContainerOrder<'_>) -> Result<ContainerConfig, Trouble> {
    config(order).map_err(|message| Trouble { reason: "CreateContainerConfigError".to_owned(), message })
}

fn config(order: &ContainerOrder<'_>) -> Result<ContainerConfig, String> {
    let ContainerOrder { pod, part, settings, .. } = *order;
    let container = &*part.container;
    let spec = spec(pod).map_err(|error| error.message().to_owned())?;
    // A container that is to look into another must not start blind.
    let target = match (part.target, order.target) {
        (Some(name), None) => return Err(format!("unable to find target container {name}")),
        (Some(_), target) => target,
        (None, _) => None,
    };
    let handler = handler(order.runtime, &order.sandbox.handler);
    let mounts = mounts::of_container(order, handler)?;
    let mut namespaces = namespaces(spec, order.runtime, &order.sandbox.handler)
        .map_err(|error| error.message().to_owned())?;
    if let Some(target) = target
        && namespaces.pid == Share::Container
    {
        namespaces.pid = Share::Target(target.to_owned());
    }
    let security = security::of_container(order, namespaces)?;
    Ok(ContainerConfig {
        name: container.name.clone(),
        attempt: order.attempt,
        image: order.image.image_ref.clone(),
        user_image: container.image.clone().unwrap_or_default(),
        command: order.inputs.command.clone().unwrap_or_default(),
        args: order.inputs.args.clone().unwrap_or_default(),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        env: order.inputs.env.clone(),
        mounts,
        devices: Vec::new(),
        labels: labels::of_container(&order.sandbox.pod, container, settings),
        annotations: labels::annotations(pod, container, order.attempt, order.hash),
        log_path: format!("{}/{}.log", container.name, order.attempt),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        resources: resources::of_container(pod, part, settings, order.machine),
        security,
        // An API server keeps the field only where the feature is on, so what is there is meant.
        stop_signal: container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.clone()),
    })
}

/// Where the logs of a pod are.
pub fn log_directory(settings: &Settings, pod: &PodRef) -> PathBuf {
    settings.log_root.join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid))
}

/// The pod as a kubelet writes it into messages: `NAME_NAMESPACE(UID)`.
pub fn full_name(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    format!("{}_{}({})", text(&meta.name), text(&meta.namespace), text(&meta.uid))
}

fn spec(pod: &Pod) -> Result<&PodSpec> {
    let spec = pod.spec.as_ref();
    spec.ok_or_else(|| Error::invalid(format!("make pod {}: it has no spec", full_name(pod))))
}

fn host_network(spec: &PodSpec) -> bool {
    spec.host_network == Some(true)
}

fn handler<'a>(runtime: &'a Runtime, name: &str) -> Option<&'a Handler> {
    runtime.handlers.iter().find(|handler| handler.name == name)
}

/// The namespaces of a pod, the same in its sandbox and its containers.
fn namespaces(spec: &PodSpec, runtime: &Runtime, handler_name: &str) -> Result<Namespaces> {
    if spec.host_users == Some(false) {
        if !handler(runtime, handler_name).is_some_and(|handler| handler.user_namespaces) {
            return Err(Error::unsupported(if handler_name.is_empty() {
                "can't set `spec.hostUsers: false`, runtime does not support user namespaces".to_owned()
            } else {
                format!(
                    "can't set `spec.hostUsers: false`, RuntimeClass handler \"{handler_name}\" does not support user namespaces"
                )
            }));
        }
        return Err(Error::unsupported(
            "can't set `spec.hostUsers: false`: this node gives out no ranges of user ids; leave the field out or set it to true",
        ));
    }
    let share = |host: Option<bool>, other| if host == Some(true) { Share::Node } else { other };
    let own = if spec.share_process_namespace == Some(true) { Share::Pod } else { Share::Container };
    Ok(Namespaces {
        network: share(spec.host_network, Share::Pod),
        pid: share(spec.host_pid, own),
        ipc: share(spec.host_ipc, Share::Pod),
        user: None,
    })
}

/// The pod's cgroup, as a kubelet with the cgroupfs driver names it; empty leaves it to the runtime.
fn cgroup_parent(pod: &Pod, reference: &PodRef, settings: &Settings) -> String {
    let Some(root) = &settings.cgroup_root else { return String::new() };
    let root = root.trim_end_matches('/');
    let uid = &reference.uid;
    match qos(pod) {
        Qos::Guaranteed => format!("{root}/pod{uid}"),
        Qos::Burstable => format!("{root}/burstable/pod{uid}"),
        Qos::BestEffort => format!("{root}/besteffort/pod{uid}"),
    }
}

/// Ports of the host that lead into the pod. Ports without one are for readers of the spec.
fn ports(spec: &PodSpec) -> Vec<PortMapping> {
    let mut mappings = Vec::new();
    for container in &spec.containers {
        let mut names = Vec::new();
        for port in container.ports.iter().flatten() {
            let host_ip = port.host_ip.clone().unwrap_or_default();
            let protocol = match port.protocol.as_deref() {
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                _ => Protocol::Tcp,
            };
            // A port that is given twice counts once.
            let name = port.name.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| {
                format!("{protocol:?}-{host_ip}:{}:{:?}", port.container_port, port.host_port)
            });
            if names.contains(&name) {
                continue;
            }
            names.push(name);
            let (Ok(container_port), Ok(host_port)) =
                (u16::try_from(port.container_port), u16::try_from(port.host_port.unwrap_or_default()))
            else {
                continue;
            };
            if host_port != 0 {
                mappings.push(PortMapping { protocol, container_port, host_port, host_ip });
            }
        }
    }
    mappings
}

#[cfg(test)]
pub(crate) mod tests;
