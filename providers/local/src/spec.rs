//! The OCI runtime spec of a container, equivalent to what containerd generates.
//!
//! [`build`] is a pure function. Its inputs are read before: users by [`user::ProcessIdentity::find`] from the container's
//! files, the host's features by [`HostFeatures::detect`], a seccomp profile by [`seccomp::read_profile`], the AppArmor
//! profile by [`apparmor::select_profile`].
//!
//! Two settings are not in the spec, because the runtime would apply them to its own caller: the OOM score adjustment,
//! which the shim writes, and rlimits, which are inherited.

pub mod apparmor;
mod host;
mod mounts;
mod privileges;
mod process;
pub mod seccomp;
#[cfg(test)]
mod tests;
pub mod user;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use oci_spec::{
    image,
    runtime::{LinuxSeccomp, Spec},
};
use serde_json::{Value, json};
use vk_pod_engine::backend::{ContainerConfig, Propagation, Resources, SandboxConfig, Share};
use vk_provider::{Error, Result};

use self::user::ProcessIdentity;
pub use self::{
    host::{DeviceNode, HostFeatures},
    privileges::granted_capabilities,
    process::{arguments, environment, stop_signal, working_directory},
};
use crate::cgroup::MOUNT_POINT;

/// Paths of a pod's namespaces and files on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodPaths {
    /// The root filesystem, absolute.
    pub rootfs: PathBuf,
    /// The pod's network namespace; `None` means the host's.
    pub network: Option<PathBuf>,
    /// The pod's IPC namespace; `None` means the host's.
    pub ipc: Option<PathBuf>,
    /// The pod's UTS namespace; `None` means the host's.
    pub uts: Option<PathBuf>,
    /// The PID namespace to join, if it is not a new one.
    pub pid: Option<PathBuf>,
    /// The pod's `/dev/shm`.
    pub shm: Option<PathBuf>,
    /// The pod's `/etc/resolv.conf`.
    pub resolv_conf: Option<PathBuf>,
    /// The pod's `/etc/hostname`.
    pub hostname: Option<PathBuf>,
}

/// The input for the spec of a container.
#[derive(Clone, Debug)]
pub struct SpecInput<'a> {
    /// The container.
    pub container: &'a ContainerConfig,
    /// Its sandbox.
    pub sandbox: &'a SandboxConfig,
    /// The config of its image, if there is one.
    pub image: Option<&'a image::Config>,
    /// The user that its process runs as.
    pub identity: &'a ProcessIdentity,
    /// The paths of its pod.
    pub paths: &'a PodPaths,
    /// The directories of image volumes, by their path in the container.
    pub images: &'a BTreeMap<String, PathBuf>,
    /// The devices of the container and their permissions.
    pub devices: &'a [(DeviceNode, String)],
    /// The seccomp profile.
    pub seccomp: Option<&'a LinuxSeccomp>,
    /// The AppArmor profile.
    pub apparmor: Option<&'a str>,
    /// The features of this host.
    pub host: &'a HostFeatures,
    /// Its cgroup, relative to the root of each hierarchy.
    pub cgroup: &'a str,
    /// Maximum number of processes; `None` means no limit.
    pub pids_limit: Option<i64>,
    /// The host name of the node, for pods on the host's network.
    pub node_hostname: &'a str,
}

/// Builds the spec of a container.
pub fn build(input: &SpecInput<'_>) -> Result<Spec> {
    let ContainerConfig { security, .. } = input.container;
    if security.namespaces.user.is_some() {
        return Err(Error::unsupported(
            "user namespaces are not supported by the runtime \"local\": leave `spec.hostUsers` out or set it to true",
        ));
    }
    if security.selinux.is_some() {
        return Err(Error::unsupported(format!(
            "seLinuxOptions of container {:?} are not supported by the runtime \"local\", which sets no SELinux labels: leave them out",
            input.container.name
        )));
    }
    privileges::check(input.container, input.host)?;
    let privileged = security.privileged;
    let mut linux = json!({
        "cgroupsPath": input.cgroup,
        "namespaces": namespaces(input)?,
        "resources": resources(input),
        "devices": privileges::devices(input),
        "rootfsPropagation": propagation(input.container),
        "maskedPaths": if privileged { &[][..] } else { &security.masked_paths[..] },
        "readonlyPaths": read_only_paths(input),
    });
    if let Some(profile) = input.seccomp.filter(|_| !privileged) {
        linux["seccomp"] = serde_json::to_value(profile).map_err(unwritable)?;
    }
    let value = json!({
        "ociVersion": "1.1.0",
        "root": { "path": input.paths.rootfs, "readonly": security.read_only_root },
        "process": process::process(input)?,
        "mounts": mounts::mounts(input)?,
        "linux": linux,
        "annotations": annotations(input),
    });
    serde_json::from_value(value).map_err(unwritable)
}

