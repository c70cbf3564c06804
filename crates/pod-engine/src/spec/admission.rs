//! Pod admission as in a kubelet: sysctls that would affect other pods, and AppArmor profiles that the host cannot enforce.

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::{HostFeatures, security};
use crate::{containers::pod_containers, status::FailureReason};

/// Sysctls that are namespaced and safe, and their namespace.
const SAFE: [(&str, SysctlNamespace); 12] = [
    ("kernel.shm_rmid_forced", SysctlNamespace::Ipc),
    ("net.ipv4.ip_local_port_range", SysctlNamespace::Net),
    ("net.ipv4.tcp_syncookies", SysctlNamespace::Net),
    ("net.ipv4.ping_group_range", SysctlNamespace::Net),
    ("net.ipv4.ip_unprivileged_port_start", SysctlNamespace::Net),
    ("net.ipv4.ip_local_reserved_ports", SysctlNamespace::Net),
    ("net.ipv4.tcp_keepalive_time", SysctlNamespace::Net),
    ("net.ipv4.tcp_fin_timeout", SysctlNamespace::Net),
    ("net.ipv4.tcp_keepalive_intvl", SysctlNamespace::Net),
    ("net.ipv4.tcp_keepalive_probes", SysctlNamespace::Net),
    ("net.ipv4.tcp_rmem", SysctlNamespace::Net),
    ("net.ipv4.tcp_wmem", SysctlNamespace::Net),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SysctlNamespace {
    Ipc,
    Net,
}

/// Whether the host can run the pod. If not, the pod fails: a kubelet records the reason and message as a Warning event, and sets the phase
/// to `Failed` with this reason and the message prefixed with `Pod was rejected: `.
pub fn admit(pod: &Pod, features: &HostFeatures) -> Result<(), FailureReason> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let reject = |reason: &str, message: String| Err(FailureReason { reason: reason.to_owned(), message });
    let sysctls = spec.security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
    for sysctl in sysctls {
        if let Err(why) = check_sysctl(&dotted(&sysctl.name), spec) {
            return reject("SysctlForbidden", format!("forbidden sysctl: {why}"));
        }
    }
    // A running pod was admitted before.
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase.is_none_or(|phase| phase == "Pending")
        && let Err(why) = check_apparmor(pod, features)
    {
        return reject("AppArmor", format!("Cannot enforce AppArmor: {why}"));
    }
    Ok(())
}

fn check_sysctl(name: &str, spec: &PodSpec) -> Result<(), String> {
    let Some((_, owner)) = SAFE.iter().find(|(safe, _)| *safe == name) else {
        return Err(format!("{name:?} not allowlisted"));
    };
    match owner {
        SysctlNamespace::Ipc if spec.host_ipc == Some(true) => {
            Err(format!("{name:?} not allowed with host IPC enabled"))
        }
        SysctlNamespace::Net if spec.host_network == Some(true) => {
            Err(format!("{name:?} not allowed with host Net enabled"))
        }
        SysctlNamespace::Ipc | SysctlNamespace::Net => Ok(()),
    }
}

fn check_apparmor(pod: &Pod, features: &HostFeatures) -> Result<(), String> {
    let profiles: Result<Vec<_>, String> =
        pod_containers(pod).map(|container| security::apparmor(pod, &container.spec)).collect();
    let profiles: Vec<String> = profiles?.into_iter().flatten().collect();
    // The profile of the pod counts even if every container has its own.
    let shared =
        pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref()?.app_armor_profile.as_ref());
    let required = shared.is_some_and(|profile| profile.type_ != "Unconfined")
        || profiles.iter().any(|profile| profile != "unconfined");
    if required && !features.apparmor {
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

/// The sysctl name in dotted notation. In slash notation dots and slashes are swapped: the name of an interface may contain a dot.
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
