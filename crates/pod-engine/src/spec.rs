//! Builders of sandbox and container configurations: what a kubelet puts into them, from the pod's spec.
//!
//! Everything is computed from the arguments. The host is read once by [`HostFeatures::detect`], and its resolver configuration for each
//! sandbox by [`host_dns`], as in a kubelet.

mod admission;
mod cgroup_names;
mod dns;
mod host_features;
mod hostname;
mod hosts;
mod labels;
mod mounts;
mod resources;
mod security;

use std::path::Path;

use k8s_openapi::api::{
    core::v1::{Pod, PodSpec},
    node::v1::RuntimeClass,
};
use vk_provider::{Error, EventKind, PodRef, Result, resolve::ContainerInputs};

pub use vk_provider::qos::{Qos, qos};

pub(crate) use self::resources::{class_limits, node_limits};
pub use self::{
    admission::admit,
    cgroup_names::{CgroupDriver, class_cgroup, pod_cgroup},
    dns::host_dns,
    host_features::HostFeatures,
    hostname::hostname,
    hosts::{hosts, mounts_hosts},
    resources::pod_limits,
};
use crate::{
    Settings,
    backend::{
        ContainerConfig, Dns, Mount, Namespaces, PortMapping, Protocol, RuntimeHandler, RuntimeInfo,
        SandboxConfig, Share, full_message,
    },
    containers::PodContainer,
    image, log,
    status::FailureReason,
    text::full_name,
};

/// Records an event of a pod: kind, reason and message.
pub type RecordEvent<'a> = &'a (dyn Fn(EventKind, &str, String) + Send + Sync);

/// Builds the configuration of a sandbox.
#[derive(Clone, Copy, Debug)]
pub struct SandboxBuilder<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its attempt number in the pod, from 0.
    pub attempt: u32,
    /// The settings of the node.
    pub settings: &'a Settings,
    /// Features of the host.
    pub features: &'a HostFeatures,
    /// The runtime, for its handlers.
    pub runtime: &'a RuntimeInfo,
    /// The pod's RuntimeClass, if it has one.
    pub runtime_class: Option<&'a RuntimeClass>,
    /// The host's resolver configuration, from [`host_dns`].
    pub host_dns: &'a Dns,
}

/// Builds the configuration of a container.
#[derive(Clone, Copy, Debug)]
pub struct ContainerBuilder<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The container.
    pub container: &'a PodContainer<'a>,
    /// Its attempt number, from 0: its restart count.
    pub attempt: u32,
    /// The hash of its spec: see [`spec_hash`](crate::containers::spec_hash).
    pub hash: u64,
    /// The settings of the node.
    pub settings: &'a Settings,
    /// Features of the host.
    pub features: &'a HostFeatures,
    /// The runtime, for its handlers.
    pub runtime: &'a RuntimeInfo,
    /// Its sandbox.
    pub sandbox: &'a SandboxConfig,
    /// Its image.
    pub image: &'a image::ResolvedImage,
    /// Its resolved environment, command and arguments.
    pub inputs: &'a ContainerInputs,
    /// The mounts of its volumes, by container path. The builder applies the options of the spec.
    pub mounts: &'a [Mount],
    /// The pod's managed hosts file. It is not mounted if the container mounts its own.
    pub hosts_file: Option<&'a Path>,
    /// The file for the termination message of this attempt.
    pub termination_file: Option<&'a Path>,
    /// The runtime's id of the container whose process namespace an ephemeral container joins.
    pub target: Option<&'a str>,
}

// === impl SandboxBuilder ===

impl SandboxBuilder<'_> {
    /// Builds the configuration. An error becomes the event `FailedCreatePodSandBox`: see [`sandbox_failure`].
    pub fn build(&self, record: RecordEvent<'_>) -> Result<SandboxConfig> {
        let SandboxBuilder { pod, settings, features, .. } = *self;
        let reference = PodRef::of(pod)
            .ok_or_else(|| Error::invalid("build sandbox: the pod has no namespace, name or UID"))?;
        let spec = spec(pod)?;
        let handler = self.runtime_class.map(|class| class.handler.clone()).unwrap_or_default();
        let dns = dns::pod_dns(pod, spec, settings, self.host_dns, record);
        let name = if host_network(spec) {
            String::new()
        } else {
            let (name, domain) = hostname(pod, &settings.cluster_domain)?;
            hostname::kernel_hostname(name, &domain, spec.set_hostname_as_fqdn == Some(true))?
        };
        let namespaces = namespaces(spec, self.runtime, &handler)?;
        let sysctls = spec.security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
        Ok(SandboxConfig {
            attempt: self.attempt,
            handler,
            hostname: name,
            log_directory: log::directory::of_pod(&settings.log_root, &reference)
                .to_string_lossy()
                .into_owned(),
            dns: Some(dns),
            ports: ports(spec),
            labels: labels::of_sandbox(pod, &reference, settings),
            annotations: pod.metadata.annotations.clone().unwrap_or_default(),
            cgroup_parent: self.cgroup_parent(&reference),
            sysctls: sysctls.map(|sysctl| (admission::dotted(&sysctl.name), sysctl.value.clone())).collect(),
            security: security::of_sandbox(pod, spec, namespaces)?,
            overhead: resources::overhead(spec, features),
            resources: Some(resources::of_sandbox(spec, features)),
            pod: reference,
        })
    }

    /// The pod's cgroup; empty leaves it to the runtime.
    fn cgroup_parent(&self, reference: &PodRef) -> String {
        let name = |root| pod_cgroup(root, CgroupDriver::of(self.runtime), qos(self.pod), &reference.uid);
        self.settings.cgroup_root.as_deref().map(name).unwrap_or_default()
    }
}

