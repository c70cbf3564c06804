//! Checks the cgroup hierarchy and the cgroup driver of the runtime.

use vk_pod_engine::host::{CgroupLayout, Host};
use vk_provider::Finding;

use super::RuntimeInfo;
use crate::config::Settings;

pub(super) fn examine(info: &RuntimeInfo, settings: &Settings, machine: &Host) -> Vec<Finding> {
    let mut findings = vec![layout(machine)];
    findings.extend(driver(info, settings, machine));
    findings
}

fn layout(machine: &Host) -> Finding {
    let what = "cgroups";
    let cgroups = CgroupLayout::detect(machine);
    let remedy = match &cgroups {
        CgroupLayout::None => "mount them at /sys/fs/cgroup",
        CgroupLayout::Unified { missing } if missing.is_empty() => {
            return Finding::ok(what, cgroups.to_string());
        }
        CgroupLayout::Unified { .. } => {
            "delegate them to this machine, or boot the kernel with them (cgroup_enable=memory)"
        }
        CgroupLayout::Split { missing, .. } if missing.is_empty() => {
            let remedy = "runc works with it and crun does not; boot with systemd.unified_cgroup_hierarchy=1 for version 2";
            return Finding::warning(what, cgroups.to_string(), remedy);
        }
        CgroupLayout::Split { .. } => "mount them below /sys/fs/cgroup",
    };
    Finding::error(what, cgroups.to_string(), remedy)
}

/// The systemd driver needs systemd, and a slice as its root.
fn driver(info: &RuntimeInfo, settings: &Settings, machine: &Host) -> Option<Finding> {
    let what = "cgroup driver";
    let configured = info.config.pointer("/containerd/runtimes/runc/options/SystemdCgroup");
    let systemd = match &info.cgroup_driver {
        Some(driver) => driver == "systemd",
        None => configured?.as_bool()?,
    };
    let name = if systemd { "systemd" } else { "cgroupfs" };
    if systemd && !machine.path("run/systemd/system").exists() {
        let remedy = "set `SystemdCgroup = false` in the runtime's configuration";
        return Some(Finding::error(what, "systemd, which does not run here", remedy));
    }
    if let Some(root) = &settings.engine.cgroup_root
        && systemd != root.trim_end_matches('/').strip_suffix(".slice").is_some()
    {
        let found = format!("{name}, and cgroupRoot is {root}");
        let remedy =
            "set `cgroupRoot` to a slice (`pods.slice`) with systemd, to a path (`/pods`) with cgroupfs";
        return Some(Finding::error(what, found, remedy));
    }
    if systemd {
        let found = "systemd, whose slices get no limits of pods: pod-level limits, weights of QoS classes and `reserved` are not enforced";
        let remedy =
            "give every container its own limits, or use the driver cgroupfs (`SystemdCgroup = false`)";
        return Some(Finding::warning(what, found, remedy));
    }
    Some(Finding::ok(what, name))
}
