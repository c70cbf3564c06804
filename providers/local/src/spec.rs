//! The OCI runtime spec of a container, equivalent to what containerd generates.
//!
//! [`spec`] is a pure function. Its inputs are read before: users by [`user::Identity::find`] from the container's
//! files, the host's features by [`Machine::detect`], a seccomp profile by [`seccomp::read`].
//!
//! Two settings are not in the spec, because the runtime would apply them to its own caller: the OOM score adjustment,
//! which the shim writes, and rlimits, which are inherited.

mod machine;
mod mounts;
mod process;
mod rights;
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

use self::user::Identity;
pub use self::{
    machine::{DeviceNode, Machine},
    process::{arguments, environment, stop_signal, working_directory},
    rights::granted,
};
use crate::cgroup::MOUNTED;

/// Paths of a pod's namespaces and files on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
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
pub struct Order<'a> {
    /// The container.
    pub container: &'a ContainerConfig,
    /// Its sandbox.
    pub sandbox: &'a SandboxConfig,
    /// The config of its image, if there is one.
    pub image: Option<&'a image::Config>,
    /// The user that its process runs as.
    pub identity: &'a Identity,
    /// The paths of its pod.
    pub places: &'a Places,
    /// The directories of image volumes, by their path in the container.
    pub images: &'a BTreeMap<String, PathBuf>,
    /// The devices of the container and their permissions.
    pub devices: &'a [(DeviceNode, String)],
    /// The seccomp profile.
    pub seccomp: Option<&'a LinuxSeccomp>,
    /// The features of this host.
    pub machine: &'a Machine,
    /// Its cgroup, relative to the root of each hierarchy.
    pub cgroup: &'a str,
    /// Maximum number of processes; `None` means no limit.
    pub pids_limit: Option<i64>,
    /// The host name of the node, for pods on the host's network.
    pub host: &'a str,
}

/// Builds the spec of a container.
pub fn spec(order: &Order<'_>) -> Result<Spec> {
    let ContainerConfig { security, .. } = order.container;
    if security.namespaces.user.is_some() {
        return Err(Error::unsupported(
            "user namespaces are not supported by the runtime \"local\": leave `spec.hostUsers` out or set it to true",
        ));
    }
    if let Some(profile) = security.apparmor.as_deref()
        && profile.starts_with("localhost/")
        && !order.machine.apparmor
    {
        return Err(Error::invalid(format!(
            "AppArmor profile {profile:?} is requested, but AppArmor is not enabled on this host"
        )));
    }
    rights::check(order.container, order.machine)?;
    let privileged = security.privileged;
    let mut linux = json!({
        "cgroupsPath": order.cgroup,
        "namespaces": namespaces(order)?,
        "resources": resources(order),
        "devices": rights::devices(order),
        "rootfsPropagation": propagation(order.container),
        "maskedPaths": if privileged { &[][..] } else { &security.masked_paths[..] },
        "readonlyPaths": read_only_paths(order),
    });
    if let Some(profile) = order.seccomp.filter(|_| !privileged) {
        linux["seccomp"] = serde_json::to_value(profile).map_err(unwritable)?;
    }
    let value = json!({
        "ociVersion": "1.1.0",
        "root": { "path": order.places.rootfs, "readonly": security.read_only_root },
        "process": process::process(order)?,
        "mounts": mounts::mounts(order)?,
        "linux": linux,
        "annotations": annotations(order),
    });
    serde_json::from_value(value).map_err(unwritable)
}

fn unwritable(error: serde_json::Error) -> Error {
    Error::internal("build the OCI spec: a value does not fit into it").caused_by(error)
}

fn namespaces(order: &Order<'_>) -> Result<Vec<Value>> {
    let shares = &order.container.security.namespaces;
    let joined = |kind: &str, path: &Path| json!({ "type": kind, "path": path });
    let mut namespaces = vec![json!({ "type": "mount" })];
    match (&shares.pid, &order.places.pid) {
        (Share::Container, _) => namespaces.push(json!({ "type": "pid" })),
        (Share::Node, _) => {}
        (Share::Pod | Share::Target(_), Some(path)) => namespaces.push(joined("pid", path)),
        (Share::Pod | Share::Target(_), None) => {
            return Err(Error::internal("build the OCI spec: the PID namespace to share is missing"));
        }
    }
    for (kind, share, place) in [
        ("network", &shares.network, &order.places.network),
        ("ipc", &shares.ipc, &order.places.ipc),
        // The host name goes with the network.
        ("uts", &shares.network, &order.places.uts),
    ] {
        if *share != Share::Node
            && let Some(path) = place
        {
            namespaces.push(joined(kind, path));
        }
    }
    if order.machine.cgroup_namespace && !order.container.security.privileged {
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

fn read_only_paths(order: &Order<'_>) -> Vec<String> {
    if order.container.security.privileged {
        return Vec::new();
    }
    let mut paths = order.container.security.read_only_paths.clone();
    // The parent directory of the cgroup v1 mounts, which is only writable while they are created.
    if !order.machine.unified {
        paths.push(MOUNTED.to_owned());
    }
    paths
}

fn resources(order: &Order<'_>) -> Value {
    let limits = &order.container.resources;
    let mut value = json!({ "devices": rights::device_rules(order), "cpu": cpu(limits) });
    let memory = memory(limits);
    if memory.as_object().is_some_and(|memory| !memory.is_empty()) {
        value["memory"] = memory;
    }
    if let Some(limit) = order.pids_limit.filter(|_| order.machine.pids) {
        value["pids"] = json!({ "limit": limit });
    }
    if order.machine.huge_pages && !limits.hugepages.is_empty() {
        let pages = limits.hugepages.iter().map(|(size, limit)| json!({ "pageSize": size, "limit": limit }));
        value["hugepageLimits"] = pages.collect();
    }
    if order.machine.unified && !limits.unified.is_empty() {
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

fn annotations(order: &Order<'_>) -> Value {
    let pod = &order.sandbox.pod;
    json!({
        "io.kubernetes.cri.container-name": order.container.name,
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.image-name": order.container.user_image,
        "io.kubernetes.cri.sandbox-name": pod.name,
        "io.kubernetes.cri.sandbox-namespace": pod.namespace,
        "io.kubernetes.cri.sandbox-uid": pod.uid,
    })
}
