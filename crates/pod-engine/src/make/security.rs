//! Who runs in sandboxes and containers, and with which rights.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, PodSpec, SELinuxOptions, SeccompProfile,
    SecurityContext,
};
use vk_provider::{Error, Result};

use super::{ContainerOrder, full_name, spec};
use crate::{
    Settings,
    backend::{Capabilities, Namespaces, Sandboxed, SeLinux, Seccomp, Security, SupplementalGroupsPolicy},
    image, parts,
};

/// What containers do not see of `/proc` and `/sys`, unless they are given all of it.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// What containers cannot write of `/proc`.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The annotation that came before the field.
const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

pub(super) fn of_sandbox(pod: &Pod, spec: &PodSpec, namespaces: Namespaces) -> Result<Sandboxed> {
    let none = PodSecurityContext::default();
    let context = spec.security_context.as_ref().unwrap_or(&none);
    let privileged = |part: parts::Part<'_>| {
        part.container.security_context.as_ref().and_then(|context| context.privileged) == Some(true)
    };
    Ok(Sandboxed {
        namespaces,
        privileged: parts::parts(pod).any(privileged),
        user: context.run_as_user,
        group: context.run_as_group,
        supplemental_groups: groups(context),
        supplemental_groups_policy: groups_policy(context).map_err(Error::invalid)?,
        read_only_root: false,
        selinux: context.se_linux_options.as_ref().map(selinux),
        // The sandbox's own process needs no more, whatever the containers need.
        seccomp: Seccomp::RuntimeDefault,
    })
}

pub(super) fn of_container(order: &ContainerOrder<'_>, namespaces: Namespaces) -> Result<Security, String> {
    let ContainerOrder { pod, part, settings, machine, .. } = *order;
    let container = &*part.container;
    let spec = spec(pod).map_err(|error| error.message().to_owned())?;
    let (no_pod, none) = (PodSecurityContext::default(), SecurityContext::default());
    let shared = spec.security_context.as_ref().unwrap_or(&no_pod);
    let own = container.security_context.as_ref().unwrap_or(&none);
    let user = own.run_as_user.or(shared.run_as_user);
    let (image_uid, image_name) = image_user(order.image);
    if own.run_as_non_root.or(shared.run_as_non_root) == Some(true) {
        let place = format!("(pod: {:?}, container: {})", full_name(pod), container.name);
        check_not_root(user, image_uid, &image_name, &place)?;
    }
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    let (mut masked_paths, read_only_paths) =
        if unmasked { (Vec::new(), Vec::new()) } else { (paths(&MASKED), paths(&READ_ONLY)) };
    if !unmasked {
        masked_paths.extend(machine.masked_paths.iter().cloned());
    }
    let capabilities = own.capabilities.as_ref();
    Ok(Security {
        namespaces,
        privileged: own.privileged == Some(true),
        user: user.or(image_uid),
        username: user.is_none().then_some(image_name).filter(|name| !name.is_empty()),
        group: own.run_as_group.or(shared.run_as_group),
        supplemental_groups: groups(shared),
        supplemental_groups_policy: groups_policy(shared)?,
        read_only_root: own.read_only_root_filesystem == Some(true),
        no_new_privileges: own.allow_privilege_escalation == Some(false),
        capabilities: Capabilities {
            add: capabilities.and_then(|capabilities| capabilities.add.clone()).unwrap_or_default(),
            drop: capabilities.and_then(|capabilities| capabilities.drop.clone()).unwrap_or_default(),
        },
        selinux: own.se_linux_options.as_ref().or(shared.se_linux_options.as_ref()).map(selinux),
        seccomp: seccomp(own.seccomp_profile.as_ref().or(shared.seccomp_profile.as_ref()), settings)?,
        apparmor: apparmor(pod, container)?,
        masked_paths,
        read_only_paths,
    })
}

/// The user that the image names, by number or by name; root where it names none.
fn image_user(ready: &image::Ready) -> (Option<i64>, String) {
    match ready.image.uid {
        Some(uid) => (Some(uid), String::new()),
        None if ready.image.username.is_empty() => (Some(0), String::new()),
        None => (None, ready.image.username.clone()),
    }
}

