//! Capabilities and devices.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use vk_pod_engine::backend::ContainerConfig;
use vk_provider::{Error, Result};

use super::{HostFeatures, SpecInput};

/// The default capabilities of containerd and docker.
const DEFAULT_CAPABILITIES: [&str; 14] = [
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
const DEFAULT_DEVICES: [(i64, Option<i64>); 9] = [
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

pub(super) fn capabilities(input: &SpecInput<'_>) -> Value {
    let names: Vec<String> = granted_capabilities(input.container, input.host)
        .into_iter()
        .map(|name| format!("CAP_{name}"))
        .collect();
    json!({ "bounding": names, "effective": names, "permitted": names, "inheritable": [], "ambient": [] })
}

/// The capabilities of a container, without `CAP_`. Limited to those of this process, because the runtime cannot grant
/// others. Unknown names are ignored, as in runc.
pub fn granted_capabilities(container: &ContainerConfig, host: &HostFeatures) -> BTreeSet<String> {
    let own = &host.capabilities;
    let security = &container.security;
    if security.privileged {
        return own.clone();
    }
    let add: Vec<String> = security.capabilities.add.iter().map(|name| normalized(name)).collect();
    let drop: Vec<String> = security.capabilities.drop.iter().map(|name| normalized(name)).collect();
    let mut granted: BTreeSet<String> = DEFAULT_CAPABILITIES.iter().map(|name| (*name).to_owned()).collect();
    if add.iter().any(|name| name == ALL) {
        granted.clone_from(own);
    }
    if drop.iter().any(|name| name == ALL) {
        granted.clear();
    }
    granted.extend(add.into_iter().filter(|name| name != ALL));
    for name in &drop {
        granted.remove(name);
    }
    if host.unified {
        // With cgroup v2 nothing restricts device nodes that the container creates: it could open the host's disks.
        // Removed last, so that neither `ALL` nor its name brings it back.
        granted.remove(MKNOD);
    }
    granted.retain(|name| own.contains(name));
    granted
}

/// Rejects a capability that cannot be granted safely on this host.
pub(super) fn check(container: &ContainerConfig, host: &HostFeatures) -> Result<()> {
    let security = &container.security;
    let names = |names: &[String]| names.iter().any(|name| normalized(name) == MKNOD);
    let wanted = names(&security.capabilities.add) && !names(&security.capabilities.drop);
    if security.privileged || !host.unified || !wanted {
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
fn normalized(name: &str) -> String {
    let name = name.to_ascii_uppercase();
    name.strip_prefix("CAP_").unwrap_or(&name).to_owned()
}

/// Device nodes in addition to those that every container has.
pub(super) fn devices(input: &SpecInput<'_>) -> Vec<Value> {
    let hosts = input.host.devices.iter().filter(|_| input.container.security.privileged);
    let named = input.devices.iter().map(|(device, _)| device);
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
pub(super) fn device_rules(input: &SpecInput<'_>) -> Vec<Value> {
    if input.container.security.privileged {
        return vec![json!({ "allow": true, "access": "rwm" })];
    }
    let mut rules = vec![json!({ "allow": false, "access": "rwm" })];
    // Creating a node is allowed; using it is not.
    rules.extend(["c", "b"].map(|kind| json!({ "allow": true, "type": kind, "access": "m" })));
    for (major, minor) in DEFAULT_DEVICES {
        let mut rule = json!({ "allow": true, "type": "c", "major": major, "access": "rwm" });
        if let Some(minor) = minor {
            rule["minor"] = json!(minor);
        }
        rules.push(rule);
    }
    for (device, access) in input.devices {
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
