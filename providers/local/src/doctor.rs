//! Whether pods could run here: what `virtual-kubelet doctor` asks of this provider.

use std::path::Path;

use rustix::fs::{Access, access};
use vk_pod_engine::host::{CAP_SYS_RESOURCE, Host};
use vk_provider::Finding;

use crate::{
    config::{NetworkMode, Settings},
    level::{Allowed, CAP_NET_ADMIN, Level, Trial},
};

/// Where the node's things are, or will be.
#[derive(Clone, Debug)]
pub struct Places<'a> {
    /// The node's directory.
    pub node: &'a Path,
    /// Where images are.
    pub images: &'a Path,
}

/// Finds what another firewall does to pods' packets, with the remedy.
pub type Firewall<'a> = dyn Fn() -> Option<String> + 'a;

/// Looks at everything: first which level it is and why, then what else pods may miss.
pub fn examine(
    settings: &Settings,
    machine: &Host,
    trial: &Trial<'_>,
    firewall: &Firewall<'_>,
    places: &Places<'_>,
) -> Vec<Finding> {
    let allowed = Allowed::on(machine, trial, places.node);
    let level = settings.level.unwrap_or_else(|| allowed.level());
    let mut findings = vec![chosen(settings, &allowed)];
    findings.extend(needs(settings, &allowed));
    findings.push(directory("node directory", places.node));
    findings.push(directory("image store", places.images));
    findings.extend(disk(machine));
    findings.extend(service(machine));
    if level == Level::Oci {
        findings.push(seccomp(machine));
        findings.push(network(settings, machine));
        if settings.network != NetworkMode::Host
            && let Some(obstacle) = firewall()
        {
            findings.push(other_firewall(&obstacle));
        }
        findings.extend(rights(machine));
    }
    findings
}

/// The level itself.
fn chosen(settings: &Settings, allowed: &Allowed) -> Finding {
    let what = "isolation";
    let best = allowed.level();
    match (settings.level, best) {
        (Some(Level::Oci), Level::Process) => Finding::error(
            what,
            "`level` is oci, and this machine allows only process",
            "see the errors below, or set `level: auto`",
        ),
        (Some(Level::Process), Level::Oci) => Finding::warning(
            what,
            "level process as configured: plain processes, with the machine's files and network; the machine allows oci",
            "set `level: auto` for containers",
        ),
        (None | Some(Level::Oci), Level::Oci) => {
            Finding::ok(what, "level oci: containers with files, processes, network and limits of their own")
        }
        (None | Some(Level::Process), Level::Process) => Finding::warning(
            what,
            "level process: plain processes, with the machine's files and network, nothing keeps them apart",
            "see the warnings below for what level oci needs",
        ),
    }
}

fn needs(settings: &Settings, allowed: &Allowed) -> Vec<Finding> {
    let finding = |need: &crate::level::Need| match &need.remedy {
        None => Finding::ok(need.what, &need.found),
        Some(remedy) if settings.level == Some(Level::Oci) => Finding::error(need.what, &need.found, remedy),
        Some(remedy) => Finding::warning(need.what, format!("{}: no level oci", need.found), remedy),
    };
    allowed.needs.iter().map(finding).collect()
}

/// Whether something can be written there, or could be made.
fn directory(what: &str, path: &Path) -> Finding {
    let Some(there) = path.ancestors().find(|path| path.exists()) else {
        return Finding::error(what, format!("{} is no absolute path", path.display()), "set `stateDir`");
    };
    let remedy =
        "set `stateDir` (or the provider's `root` and `imageDir`) to a directory that this user may write to";
    if !there.is_dir() {
        return Finding::error(what, format!("{} is no directory", there.display()), remedy);
    }
    match access(there, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) if there == path => Finding::ok(what, path.display().to_string()),
        Ok(()) => Finding::ok(what, format!("{}, which will be made", path.display())),
        Err(error) => Finding::error(what, format!("{}: {error}", there.display()), remedy),
    }
}