/// Only a number can be known not to be root.
fn check_not_root(user: Option<i64>, uid: Option<i64>, name: &str, place: &str) -> Result<(), String> {
    const LARGEST: i64 = i32::MAX as i64;
    match (user, uid) {
        (Some(0), _) => Err(format!("container's runAsUser breaks non-root policy {place}")),
        (None, None) => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root {place}"
        )),
        (None, Some(0)) => Err(format!("container has runAsNonRoot and image will run as root {place}")),
        (None, Some(uid)) if !(0..=LARGEST).contains(&uid) => Err(format!(
            "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be 1-({LARGEST})): \
             must be between 0 and {LARGEST}, inclusive {place}"
        )),
        (Some(_), _) | (None, Some(_)) => Ok(()),
    }
}

fn groups(context: &PodSecurityContext) -> Vec<i64> {
    context.fs_group.into_iter().chain(context.supplemental_groups.iter().flatten().copied()).collect()
}

fn groups_policy(context: &PodSecurityContext) -> Result<SupplementalGroupsPolicy, String> {
    match context.supplemental_groups_policy.as_deref() {
        None | Some("Merge") => Ok(SupplementalGroupsPolicy::Merge),
        Some("Strict") => Ok(SupplementalGroupsPolicy::Strict),
        Some(other) => Err(format!("unsupported supplementalGroupsPolicy: {other}")),
    }
}

fn selinux(options: &SELinuxOptions) -> SeLinux {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    SeLinux {
        user: text(&options.user),
        role: text(&options.role),
        kind: text(&options.type_),
        level: text(&options.level),
    }
}

fn seccomp(profile: Option<&SeccompProfile>, settings: &Settings) -> Result<Seccomp, String> {
    let Some(profile) = profile else {
        return Ok(if settings.seccomp_default { Seccomp::RuntimeDefault } else { Seccomp::Unconfined });
    };
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok(Seccomp::RuntimeDefault),
        "Localhost" => {
            let name = profile.localhost_profile.as_deref().unwrap_or_default().trim_start_matches('/');
            if name.is_empty() {
                return Err("localhostProfile must be set if seccompProfile type is Localhost.".to_owned());
            }
            // An API server refuses it too; here it would lead out of the folder of profiles.
            if name.split('/').any(|part| part == "..") {
                return Err(format!("localhostProfile {name:?} must not contain '..'"));
            }
            Ok(Seccomp::Localhost(settings.seccomp_root.join(name).to_string_lossy().into_owned()))
        }
        _ => Ok(Seccomp::Unconfined),
    }
}

/// The container's field, then the annotation for the container, then the pod's field.
pub(super) fn apparmor(pod: &Pod, container: &Container) -> Result<Option<String>, String> {
    let noted = || {
        let notes = pod.metadata.annotations.as_ref()?;
        let value = notes.get(&format!("{APPARMOR}{}", container.name))?;
        let known =
            ["runtime/default", "unconfined"].contains(&value.as_str()) || value.starts_with("localhost/");
        known.then(|| value.clone())
    };
    let own = container.security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref());
    if let Some(profile) = own {
        return notation(profile).map(Some);
    }
    if let Some(noted) = noted() {
        return Ok(Some(noted));
    }
    let shared = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    shared.and_then(|context| context.app_armor_profile.as_ref()).map(notation).transpose()
}

fn notation(profile: &AppArmorProfile) -> Result<String, String> {
    match (profile.type_.as_str(), &profile.localhost_profile) {
        ("RuntimeDefault", _) => Ok("runtime/default".to_owned()),
        ("Unconfined", _) => Ok("unconfined".to_owned()),
        ("Localhost", Some(name)) => Ok(format!("localhost/{name}")),
        ("Localhost", None) => Err("missing localhost apparmor profile name".to_owned()),
        (other, _) => Err(format!("unknown apparmor profile type: {other:?}")),
    }
}

#[cfg(test)]
mod tests;
