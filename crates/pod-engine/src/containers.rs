//! The containers of a pod spec: init containers, sidecars, regular and ephemeral containers in one list.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};
use vk_provider::requests::is_sidecar;

/// The role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Runs to completion before the next container starts.
    Init,
    /// An init container with `restartPolicy: Always`: started in order, and kept running beside the others.
    Sidecar,
    /// A container of `spec.containers`.
    Regular,
    /// Added for debugging; never restarted.
    Ephemeral,
}

/// One container of a pod.
#[derive(Clone, Debug)]
pub struct PodContainer<'a> {
    /// Its role.
    pub role: Role,
    /// Its spec. An ephemeral container is converted: it has the same fields.
    pub spec: Cow<'a, Container>,
    /// The container whose process namespace an ephemeral container joins.
    pub target: Option<&'a str>,
}

/// All containers: init containers and sidecars in their order, then regular ones, then ephemeral ones.
pub fn pod_containers(pod: &Pod) -> impl Iterator<Item = PodContainer<'_>> {
    let spec = pod.spec.as_ref();
    let inits = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default().iter();
    let regular = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default().iter();
    let ephemeral = spec.and_then(|spec| spec.ephemeral_containers.as_deref()).unwrap_or_default().iter();
    let borrowed = |role, spec| PodContainer { role, spec: Cow::Borrowed(spec), target: None };
    inits
        .map(move |container| {
            borrowed(if is_sidecar(container) { Role::Sidecar } else { Role::Init }, container)
        })
        .chain(regular.map(move |container| borrowed(Role::Regular, container)))
        .chain(ephemeral.map(|container| PodContainer {
            role: Role::Ephemeral,
            spec: Cow::Owned(as_container(container)),
            target: container.target_container_name.as_deref().filter(|name| !name.is_empty()),
        }))
}

/// The container with this name.
pub fn find_container<'a>(pod: &'a Pod, name: &str) -> Option<PodContainer<'a>> {
    pod_containers(pod).find(|container| container.spec.name == name)
}

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

/// A hash of the parts of a container's spec whose change requires a restart: its name and its image.
///
/// It is the number that a kubelet computes, so a node can move between the two without restarting containers.
pub fn spec_hash(container: &Container) -> u64 {
    // JSON with sorted keys, as bytes in the notation that Go's spew has for a byte slice, into FNV-1a of 32 bits.
    let picked = serde_json::json!({ "image": container.image.as_deref().unwrap_or_default(), "name": container.name });
    let bytes: Vec<String> = picked.to_string().bytes().map(|byte| byte.to_string()).collect();
    let dumped = format!("([]uint8)[{}]", bytes.join(" "));
    u64::from(
        dumped.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)),
    )
}