/// Whether the scheduler would keep pods off the node.
fn disk(machine: &Host) -> Option<Finding> {
    let what = "disk";
    if !machine.has_disk_pressure()? {
        return Some(Finding::ok(what, "enough is free"));
    }
    Some(Finding::warning(
        what,
        "too little is free: the node has DiskPressure, and pods are not scheduled to it",
        "free some, or say with `minFreeDisk` how much has to be free, such as 1Gi in place of a tenth of the disk",
    ))
}

/// Whether systemd would end the pods with this process.
fn service(machine: &Host) -> Option<Finding> {
    let unit = unit(&machine.read("proc/self/cgroup").ok()?)?;
    Some(Finding::warning(
        "systemd",
        format!(
            "this process is in the cgroup of {unit}: unless the unit says otherwise, systemd ends with it what it started and could not move elsewhere, at level process all pods"
        ),
        "set `KillMode=process` and `Delegate=yes` in the unit's [Service] section, so that pods outlive a restart",
    ))
}

/// The service of systemd that a process is in, by its `/proc/PID/cgroup`.
fn unit(cgroups: &str) -> Option<String> {
    let path = cgroups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        (controllers.is_empty() || controllers == "name=systemd").then(|| fields.next()).flatten()
    })?;
    // The innermost unit counts: what a user starts in a session is in a scope below the service of the user.
    let units = path.rsplit('/').find(|part| {
        [".service", ".scope", ".slice"]
            .iter()
            .any(|suffix| part.len() > suffix.len() && part.ends_with(suffix))
    })?;
    units.ends_with(".service").then(|| units.to_owned())
}

/// A firewall that does not know the pods.
fn other_firewall(obstacle: &str) -> Finding {
    let (found, remedy) = obstacle.split_once(": ").unwrap_or((obstacle, "let it accept the pods' bridge"));
    Finding::warning("firewall", found, remedy)
}

fn seccomp(machine: &Host) -> Finding {
    let what = "seccomp";
    let status = machine.read("proc/self/status").unwrap_or_default();
    if status.lines().any(|line| line.starts_with("Seccomp:")) {
        return Finding::ok(what, "the kernel filters system calls");
    }
    Finding::warning(
        what,
        "the kernel filters no system calls: pods that ask for a seccomp profile do not start",
        "boot a kernel with CONFIG_SECCOMP_FILTER",
    )
}

fn network(settings: &Settings, machine: &Host) -> Finding {
    let what = "pod network";
    if settings.network == NetworkMode::Host {
        return Finding::warning(
            what,
            "the machine's own for every pod, as configured: two pods cannot have one port",
            "set `network: auto`",
        );
    }
    let capable = machine.has_capability(CAP_NET_ADMIN) == Some(true);
    let writable = access(machine.path("proc/sys/net"), Access::READ_OK).is_ok();
    if capable && writable {
        return Finding::ok(what, "a bridge can be made, with an address for each pod");
    }
    let found = "this process lacks CAP_NET_ADMIN: no bridge can be made";
    let remedy = "give it CAP_NET_ADMIN";
    if settings.network == NetworkMode::Bridge {
        return Finding::error(what, found, remedy);
    }
    Finding::warning(what, format!("{found}, pods get the machine's network"), remedy)
}

/// What a confined process may not do to containers.
fn rights(machine: &Host) -> Vec<Finding> {
    if machine.has_capability(CAP_SYS_RESOURCE) == Some(true) {
        return vec![
            Finding::ok("OOM scores", "this process may lower them"),
            Finding::ok("resource limits", "this process may raise them"),
        ];
    }
    let remedy = "give this process CAP_SYS_RESOURCE";
    vec![
        Finding::warning(
            "OOM scores",
            format!(
                "this process lacks CAP_SYS_RESOURCE: none goes below {}, and the kernel may prefer a pod that is Guaranteed",
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
