//! The containers of a pod, whichever list of the spec they are in.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};

/// What a container is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Runs to its end before what comes after it.
    Init,
    /// An init container with `restartPolicy: Always`: started in its turn, and kept running beside the others.
    Sidecar,
    /// What the pod is for.
    Regular,
    /// Added by somebody who looks around; never restarted.
    Ephemeral,
}

/// One container of a pod.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// What it is for.
    pub role: Role,
    /// Its spec. An ephemeral container has the same fields, and is shown as one.
    pub container: Cow<'a, Container>,
    /// The container whose processes an ephemeral one shall see.
    pub target: Option<&'a str>,
}

/// All containers: init containers and sidecars in their order, then the regular ones, then the ephemeral ones.
pub fn parts(pod: &Pod) -> impl Iterator<Item = Part<'_>> {
    let spec = pod.spec.as_ref();
    let inits = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default().iter();
    let regular = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default().iter();
    let ephemeral = spec.and_then(|spec| spec.ephemeral_containers.as_deref()).unwrap_or_default().iter();
    let whole = |role, container| Part { role, container: Cow::Borrowed(container), target: None };
    inits
        .map(move |container| {
            whole(if is_sidecar(container) { Role::Sidecar } else { Role::Init }, container)
        })
        .chain(regular.map(move |container| whole(Role::Regular, container)))
        .chain(ephemeral.map(|container| Part {
            role: Role::Ephemeral,
            container: Cow::Owned(as_container(container)),
            target: container.target_container_name.as_deref().filter(|name| !name.is_empty()),
        }))
}

/// The container of this name.
pub fn part<'a>(pod: &'a Pod, name: &str) -> Option<Part<'a>> {
    parts(pod).find(|part| part.container.name == name)
}

pub use vk_provider::requests::is_sidecar;

fn as_container(ephemeral: &EphemeralContainer) -> Container {
    let ephemeral = ephemeral.clone();
    Container {
        name: ephemeral.name,
        image: ephemeral.image,
        command: ephemeral.command,
        args: ephemeral.args,
        working_dir: ephemeral.working_dir,
        ports: ephemeral.ports,
        env_from: ephemeral.env_from,
        env: ephemeral.env,
        resources: ephemeral.resources,
        resize_policy: ephemeral.resize_policy,
        restart_policy: ephemeral.restart_policy,
        restart_policy_rules: ephemeral.restart_policy_rules,
        volume_mounts: ephemeral.volume_mounts,
        volume_devices: ephemeral.volume_devices,
        liveness_probe: ephemeral.liveness_probe,
        readiness_probe: ephemeral.readiness_probe,
        startup_probe: ephemeral.startup_probe,
        lifecycle: ephemeral.lifecycle,
        termination_message_path: ephemeral.termination_message_path,
        termination_message_policy: ephemeral.termination_message_policy,
        image_pull_policy: ephemeral.image_pull_policy,
        security_context: ephemeral.security_context,
        stdin: ephemeral.stdin,
        stdin_once: ephemeral.stdin_once,
        tty: ephemeral.tty,
    }
}
