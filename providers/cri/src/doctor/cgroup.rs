//! How the kernel's control groups are laid out, and whether the runtime is told the same.

use vk_pod_engine::machine::Machine;
use vk_provider::Finding;

use super::Peer;
use crate::config::Settings;

/// The controllers that pods need.
const NEEDED: [&str; 3] = ["cpu", "memory", "pids"];

pub(super) fn examine(peer: &Peer, settings: &Settings, machine: &Machine) -> Vec<Finding> {
    let mut findings = vec![layout(machine)];
    findings.extend(driver(peer, settings, machine));
    findings
}

fn layout(machine: &Machine) -> Finding {
    let what = "cgroups";
    if let Ok(unified) = machine.read("sys/fs/cgroup/cgroup.controllers") {
        let missing = missing(unified.split_whitespace());
        if missing.is_empty() {
            return Finding::ok(what, "version 2");
        }
        let found = format!("version 2, without the controllers {}", missing.join(", "));
        let remedy = "delegate them to this machine, or boot the kernel with them (cgroup_enable=memory)";
        return Finding::error(what, found, remedy);
    }
    let Ok(known) = machine.read("proc/cgroups") else {
        return Finding::error(what, "none are mounted", "mount them at /sys/fs/cgroup");
    };
    // Name, hierarchy, number of groups, enabled.
    let enabled = known.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        (words.nth(2)? == "1" && machine.path(&format!("sys/fs/cgroup/{name}")).exists()).then_some(name)
    });
    let missing = missing(enabled);
    if !missing.is_empty() {
        let found = format!("version 1, without the controllers {}", missing.join(", "));
        return Finding::error(what, found, "mount them below /sys/fs/cgroup");
    }
    let hybrid = machine.path("sys/fs/cgroup/unified").exists();
    let found = if hybrid { "versions 1 and 2 side by side" } else { "version 1" };
    let remedy =
        "runc works with it and crun does not; boot with systemd.unified_cgroup_hierarchy=1 for version 2";
    Finding::warning(what, found, remedy)
}

fn missing<'a>(found: impl Iterator<Item = &'a str>) -> Vec<&'static str> {
    let found: Vec<&str> = found.collect();
    NEEDED.into_iter().filter(|needed| !found.contains(needed)).collect()
}

/// systemd must run to make groups, and wants slices for a root.
fn driver(peer: &Peer, settings: &Settings, machine: &Machine) -> Option<Finding> {
    let what = "cgroup driver";
    let configured = peer.config.pointer("/containerd/runtimes/runc/options/SystemdCgroup");
    let systemd = match &peer.cgroup_driver {
        Some(driver) => driver == "systemd",
        None => configured?.as_bool()?,
    };
    let name = if systemd { "systemd" } else { "cgroupfs" };
    if systemd && !machine.path("run/systemd/system").exists() {
        let remedy = "set `SystemdCgroup = false` in the runtime's configuration";
        return Some(Finding::error(what, "systemd, which does not run here", remedy));
    }
    if let Some(root) = &settings.cgroup_root
        && systemd != root.trim_end_matches('/').strip_suffix(".slice").is_some()
    {
        let found = format!("{name}, and cgroupRoot is {root}");
        let remedy =
            "set `cgroupRoot` to a slice (`pods.slice`) with systemd, to a path (`/pods`) with cgroupfs";
        return Some(Finding::error(what, found, remedy));
    }
    Some(Finding::ok(what, name))
}
