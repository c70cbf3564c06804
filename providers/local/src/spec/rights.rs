//! Capabilities and devices.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use vk_pod_engine::backend::ContainerConfig;
use vk_provider::{Error, Result};

use super::{Machine, Order};

/// The default capabilities of containerd and docker.
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];
const ALL: &str = "ALL";
const MKNOD: &str = "MKNOD";

/// Character devices that every container may use: null, zero, full, random, urandom, tty, console, ptmx and pts.
const COMMON: [(i64, Option<i64>); 9] = [
    (1, Some(3)),
    (1, Some(5)),
    (1, Some(7)),
    (1, Some(8)),
    (1, Some(9)),
    (5, Some(0)),
    (5, Some(1)),
    (5, Some(2)),
    (136, None),
];

pub(super) fn capabilities(order: &Order<'_>) -> Value {
    let names: Vec<String> =
        granted(order.container, order.machine).into_iter().map(|name| format!("CAP_{name}")).collect();
    json!({ "bounding": names, "effective": names, "permitted": names, "inheritable": [], "ambient": [] })
}

/// The capabilities of a container, without `CAP_`. Limited to those of this process, because the runtime cannot grant
/// others. Unknown names are ignored, as in runc.
pub fn granted(container: &ContainerConfig, machine: &Machine) -> BTreeSet<String> {
    let ours = &machine.capabilities;
    let security = &container.security;
    if security.privileged {
        return ours.clone();
    }
    let add: Vec<String> = security.capabilities.add.iter().map(|name| plain(name)).collect();
    let drop: Vec<String> = security.capabilities.drop.iter().map(|name| plain(name)).collect();
    let mut granted: BTreeSet<String> = DEFAULT.iter().map(|name| (*name).to_owned()).collect();
    if add.iter().any(|name| name == ALL) {
        granted.clone_from(ours);
    }
    if drop.iter().any(|name| name == ALL) {
        granted.clear();
    }
    granted.extend(add.into_iter().filter(|name| name != ALL));
    for name in &drop {
        granted.remove(name);
    }
    if machine.unified {
        // With cgroup v2 nothing restricts device nodes that the container creates: it could open the host's disks.
        // Removed last, so that neither `ALL` nor its name brings it back.
        granted.remove(MKNOD);
    }
    granted.retain(|name| ours.contains(name));
    granted
}

/// Rejects a capability that cannot be granted safely on this host.
pub(super) fn check(container: &ContainerConfig, machine: &Machine) -> Result<()> {
    let security = &container.security;
    let names = |names: &[String]| names.iter().any(|name| plain(name) == MKNOD);
    let wanted = names(&security.capabilities.add) && !names(&security.capabilities.drop);
    if security.privileged || !machine.unified || !wanted {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "capability MKNOD of container {:?} cannot be granted: this host has cgroup version 2, for which the runtime \"local\" has no device rules, \
         so the container could create device nodes and open any disk of the host; leave it out of `capabilities.add`, or run the \
         container privileged",
        container.name
    )))
}

/// The name of a capability in upper case without `CAP_`.
fn plain(name: &str) -> String {
    let name = name.to_ascii_uppercase();
    name.strip_prefix("CAP_").unwrap_or(&name).to_owned()
}

/// Device nodes in addition to those that every container has.
pub(super) fn devices(order: &Order<'_>) -> Vec<Value> {
    let hosts = order.machine.devices.iter().filter(|_| order.container.security.privileged);
    let named = order.devices.iter().map(|(device, _)| device);
    let all = hosts.chain(named).map(|device| {
        json!({
            "path": device.path,
            "type": device.kind,
            "major": device.major,
            "minor": device.minor,
            "fileMode": device.mode,
            "uid": device.uid,
            "gid": device.gid,
        })
    });
    all.collect()
}

/// The device rules of the container's cgroup.
pub(super) fn device_rules(order: &Order<'_>) -> Vec<Value> {
    if order.container.security.privileged {
        return vec![json!({ "allow": true, "access": "rwm" })];
    }
    let mut rules = vec![json!({ "allow": false, "access": "rwm" })];
    // Creating a node is allowed; using it is not.
    rules.extend(["c", "b"].map(|kind| json!({ "allow": true, "type": kind, "access": "m" })));
    for (major, minor) in COMMON {
        let mut rule = json!({ "allow": true, "type": "c", "major": major, "access": "rwm" });
        if let Some(minor) = minor {
            rule["minor"] = json!(minor);
        }
        rules.push(rule);
    }
    for (device, access) in order.devices {
        rules.push(json!({
            "allow": true,
            "type": device.kind,
            "major": device.major,
            "minor": device.minor,
            "access": access,
        }));
    }
    rules
}
