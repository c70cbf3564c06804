//! Mounts of a container.

use k8s_openapi::api::core::v1::VolumeMount;

use super::ContainerBuilder;
use crate::backend::{Mount, Propagation, RuntimeHandler};

const HOSTS: &str = "/etc/hosts";

/// Mounts in a kubelet's builder: volumes, `/etc/hosts`, the termination message.
pub(super) fn of_container(
    builder: &ContainerBuilder<'_>,
    handler: Option<&RuntimeHandler>,
) -> Result<Vec<Mount>, String> {
    let container = &*builder.container.spec;
    let mut mounts = Vec::new();
    for wanted in container.volume_mounts.iter().flatten() {
        let path = absolute(&wanted.mount_path);
        let found = builder.mounts.iter().find(|mount| absolute(&mount.container_path) == path);
        let found = found.ok_or_else(|| {
            format!("cannot find volume {:?} to mount into container {:?}", wanted.name, container.name)
        })?;
        mounts.push(Mount {
            container_path: path,
            read_only: found.read_only || wanted.read_only == Some(true),
            recursive_read_only: recursive(wanted, handler)
                .map_err(|why| format!("failed to resolve recursive read-only mode: {why}"))?,
            propagation: propagation(wanted)?,
            selinux_relabel: false,
            ..found.clone()
        });
    }
    if let Some(device) = container.volume_devices.iter().flatten().next() {
        return Err(format!(
            "cannot find volume {:?} to pass into container {:?}",
            device.name, container.name
        ));
    }
    let own_hosts = container.volume_mounts.iter().flatten().any(|mount| mount.mount_path == HOSTS);
    if let Some(file) = builder.hosts_file.filter(|_| !own_hosts) {
        mounts.push(plain(file, HOSTS.to_owned()));
    }
    let message = container.termination_message_path.as_deref().filter(|path| !path.is_empty());
    if let (Some(file), Some(path)) = (builder.termination_file, message) {
        mounts.push(plain(file, absolute(path)));
    }
    Ok(mounts)
}

fn plain(file: &std::path::Path, container_path: String) -> Mount {
    Mount {
        container_path,
        host_path: file.to_string_lossy().into_owned(),
        image: None,
        image_sub_path: String::new(),
        read_only: false,
        recursive_read_only: false,
        selinux_relabel: false,
        propagation: Propagation::Private,
        uids: Vec::new(),
        gids: Vec::new(),
    }
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

fn propagation(mount: &VolumeMount) -> Result<Propagation, String> {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(Propagation::Private),
        Some("HostToContainer") => Ok(Propagation::HostToContainer),
        Some("Bidirectional") => Ok(Propagation::Bidirectional),
        Some(other) => Err(format!("invalid MountPropagation mode: {other:?}")),
    }
}

/// Whether mounts below this one are read-only too.
fn recursive(mount: &VolumeMount, handler: Option<&RuntimeHandler>) -> Result<bool, String> {
    let supported = handler.is_some_and(|handler| handler.recursive_read_only);
    let name = &mount.name;
    let mode = match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok(false),
        Some(mode) => mode,
    };
    if mount.read_only != Some(true) {
        return Err(format!("volume {name:?} requested recursive read-only mode, but it is not read-only"));
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|mode| *mode != "None") {
        return Err(format!(
            "volume {name:?} requested recursive read-only mode, but it is not compatible with propagation {propagation:?}"
        ));
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => Err(format!(
            "volume {name:?} requested recursive read-only mode, but it is not supported by the runtime"
        )),
        other => Err(format!("unknown recursive read-only mode {other:?}")),
    }
}

#[cfg(test)]
mod tests;
