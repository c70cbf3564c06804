//! What `virtual-kubelet doctor` checks for this provider: whether pods can run on this host.

use std::path::Path;

use rustix::fs::{Access, access};
use vk_pod_engine::host::{CAP_SYS_RESOURCE, Host};
use vk_provider::Finding;

use crate::{
    config::{NetworkMode, Settings},
    isolation::{CAP_NET_ADMIN, Isolation, IsolationSupport, OverlayTest},
};

/// The directories of the node, which may not exist yet.
#[derive(Clone, Debug)]
pub struct NodePaths<'a> {
    /// The node's directory.
    pub node: &'a Path,
    /// The image store.
    pub images: &'a Path,
}

/// Finds a firewall rule that drops pod traffic, with the remedy.
pub type FirewallCheck<'a> = dyn Fn() -> Option<String> + 'a;

/// Runs all checks: the isolation level and the reasons first, then everything else that pods may need.
pub fn examine(
    settings: &Settings,
    machine: &Host,
    overlay_test: &OverlayTest<'_>,
    firewall: &FirewallCheck<'_>,
    paths: &NodePaths<'_>,
) -> Vec<Finding> {
    let support = IsolationSupport::check(machine, overlay_test, paths.node);
    let level = settings.level.unwrap_or_else(|| support.best());
    let mut findings = vec![chosen(settings, &support)];
    findings.extend(requirements(settings, &support));
    findings.push(directory("node directory", paths.node));
    findings.push(directory("image store", paths.images));
    findings.extend(disk(machine));
    findings.extend(service(machine));
    if level == Isolation::Oci {
        findings.push(seccomp(machine));
        findings.push(network(settings, machine));
        if settings.network != NetworkMode::Host
            && let Some(obstacle) = firewall()
        {
            findings.push(other_firewall(&obstacle));
        }
        findings.extend(privileges(machine));
    }
    findings
}

/// The isolation level.
fn chosen(settings: &Settings, support: &IsolationSupport) -> Finding {
    let what = "isolation";
    let best = support.best();
    match (settings.level, best) {
        (Some(Isolation::Oci), Isolation::Process) => Finding::error(
            what,
            "`level` is oci, but this host only allows process",
            "see the errors below, or set `level: auto`",
        ),
        (Some(Isolation::Process), Isolation::Oci) => Finding::warning(
            what,
            "level process, as configured: plain processes with the host's files and network; this host allows oci",
            "set `level: auto` for containers",
        ),
        (None | Some(Isolation::Oci), Isolation::Oci) => {
            Finding::ok(what, "level oci: containers with their own files, processes, network and limits")
        }
        (None | Some(Isolation::Process), Isolation::Process) => Finding::warning(
            what,
            "level process: plain processes with the host's files and network, without isolation",
            "see the warnings below for what level oci needs",
        ),
    }
}

fn requirements(settings: &Settings, support: &IsolationSupport) -> Vec<Finding> {
    let finding = |requirement: &crate::isolation::Requirement| match &requirement.remedy {
        None => Finding::ok(requirement.what, &requirement.found),
        Some(remedy) if settings.level == Some(Isolation::Oci) => {
            Finding::error(requirement.what, &requirement.found, remedy)
        }
        Some(remedy) => {
            Finding::warning(requirement.what, format!("{}: no level oci", requirement.found), remedy)
        }
    };
    support.requirements.iter().map(finding).collect()
}

/// Whether a directory is writable, or can be created.
fn directory(what: &str, path: &Path) -> Finding {
    let Some(there) = path.ancestors().find(|path| path.exists()) else {
        return Finding::error(what, format!("{} is not an absolute path", path.display()), "set `stateDir`");
    };
    let remedy =
        "set `stateDir` (or the provider's `root` and `imageDir`) to a directory that this user can write to";
    if !there.is_dir() {
        return Finding::error(what, format!("{} is not a directory", there.display()), remedy);
    }
    match access(there, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) if there == path => Finding::ok(what, path.display().to_string()),
        Ok(()) => Finding::ok(what, format!("{}, to be created", path.display())),
        Err(error) => Finding::error(what, format!("{}: {error}", there.display()), remedy),
    }
}

