//! A container as the OCI runtime wants it: what containerd makes of the same order, where it matters.
//!
//! [`spec`] computes from what is handed in and touches nothing. What has to be read is read before: users by [`user::Identity::find`]
//! in the container's files, the machine by [`Machine::detect`], a seccomp profile by [`seccomp::read`].
//!
//! Two things of a container are not in its spec, because the runtime would do them to its own caller: the score for the kernel's
//! killer, which the shim writes, and limits of processes (rlimits), which stay as they are.

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

/// Where the pod's things are on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// The root file system, absolute.
    pub rootfs: PathBuf,
    /// The pod's network namespace; `None` is the machine's.
    pub network: Option<PathBuf>,
    /// The pod's namespace of semaphores and shared memory; `None` is the machine's.
    pub ipc: Option<PathBuf>,
    /// The pod's namespace of the host's name; `None` is the machine's.
    pub uts: Option<PathBuf>,
    /// The namespace of processes to join, where it is another's.
    pub pid: Option<PathBuf>,
    /// The pod's shared memory.
    pub shm: Option<PathBuf>,
    /// The pod's `/etc/resolv.conf`.
    pub resolv_conf: Option<PathBuf>,
    /// The pod's `/etc/hostname`.
    pub hostname: Option<PathBuf>,
}

/// What a container is made of.
#[derive(Clone, Debug)]
pub struct Order<'a> {
    /// The container.
    pub container: &'a ContainerConfig,
    /// Its sandbox.
    pub sandbox: &'a SandboxConfig,
    /// What its image says, where it says anything.
    pub image: Option<&'a image::Config>,
    /// Who runs in it.
    pub identity: &'a Identity,
    /// Where the pod's things are.
    pub places: &'a Places,
    /// Where the images are that it mounts, by the path in the container.
    pub images: &'a BTreeMap<String, PathBuf>,
    /// The devices that it names, in their order.
    pub devices: &'a [(DeviceNode, String)],
    /// The profile of system calls.
    pub seccomp: Option<&'a LinuxSeccomp>,
    /// The machine.
    pub machine: &'a Machine,
    /// Its cgroup, below the root of each hierarchy.
    pub cgroup: &'a str,
    /// The most processes that it may have; `None` is without limit.
    pub pids_limit: Option<i64>,
    /// The name of the machine, which pods with its network have too.
    pub host: &'a str,
}

/// The container of an order.
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
            "apparmor profile {profile:?} is asked for, and AppArmor is not enabled on this machine"
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
    Error::internal("make OCI spec: a value has no place in it").caused_by(error)
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
            return Err(Error::internal("make OCI spec: the processes to share have no namespace"));
        }
    }
    for (kind, share, place) in [
        ("network", &shares.network, &order.places.network),
        ("ipc", &shares.ipc, &order.places.ipc),
        // The host's name goes with its network.
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

/// The widest that a mount asks for: the runtime knows it for all of them together.
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
    // The directory of the old hierarchies, which are in it only when it is made.
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
