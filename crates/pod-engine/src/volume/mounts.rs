//! Mounts of a container.

use std::{collections::BTreeMap, path::PathBuf};

use k8s_openapi::api::core::v1::{Container, VolumeMount};

use super::{
    VolumeLocation,
    host_path::has_backsteps,
    pod_dirs::PodDirs,
    sub_path::{self, SubPathError},
};
use crate::{
    backend::{Mount, Propagation},
    status::FailureReason,
    text::quoted,
};

/// Options of mounts that depend on the runtime.
#[derive(Clone, Copy, Debug, Default)]
pub struct MountOptions<'a> {
    /// The resolved images of image volumes, by volume name.
    pub images: Option<&'a BTreeMap<String, String>>,
    /// Whether recursive read-only mounts are supported.
    pub recursive_read_only: bool,
}

/// A mount of a container, complete except for its sub path.
#[derive(Debug)]
pub(super) struct PendingMount {
    mount: Mount,
    /// The sub path in the volume, and where it is mounted on the host.
    sub_path: Option<(String, PathBuf)>,
    volume: String,
}

/// The mounts of a container.
pub(super) fn pending_mounts(
    dirs: &PodDirs,
    uid: &str,
    placed: &BTreeMap<String, VolumeLocation>,
    container: &Container,
    env: &[(String, String)],
    options: &MountOptions<'_>,
) -> Result<Vec<PendingMount>, String> {
    let mounts = container.volume_mounts.iter().flatten().enumerate();
    mounts
        .map(|(number, mount)| {
            let Some(found) = placed.get(&mount.name) else {
                return Err(format!(
                    "cannot find volume {:?} to mount into container {:?}",
                    mount.name, container.name
                ));
            };
            let sub_path = sub_path_of(mount, env)?;
            let mut made = Mount {
                container_path: absolute(&mount.mount_path),
                host_path: String::new(),
                image: None,
                image_sub_path: String::new(),
                read_only: mount.read_only.unwrap_or_default() || found.read_only,
                recursive_read_only: recursive_read_only(mount, options.recursive_read_only)?,
                selinux_relabel: found.managed && has_selinux(),
                propagation: propagation(mount)?,
                uids: Vec::new(),
                gids: Vec::new(),
            };
            let Some(path) = &found.path else {
                let image = options.images.and_then(|images| images.get(&mount.name));
                let Some(image) = image else {
                    return Err(format!(
                        "the image of volume {:?} was not pulled for container {:?}",
                        mount.name, container.name
                    ));
                };
                made.image = Some(image.clone());
                made.image_sub_path = sub_path.unwrap_or_default();
                return Ok(PendingMount { mount: made, sub_path: None, volume: mount.name.clone() });
            };
            let path = path.to_str().ok_or_else(|| format!("path {} is not text", quoted(path)))?;
            path.clone_into(&mut made.host_path);
            let sub_path =
                sub_path.map(|path| (path, dirs.sub_path(uid, &mount.name, &container.name, number)));
            Ok(PendingMount { mount: made, sub_path, volume: mount.name.clone() })
        })
        .collect()
}

/// Mounts the sub paths. Blocks.
pub(super) fn mount_sub_paths(
    mounts: Vec<PendingMount>,
    container: &str,
) -> Result<Vec<Mount>, FailureReason> {
    mounts
        .into_iter()
        .map(|PendingMount { mut mount, sub_path, volume }| {
            let Some((path, target)) = sub_path else { return Ok(mount) };
            let prepared = sub_path::prepare(mount.host_path.as_ref(), &path, &target).and_then(|path| {
                let error = || vk_provider::Error::internal(format!("path {} is not text", quoted(&path)));
                path.to_str().map(str::to_owned).ok_or_else(|| SubPathError::Prepare(error()))
            });
            mount.host_path = prepared.map_err(|error| {
                // The error could disclose details of the host, so only the log has it.
                let (doing, error) = match error {
                    SubPathError::Create(error) => ("create subPath directory", error),
                    SubPathError::Prepare(error) => ("prepare subPath", error),
                };
                tracing::warn!(
                    container,
                    volume,
                    sub_path = path,
                    error = error.report(),
                    "failed to {doing}"
                );
                config_error(format!(
                    "failed to {doing} for volumeMount {volume:?} of container {container:?}"
                ))
            })?;
            Ok(mount)
        })
        .collect()
}

pub(super) fn config_error(message: String) -> FailureReason {
    FailureReason { reason: "CreateContainerConfigError".to_owned(), message }
}

/// The validated sub path of a mount.
fn sub_path_of(mount: &VolumeMount, env: &[(String, String)]) -> Result<Option<String>, String> {
    let path = match mount.sub_path_expr.as_deref().filter(|expression| !expression.is_empty()) {
        Some(expression) => expand(expression, env)?,
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    if path.starts_with('/') {
        return Err(format!("error SubPath `{path}` must not be an absolute path"));
    }
    if has_backsteps(&path) {
        return Err(format!("unable to provision SubPath `{path}`: must not contain '..'"));
    }
    Ok(Some(path).filter(|path| !path.is_empty()))
}

/// Expands `$(NAME)`; `$$` is a literal `$`. A missing or empty variable is an error, because it would change the path.
fn expand(expression: &str, env: &[(String, String)]) -> Result<String, String> {
    let mut expanded = String::new();
    let mut missing = std::collections::BTreeSet::new();
    let mut rest = expression;
    while let Some(dollar) = rest.find('$') {
        expanded.push_str(&rest[..dollar]);
        let after = &rest[dollar + 1..];
        if let Some((name, behind)) = after.strip_prefix('(').and_then(|opened| opened.split_once(')')) {
            // The last definition counts.
            match env.iter().rfind(|(known, _)| known == name) {
                Some((_, value)) if !value.is_empty() => expanded.push_str(value),
                _ => drop(missing.insert(name)),
            }
            rest = behind;
        } else {
            expanded.push('$');
            // The second `$` of a pair is literal.
            rest = after.strip_prefix('$').unwrap_or(after);
        }
    }
    expanded.push_str(rest);
    if missing.is_empty() {
        return Ok(expanded);
    }
    Err(format!("missing value for {}", missing.into_iter().collect::<Vec<_>>().join(", ")))
}

fn recursive_read_only(mount: &VolumeMount, supported: bool) -> Result<bool, String> {
    let failed = |why: String| Err(format!("failed to resolve recursive read-only mode: {why}"));
    let Some(mode) = mount.recursive_read_only.as_deref().filter(|mode| *mode != "Disabled") else {
        return Ok(false);
    };
    let prefix = format!("volume {:?} requested recursive read-only mode, but it is not", mount.name);
    if !mount.read_only.unwrap_or_default() {
        return failed(format!("{prefix} read-only"));
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|mode| *mode != "None") {
        return failed(format!("{prefix} compatible with propagation {propagation:?}"));
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => failed(format!("{prefix} supported by the runtime")),
        other => failed(format!("unknown recursive read-only mode {other:?}")),
    }
}

fn propagation(mount: &VolumeMount) -> Result<Propagation, String> {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(Propagation::Private),
        Some("HostToContainer") => Ok(Propagation::HostToContainer),
        Some("Bidirectional") => Ok(Propagation::Bidirectional),
        Some(other) => Err(format!("invalid MountPropagation mode: {other:?}")),
    }
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

fn has_selinux() -> bool {
    std::path::Path::new("/sys/fs/selinux/enforce").exists()
}

#[cfg(test)]
mod tests;