/// Whether the node would report disk pressure.
fn disk(machine: &Host) -> Option<Finding> {
    let what = "disk";
    if !machine.has_disk_pressure()? {
        return Some(Finding::ok(what, "enough space is free"));
    }
    Some(Finding::warning(
        what,
        "too little space is free: the node reports DiskPressure, and no pods are scheduled to it",
        "free some space, or set `minFreeDisk` to what must be free, such as 1Gi (default: a tenth of the disk)",
    ))
}

/// Whether systemd would kill the pods together with this process.
fn service(machine: &Host) -> Option<Finding> {
    let unit = unit(&machine.read("proc/self/cgroup").ok()?)?;
    Some(Finding::warning(
        "systemd",
        format!(
            "this process is in the cgroup of {unit}: by default systemd kills everything in it when the unit stops; at level process that includes all pods"
        ),
        "set `KillMode=process` and `Delegate=yes` in the unit's [Service] section, so that pods survive a restart",
    ))
}

/// The systemd service that a process belongs to, from its `/proc/PID/cgroup`.
fn unit(cgroups: &str) -> Option<String> {
    let path = cgroups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        (controllers.is_empty() || controllers == "name=systemd").then(|| fields.next()).flatten()
    })?;
    // The innermost unit counts: programs started in a login session are in a scope below the user's service.
    let units = path.rsplit('/').find(|part| {
        [".service", ".scope", ".slice"]
            .iter()
            .any(|suffix| part.len() > suffix.len() && part.ends_with(suffix))
    })?;
    units.ends_with(".service").then(|| units.to_owned())
}

/// A firewall that drops pod traffic.
fn other_firewall(obstacle: &str) -> Finding {
    let (found, remedy) = obstacle.split_once(": ").unwrap_or((obstacle, "let it accept the pods' bridge"));
    Finding::warning("firewall", found, remedy)
}

fn seccomp(machine: &Host) -> Finding {
    let what = "seccomp";
    let status = machine.read("proc/self/status").unwrap_or_default();
    if status.lines().any(|line| line.starts_with("Seccomp:")) {
        return Finding::ok(what, "the kernel supports system call filters");
    }
    Finding::warning(
        what,
        "the kernel does not support system call filters: pods with a seccomp profile do not start",
        "boot a kernel with CONFIG_SECCOMP_FILTER",
    )
}

fn network(settings: &Settings, machine: &Host) -> Finding {
    let what = "pod network";
    if settings.network == NetworkMode::Host {
        return Finding::warning(
            what,
            "pods use the host's network, as configured: two pods cannot use the same port",
            "set `network: auto`",
        );
    }
    let capable = machine.has_capability(CAP_NET_ADMIN) == Some(true);
    let writable = access(machine.path("proc/sys/net"), Access::READ_OK).is_ok();
    if capable && writable {
        return Finding::ok(what, "a bridge can be created, with an address for each pod");
    }
    let found = "this process lacks CAP_NET_ADMIN: no bridge can be created";
    let remedy = "give it CAP_NET_ADMIN";
    if settings.network == NetworkMode::Bridge {
        return Finding::error(what, found, remedy);
    }
    Finding::warning(what, format!("{found}, pods use the host's network"), remedy)
}

/// Consequences of a missing CAP_SYS_RESOURCE.
fn privileges(machine: &Host) -> Vec<Finding> {
    if machine.has_capability(CAP_SYS_RESOURCE) == Some(true) {
        return vec![
            Finding::ok("OOM scores", "this process can lower them"),
            Finding::ok("resource limits", "this process can raise them"),
        ];
    }
    let remedy = "give this process CAP_SYS_RESOURCE";
    vec![
        Finding::warning(
            "OOM scores",
            format!(
                "this process lacks CAP_SYS_RESOURCE: scores cannot go below {}, so the kernel may kill Guaranteed pods first",
                machine.oom_score_floor()
            ),
            remedy,
        ),
        Finding::warning(
            "resource limits",
            "this process lacks CAP_SYS_RESOURCE: images that raise their limits (ulimit) fail",
            remedy,
        ),
    ]
}

#[cfg(test)]
mod tests;
