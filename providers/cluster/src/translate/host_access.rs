//! Host access of pods: host namespaces, host paths and privileged containers.

use k8s_openapi::api::core::v1::{PodSpec, SecurityContext, WindowsSecurityContextOptions};

use super::Rejection;

/// Rejects a pod that uses any of these fields.
pub(super) fn check(taken: &[String]) -> Result<(), Rejection> {
    if taken.is_empty() {
        return Ok(());
    }
    Err(Rejection(format!(
        "{}: access to lower hosts is not allowed (`hostAccess: false` in the configuration of the provider)",
        taken.join(", ")
    )))
}

/// The fields through which a pod uses its host.
pub(super) fn fields_used(spec: &PodSpec) -> Vec<String> {
    let namespaces =
        [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)];
    let mut taken: Vec<String> = Vec::new();
    taken.extend(
        namespaces.iter().filter(|(_, set)| *set == Some(true)).map(|(name, _)| format!("spec.{name}")),
    );
    let windows = spec.security_context.as_ref().and_then(|context| context.windows_options.as_ref());
    if is_host_process(windows) {
        taken.push("spec.securityContext.windowsOptions.hostProcess".to_owned());
    }
    for volume in spec.volumes.iter().flatten() {
        if let Some(source) = &volume.host_path {
            taken.push(format!("volume {} (hostPath {})", volume.name, source.path));
        }
    }
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        taken.extend(container_field_used(&container.name, container.security_context.as_ref()));
    }
    taken
}

/// The field through which a container uses its host.
pub(super) fn container_field_used(name: &str, context: Option<&SecurityContext>) -> Option<String> {
    let context = context?;
    if context.privileged == Some(true) {
        Some(format!("container {name} (privileged)"))
    } else if is_host_process(context.windows_options.as_ref()) {
        Some(format!("container {name} (hostProcess)"))
    } else {
        None
    }
}

fn is_host_process(options: Option<&WindowsSecurityContextOptions>) -> bool {
    options.is_some_and(|options| options.host_process == Some(true))
}
