//! Security settings of sandboxes and containers.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, PodSpec, SELinuxOptions, SeccompProfile,
    SecurityContext,
};
use vk_provider::{Error, Result};

use super::{ContainerBuilder, spec};
use crate::{
    Settings,
    backend::{
        Capabilities, ContainerSecurity, Namespaces, SandboxSecurity, SeLinux, Seccomp,
        SupplementalGroupsPolicy,
    },
    containers::{PodContainer, pod_containers},
    image,
    text::full_name,
};

/// Paths of `/proc` and `/sys` that are masked, unless `procMount` is `Unmasked`.
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

/// Paths of `/proc` that are read-only.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The annotation that preceded the field `appArmorProfile`.
const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

pub(super) fn of_sandbox(pod: &Pod, spec: &PodSpec, namespaces: Namespaces) -> Result<SandboxSecurity> {
    let none = PodSecurityContext::default();
    let context = spec.security_context.as_ref().unwrap_or(&none);
    let privileged = |container: PodContainer<'_>| {
        container.spec.security_context.as_ref().and_then(|context| context.privileged) == Some(true)
    };
    Ok(SandboxSecurity {
        namespaces,
        privileged: pod_containers(pod).any(privileged),
        user: context.run_as_user,
        group: context.run_as_group,
        supplemental_groups: groups(context),
        supplemental_groups_policy: groups_policy(context).map_err(Error::invalid)?,
        read_only_root: false,
        selinux: context.se_linux_options.as_ref().map(selinux),
        // The sandbox's own process needs no more than the default.
        seccomp: Seccomp::RuntimeDefault,
    })
}

pub(super) fn of_container(
    builder: &ContainerBuilder<'_>,
    namespaces: Namespaces,
) -> Result<ContainerSecurity, String> {
    let ContainerBuilder { pod, container, settings, features, .. } = *builder;
    let container = &*container.spec;
    let spec = spec(pod).map_err(|error| error.message().to_owned())?;
    let (no_pod, none) = (PodSecurityContext::default(), SecurityContext::default());
    let shared = spec.security_context.as_ref().unwrap_or(&no_pod);
    let own = container.security_context.as_ref().unwrap_or(&none);
    let user = own.run_as_user.or(shared.run_as_user);
    let (image_uid, image_name) = image_user(builder.image);
    if own.run_as_non_root.or(shared.run_as_non_root) == Some(true) {
        let place = format!("(pod: {:?}, container: {})", full_name(pod), container.name);
        check_not_root(user, image_uid, &image_name, &place)?;
    }
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    let (mut masked_paths, read_only_paths) =
        if unmasked { (Vec::new(), Vec::new()) } else { (paths(&MASKED), paths(&READ_ONLY)) };
    if !unmasked {
        masked_paths.extend(features.masked_paths.iter().cloned());
    }
    let capabilities = own.capabilities.as_ref();
    Ok(ContainerSecurity {
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

/// The user of the image, by id or by name; root if it has none.
fn image_user(ready: &image::ResolvedImage) -> (Option<i64>, String) {
    match ready.image.uid {
        Some(uid) => (Some(uid), String::new()),
        None if ready.image.username.is_empty() => (Some(0), String::new()),
        None => (None, ready.image.username.clone()),
    }
}

/// Checks that the user is not root. A user name cannot be verified.
fn check_not_root(user: Option<i64>, uid: Option<i64>, name: &str, place: &str) -> Result<(), String> {
    const MAX_UID: i64 = i32::MAX as i64;
    match (user, uid) {
        (Some(0), _) => Err(format!("container's runAsUser breaks non-root policy {place}")),
        (None, None) => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root {place}"
        )),
        (None, Some(0)) => Err(format!("container has runAsNonRoot and image will run as root {place}")),
        (None, Some(uid)) if !(0..=MAX_UID).contains(&uid) => Err(format!(
            "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be 1-({MAX_UID})): \
             must be between 0 and {MAX_UID}, inclusive {place}"
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
            // The API server rejects it too. It would leave the directory of profiles.
            if name.split('/').any(|part| part == "..") {
                return Err(format!("localhostProfile {name:?} must not contain '..'"));
            }
            Ok(Seccomp::Localhost(settings.seccomp_root.join(name).to_string_lossy().into_owned()))
        }
        _ => Ok(Seccomp::Unconfined),
    }
}

/// The AppArmor profile: the container's field, then the annotation for the container, then the pod's field.
pub(super) fn apparmor(pod: &Pod, container: &Container) -> Result<Option<String>, String> {
    let annotated = || {
        let annotations = pod.metadata.annotations.as_ref()?;
        let value = annotations.get(&format!("{APPARMOR}{}", container.name))?;
        let known =
            ["runtime/default", "unconfined"].contains(&value.as_str()) || value.starts_with("localhost/");
        known.then(|| value.clone())
    };
    let own = container.security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref());
    if let Some(profile) = own {
        return runtime_notation(profile).map(Some);
    }
    if let Some(profile) = annotated() {
        return Ok(Some(profile));
    }
    let shared = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    shared.and_then(|context| context.app_armor_profile.as_ref()).map(runtime_notation).transpose()
}

fn runtime_notation(profile: &AppArmorProfile) -> Result<String, String> {
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