fn unwritable(error: serde_json::Error) -> Error {
    Error::internal("build the OCI spec: a value does not fit into it").caused_by(error)
}

fn namespaces(input: &SpecInput<'_>) -> Result<Vec<Value>> {
    let shares = &input.container.security.namespaces;
    let joined = |kind: &str, path: &Path| json!({ "type": kind, "path": path });
    let mut namespaces = vec![json!({ "type": "mount" })];
    match (&shares.pid, &input.paths.pid) {
        (Share::Container, _) => namespaces.push(json!({ "type": "pid" })),
        (Share::Node, _) => {}
        (Share::Pod | Share::Target(_), Some(path)) => namespaces.push(joined("pid", path)),
        (Share::Pod | Share::Target(_), None) => {
            return Err(Error::internal("build the OCI spec: the PID namespace to share is missing"));
        }
    }
    for (kind, share, place) in [
        ("network", &shares.network, &input.paths.network),
        ("ipc", &shares.ipc, &input.paths.ipc),
        // The host name goes with the network.
        ("uts", &shares.network, &input.paths.uts),
    ] {
        if *share != Share::Node
            && let Some(path) = place
        {
            namespaces.push(joined(kind, path));
        }
    }
    if input.host.cgroup_namespace && !input.container.security.privileged {
        namespaces.push(json!({ "type": "cgroup" }));
    }
    Ok(namespaces)
}

/// The widest propagation that a mount requests: the runtime has one setting for all of them.
fn propagation(container: &ContainerConfig) -> &'static str {
    let all = || container.mounts.iter().map(|mount| mount.propagation);
    if all().any(|one| one == Propagation::Bidirectional) {
        "shared"
    } else if all().any(|one| one == Propagation::HostToContainer) {
        "slave"
    } else {
        "private"
    }
}

fn read_only_paths(input: &SpecInput<'_>) -> Vec<String> {
    if input.container.security.privileged {
        return Vec::new();
    }
    let mut paths = input.container.security.read_only_paths.clone();
    // The parent directory of the cgroup v1 mounts, which is only writable while they are created.
    if !input.host.unified {
        paths.push(MOUNT_POINT.to_owned());
    }
    paths
}

fn resources(input: &SpecInput<'_>) -> Value {
    let limits = &input.container.resources;
    let mut value = json!({ "devices": privileges::device_rules(input), "cpu": cpu(limits) });
    let memory = memory(limits);
    if memory.as_object().is_some_and(|memory| !memory.is_empty()) {
        value["memory"] = memory;
    }
    if let Some(limit) = input.pids_limit.filter(|_| input.host.pids) {
        value["pids"] = json!({ "limit": limit });
    }
    if input.host.huge_pages && !limits.hugepages.is_empty() {
        let pages = limits.hugepages.iter().map(|(size, limit)| json!({ "pageSize": size, "limit": limit }));
        value["hugepageLimits"] = pages.collect();
    }
    if input.host.unified && !limits.unified.is_empty() {
        value["unified"] = json!(limits.unified);
    }
    value
}

fn cpu(limits: &Resources) -> Value {
    given([("shares", limits.cpu_shares), ("quota", limits.cpu_quota), ("period", limits.cpu_period)])
}

fn memory(limits: &Resources) -> Value {
    given([("limit", limits.memory_limit), ("swap", limits.memory_swap_limit)])
}

fn given<const N: usize>(limits: [(&str, i64); N]) -> Value {
    let set = limits.into_iter().filter(|(_, limit)| *limit != 0);
    Value::Object(set.map(|(name, limit)| (name.to_owned(), json!(limit))).collect())
}

fn annotations(input: &SpecInput<'_>) -> Value {
    let pod = &input.sandbox.pod;
    json!({
        "io.kubernetes.cri.container-name": input.container.name,
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.image-name": input.container.user_image,
        "io.kubernetes.cri.sandbox-name": pod.name,
        "io.kubernetes.cri.sandbox-namespace": pod.namespace,
        "io.kubernetes.cri.sandbox-uid": pod.uid,
    })
}
