//! Containers.

use k8s_openapi::api::core::v1::{Capabilities, Container, PodSpec, SecurityContext};
use vk_container_group::{backend::ResolvedPod, plan::Diagnostics};
use vk_provider::resolve::ContainerInputs;

use super::{environment, handler, path, size, volume};
use crate::api::{Parameters, flatten};

/// Writes a container. The list is `Container` or `InitContainer`: the latter has fewer parameters.
pub(super) fn write(
    pod: &ResolvedPod,
    spec: &PodSpec,
    container: &Container,
    list: &str,
    at: usize,
    out: &mut Parameters,
    diagnostics: &mut Diagnostics,
) {
    let prefix = &flatten(list, at, "");
    let path = &path(list, container);
    let is_init = list == "InitContainer";
    let nothing = ContainerInputs::default();
    let inputs = pod.containers.get(&container.name).unwrap_or(&nothing);
    out.set(format!("{prefix}.Name"), &container.name);
    match container.image.as_deref().filter(|image| !image.is_empty()) {
        Some(image) => out.set(format!("{prefix}.Image"), image),
        None => diagnostics.refuse(format!("{path}.image"), "a container needs an image"),
    }
    out.set_some(format!("{prefix}.ImagePullPolicy"), container.image_pull_policy.as_ref());
    out.set_some(format!("{prefix}.WorkingDir"), container.working_dir.as_ref());
    let messages = (&container.termination_message_path, &container.termination_message_policy);
    out.set_some(format!("{prefix}.TerminationMessagePath"), messages.0.as_ref());
    out.set_some(format!("{prefix}.TerminationMessagePolicy"), messages.1.as_ref());
    environment::write_command(inputs, path, prefix, out, diagnostics);
    environment::write(inputs, path, prefix, out, diagnostics);
    size::write_container(container, prefix, out);
    ports(container, path, prefix, out, diagnostics);
    volume::write_mounts(container, inputs, path, prefix, out, diagnostics);
    security(spec, container, path, prefix, is_init, out, diagnostics);
    terminal(container, path, prefix, is_init, out, diagnostics);
    if !is_init {
        handler::write_probes(container, path, prefix, out, diagnostics);
        handler::write_hooks(container, path, prefix, out, diagnostics);
    }
}

/// Writes what can be changed in a running group.
pub(super) fn write_update(container: &Container, list: &str, at: usize, out: &mut Parameters) {
    let prefix = flatten(list, at, "");
    out.set(format!("{prefix}.Name"), &container.name);
    out.set_some(format!("{prefix}.Image"), container.image.as_ref());
    size::write_container(container, &prefix, out);
}

fn ports(
    container: &Container,
    path: &str,
    prefix: &str,
    out: &mut Parameters,
    diagnostics: &mut Diagnostics,
) {
    for (at, port) in container.ports.iter().flatten().enumerate() {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        if !matches!(protocol, "TCP" | "UDP") {
            let field = format!("{path}.ports[{}].protocol", port.container_port);
            diagnostics.refuse(field, format!("ECI has no {protocol}: use TCP or UDP"));
        }
        out.set(flatten(&format!("{prefix}.Port"), at, "Port"), port.container_port);
        out.set(flatten(&format!("{prefix}.Port"), at, "Protocol"), protocol);
    }
}

fn security(
    spec: &PodSpec,
    container: &Container,
    path: &str,
    prefix: &str,
    is_init: bool,
    out: &mut Parameters,
    diagnostics: &mut Diagnostics,
) {
    let nothing = SecurityContext::default();
    let own = container.security_context.as_ref().unwrap_or(&nothing);
    let of_pod = spec.security_context.as_ref();
    let user = own.run_as_user.or_else(|| of_pod?.run_as_user);
    let group = own.run_as_group.or_else(|| of_pod?.run_as_group);
    let non_root = own.run_as_non_root.or_else(|| of_pod?.run_as_non_root).filter(|non_root| *non_root);
    out.set_some(format!("{prefix}.SecurityContext.RunAsUser"), user);
    if own.read_only_root_filesystem == Some(true) {
        out.set(format!("{prefix}.SecurityContext.ReadOnlyRootFilesystem"), true);
    }
    let Capabilities { add, .. } = own.capabilities.clone().unwrap_or_default();
    out.set_list(&format!("{prefix}.SecurityContext.Capability.Add"), add.unwrap_or_default());
    if !is_init {
        out.set_some(format!("{prefix}.SecurityContextRunAsGroup"), group);
        out.set_some(format!("{prefix}.SecurityContextRunAsNonRoot"), non_root);
        if own.privileged == Some(true) {
            out.set(format!("{prefix}.SecurityContextPrivileged"), true);
        }
        return;
    }
    // Init containers have only some of the parameters.
    let field = |name: &str| format!("{path}.securityContext.{name}");
    if own.privileged == Some(true) {
        diagnostics.refuse(field("privileged"), "ECI has no privileged init containers: use capabilities");
    }
    if group.is_some_and(|group| group != 0) {
        diagnostics.warn(field("runAsGroup"), "ignored: ECI has it only for regular containers");
    }
    if non_root.is_some() && user.is_none_or(|user| user == 0) {
        diagnostics.refuse(field("runAsNonRoot"), "ECI checks it only for regular containers: set runAsUser");
    }
}

fn terminal(
    container: &Container,
    path: &str,
    prefix: &str,
    is_init: bool,
    out: &mut Parameters,
    diagnostics: &mut Diagnostics,
) {
    let flags = [
        (container.stdin, "Stdin", "stdin"),
        (container.stdin_once, "StdinOnce", "stdinOnce"),
        (container.tty, "Tty", "tty"),
    ];
    for (_, parameter, field) in flags.into_iter().filter(|(flag, ..)| *flag == Some(true)) {
        if is_init {
            diagnostics.warn(format!("{path}.{field}"), "ignored: ECI has it only for regular containers");
        } else {
            out.set(format!("{prefix}.{parameter}"), true);
        }
    }
}
