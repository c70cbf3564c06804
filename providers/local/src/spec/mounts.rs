//! The mounts of a container.

use std::path::Path;

use serde_json::{Value, json};
use vk_pod_engine::backend::{Mount, Propagation, Share};
use vk_provider::{Error, Result};

use super::SpecInput;
use crate::cgroup::MOUNT_POINT;

/// The cgroup v1 hierarchies in which the runtime creates a cgroup for a container.
const V1_HIERARCHIES: [&str; 12] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
];

pub(super) fn mounts(input: &SpecInput<'_>) -> Result<Vec<Value>> {
    let privileged = input.container.security.privileged;
    let protected: &[&str] = if privileged { &[] } else { &["ro"] };
    let system = |path: &str, kind: &str, source: &str, options: &[&str], more: &[&str]| {
        let options: Vec<&str> = options.iter().chain(more).copied().collect();
        json!({ "destination": path, "type": kind, "source": source, "options": options })
    };
    let closed = ["nosuid", "noexec", "nodev"];
    let terminals = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"];
    let mut mounts = vec![
        system("/proc", "proc", "proc", &closed, &[]),
        system("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"], &[]),
        system("/dev/pts", "devpts", "devpts", &terminals, &[]),
        system("/dev/mqueue", "mqueue", "mqueue", &closed, &[]),
        system("/sys", "sysfs", "sysfs", &closed, protected),
    ];
    mounts.extend(cgroups(input));
    mounts.extend(pod_files(input));
    // Parent directories come first, regardless of the order in the pod.
    let mut requested: Vec<&Mount> = input.container.mounts.iter().collect();
    requested.sort_by_key(|mount| depth(&mount.container_path));
    for mount in requested {
        let destination = clean(&mount.container_path)?;
        let source = source(input, mount)?;
        mounts.retain(|other| other["destination"] != json!(destination));
        mounts.push(bind(&destination, &source, &options(mount)));
    }
    Ok(mounts)
}

/// The container's cgroups. The runtime could mount the v1 hierarchies too, but it looks up the container's process by
/// a PID that is wrong with a shared PID namespace, and it mounts them writable, so that a root container could lift
/// its own limits.
fn cgroups(input: &SpecInput<'_>) -> Vec<Value> {
    let protection = if input.container.security.privileged { "rw" } else { "ro" };
    let closed = ["nosuid", "noexec", "nodev"];
    if input.host.unified {
        let options: Vec<&str> = closed.into_iter().chain(["relatime", protection]).collect();
        let mount =
            json!({ "destination": MOUNT_POINT, "type": "cgroup", "source": "cgroup", "options": options });
        return vec![mount];
    }
    let options: Vec<&str> = closed.into_iter().chain(["mode=755", "size=64k"]).collect();
    let mut mounts =
        vec![json!({ "destination": MOUNT_POINT, "type": "tmpfs", "source": "tmpfs", "options": options })];
    // A hierarchy without controllers, such as systemd's, is not used by the runtime.
    let made =
        input.host.hierarchies.iter().filter(|name| name.split(',').any(|one| V1_HIERARCHIES.contains(&one)));
    mounts.extend(made.map(|name| {
        let here = Path::new(MOUNT_POINT).join(name);
        let source = here.join(input.cgroup.trim_start_matches('/'));
        bind(
            &here.to_string_lossy(),
            &source,
            &["rbind", "rprivate", "nosuid", "noexec", "nodev", protection],
        )
    }));
    mounts
}

/// The files that a pod provides to its containers, unless a mount replaces them.
fn pod_files(input: &SpecInput<'_>) -> Vec<Value> {
    let paths = input.paths;
    let host_ipc = input.container.security.namespaces.ipc == Share::Node;
    let shm = if host_ipc { Some(Path::new("/dev/shm")) } else { paths.shm.as_deref() };
    let read_only = input.container.security.read_only_root;
    let files = [("/etc/hostname", &paths.hostname), ("/etc/resolv.conf", &paths.resolv_conf)];
    let files = files.into_iter().filter_map(|(path, place)| Some((path, place.as_deref()?)));
    let mut mounts: Vec<Value> = files
        .map(|(path, place)| bind(path, place, &["rbind", "rprivate", if read_only { "ro" } else { "rw" }]))
        .collect();
    mounts.extend(shm.map(|place| bind("/dev/shm", place, &["rbind", "rprivate", "rw"])));
    mounts
}

fn bind(destination: &str, source: &Path, options: &[&str]) -> Value {
    json!({ "destination": destination, "type": "bind", "source": source, "options": options })
}

fn source(input: &SpecInput<'_>, mount: &Mount) -> Result<std::path::PathBuf> {
    if mount.image.is_some() {
        let place = input.images.get(&mount.container_path);
        return place.cloned().ok_or_else(|| {
            Error::internal(format!(
                "build the OCI spec: the image for {:?} is not mounted",
                mount.container_path
            ))
        });
    }
    if mount.host_path.starts_with('/') {
        return Ok(mount.host_path.clone().into());
    }
    Err(Error::invalid(format!(
        "mount {:?}: host path {:?} is not absolute",
        mount.container_path, mount.host_path
    )))
}

fn options(mount: &Mount) -> Vec<&'static str> {
    let propagation = match mount.propagation {
        Propagation::Private => "rprivate",
        Propagation::HostToContainer => "rslave",
        Propagation::Bidirectional => "rshared",
    };
    let mut options = vec!["rbind", propagation];
    // Image volumes are always read-only, because containers share them.
    if mount.read_only || mount.image.is_some() {
        options.push("ro");
        if mount.recursive_read_only {
            options.push("rro");
        }
    } else {
        options.push("rw");
    }
    options
}

fn depth(path: &str) -> usize {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").count()
}

/// The normalized path. Paths with `..` are rejected: the runtime would confine them to the container, but to another
/// place.
fn clean(path: &str) -> Result<String> {
    let mut parts = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            return Err(Error::invalid(format!(
                "mount {path:?}: a path in the container must not contain '..'"
            )));
        }
        parts.push(part);
    }
    if parts.is_empty() {
        return Err(Error::invalid(format!("mount {path:?}: cannot mount over the container's root")));
    }
    Ok(format!("/{}", parts.join("/")))
}