/// The event for a sandbox that could not be created.
pub fn sandbox_failure(error: &Error) -> (EventKind, &'static str, String) {
    (
        EventKind::Warning,
        "FailedCreatePodSandBox",
        format!("Failed to create pod sandbox: {}", full_message(error)),
    )
}

/// The error of a kubelet for a RuntimeClass that does not exist.
pub fn no_runtime_class(name: &str) -> Error {
    Error::invalid(format!("runtimeclass.node.k8s.io \"{name}\" not found"))
}

// === impl ContainerBuilder ===

impl ContainerBuilder<'_> {
    /// Builds the configuration. The failure is `CreateContainerConfigError`, with the kubelet's message.
    pub fn build(&self) -> Result<ContainerConfig, FailureReason> {
        self.config()
            .map_err(|message| FailureReason { reason: "CreateContainerConfigError".to_owned(), message })
    }

    fn config(&self) -> Result<ContainerConfig, String> {
        let ContainerBuilder { pod, settings, .. } = *self;
        let container = &*self.container.spec;
        let spec = spec(pod).map_err(|error| error.message().to_owned())?;
        // A debug container must not start without its target.
        let target = match (self.container.target, self.target) {
            (Some(name), None) => return Err(format!("unable to find target container {name}")),
            (Some(_), target) => target,
            (None, _) => None,
        };
        let handler = handler(self.runtime, &self.sandbox.handler);
        let mounts = mounts::of_container(self, handler)?;
        let mut namespaces = namespaces(spec, self.runtime, &self.sandbox.handler)
            .map_err(|error| error.message().to_owned())?;
        if let Some(target) = target
            && namespaces.pid == Share::Container
        {
            namespaces.pid = Share::Target(target.to_owned());
        }
        let security = security::of_container(self, namespaces)?;
        Ok(ContainerConfig {
            name: container.name.clone(),
            attempt: self.attempt,
            image: self.image.image_ref.clone(),
            user_image: container.image.clone().unwrap_or_default(),
            command: self.inputs.command.clone().unwrap_or_default().words,
            args: self.inputs.args.clone().unwrap_or_default().words,
            working_dir: container.working_dir.clone().unwrap_or_default(),
            env: self.inputs.pairs(),
            mounts,
            devices: Vec::new(),
            labels: labels::of_container(&self.sandbox.pod, container, settings),
            annotations: labels::annotations(pod, container, self.attempt, self.hash),
            log_path: format!("{}/{}.log", container.name, self.attempt),
            stdin: container.stdin == Some(true),
            stdin_once: container.stdin_once == Some(true),
            tty: container.tty == Some(true),
            resources: resources::of_container(pod, self.container, settings, self.features),
            security,
            // The API server drops the field if the feature is off.
            stop_signal: container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.clone()),
        })
    }
}

fn spec(pod: &Pod) -> Result<&PodSpec> {
    let spec = pod.spec.as_ref();
    spec.ok_or_else(|| Error::invalid(format!("build pod {}: it has no spec", full_name(pod))))
}

fn host_network(spec: &PodSpec) -> bool {
    spec.host_network == Some(true)
}

fn handler<'a>(runtime: &'a RuntimeInfo, name: &str) -> Option<&'a RuntimeHandler> {
    runtime.handlers.iter().find(|handler| handler.name == name)
}

/// The namespaces of a pod, for its sandbox and its containers.
fn namespaces(spec: &PodSpec, runtime: &RuntimeInfo, handler_name: &str) -> Result<Namespaces> {
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
            "can't set `spec.hostUsers: false`: this node allocates no user id ranges; remove the field or set it to true",
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

/// Host port mappings. Container ports without a host port are only informative.
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
            // Duplicate ports count once.
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
