//! What a kubelet refuses before it does anything: kernel settings that would not stay in the pod, and rights that this machine
//! cannot enforce.

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::{Machine, security};
use crate::{parts, status::Trouble};

/// Kernel settings that are a pod's own and do no harm to others, and whose they are: of its network or of its shared memory.
const SAFE: [(&str, Owner); 12] = [
    ("kernel.shm_rmid_forced", Owner::Ipc),
    ("net.ipv4.ip_local_port_range", Owner::Net),
    ("net.ipv4.tcp_syncookies", Owner::Net),
    ("net.ipv4.ping_group_range", Owner::Net),
    ("net.ipv4.ip_unprivileged_port_start", Owner::Net),
    ("net.ipv4.ip_local_reserved_ports", Owner::Net),
    ("net.ipv4.tcp_keepalive_time", Owner::Net),
    ("net.ipv4.tcp_fin_timeout", Owner::Net),
    ("net.ipv4.tcp_keepalive_intvl", Owner::Net),
    ("net.ipv4.tcp_keepalive_probes", Owner::Net),
    ("net.ipv4.tcp_rmem", Owner::Net),
    ("net.ipv4.tcp_wmem", Owner::Net),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Ipc,
    Net,
}

/// Whether the pod can run here at all. Otherwise it fails for good: a kubelet tells the trouble's reason and message as a Warning,
/// and sets the phase to `Failed` with this reason and the message `Pod was rejected: ` and this one.
pub fn admit(pod: &Pod, machine: &Machine) -> Result<(), Trouble> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let refuse = |reason: &str, message: String| Err(Trouble { reason: reason.to_owned(), message });
    let sysctls = spec.security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
    for sysctl in sysctls {
        if let Err(why) = check_sysctl(&dotted(&sysctl.name), spec) {
            return refuse("SysctlForbidden", format!("forbidden sysctl: {why}"));
        }
    }
    // A pod that runs already was admitted by whoever started it.
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase.is_none_or(|phase| phase == "Pending")
        && let Err(why) = check_apparmor(pod, machine)
    {
        return refuse("AppArmor", format!("Cannot enforce AppArmor: {why}"));
    }
    Ok(())
}

fn check_sysctl(name: &str, spec: &PodSpec) -> Result<(), String> {
    let Some((_, owner)) = SAFE.iter().find(|(safe, _)| *safe == name) else {
        return Err(format!("{name:?} not allowlisted"));
    };
    match owner {
        Owner::Ipc if spec.host_ipc == Some(true) => {
            Err(format!("{name:?} not allowed with host IPC enabled"))
        }
        Owner::Net if spec.host_network == Some(true) => {
            Err(format!("{name:?} not allowed with host Net enabled"))
        }
        Owner::Ipc | Owner::Net => Ok(()),
    }
}

fn check_apparmor(pod: &Pod, machine: &Machine) -> Result<(), String> {
    let profiles: Result<Vec<_>, String> =
        parts::parts(pod).map(|part| security::apparmor(pod, &part.container)).collect();
    let profiles: Vec<String> = profiles?.into_iter().flatten().collect();
    // What the pod says counts also where every container says something else.
    let shared =
        pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref()?.app_armor_profile.as_ref());
    let required = shared.is_some_and(|profile| profile.type_ != "Unconfined")
        || profiles.iter().any(|profile| profile != "unconfined");
    if required && !machine.apparmor {
        return Err("AppArmor is not enabled on the host".to_owned());
    }
    if profiles
        .iter()
        .any(|profile| profile.strip_prefix("localhost/").is_some_and(|name| name.trim().is_empty()))
    {
        return Err("invalid empty AppArmor profile name".to_owned());
    }
    Ok(())
}

/// A kernel setting with dots. With slashes, which are allowed too, the two change places: the name of an interface may have a dot.
pub(super) fn dotted(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(first) if name.as_bytes()[first] == b'/' => {
            let swap = |c| match c {
                '.' => '/',
                '/' => '.',
                other => other,
            };
            name.chars().map(swap).collect()
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests;
