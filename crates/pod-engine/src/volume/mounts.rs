//! What a container mounts.

use std::{collections::BTreeMap, path::PathBuf};

use k8s_openapi::api::core::v1::{Container, VolumeMount};

use super::{Placed, host::has_backsteps, place::Place, quoted, sub_path, sub_path::Refusal};
use crate::{
    backend::{Mount, Propagation},
    status::Trouble,
};

/// What the runtime gives to mounts.
#[derive(Clone, Copy, Debug, Default)]
pub struct With<'a> {
    /// The images of image volumes as the runtime resolved them, by the volume's name.
    pub images: Option<&'a BTreeMap<String, String>>,
    /// Whether a mount can be read-only with all that is mounted below it.
    pub recursive_read_only: bool,
}

/// A container's mounts as they are to be made, with everything decided but what needs the file system.
#[derive(Debug)]
pub(super) struct Wanted {
    mount: Mount,
    /// A part of the volume at `host_path`, and where it is mounted for the container.
    part: Option<(String, PathBuf)>,
    volume: String,
}

/// Decides on all mounts of a container.
pub(super) fn wanted(
    place: &Place,
    uid: &str,
    placed: &BTreeMap<String, Placed>,
    container: &Container,
    env: &[(String, String)],
    with: &With<'_>,
) -> Result<Vec<Wanted>, String> {
    let mounts = container.volume_mounts.iter().flatten().enumerate();
    mounts
        .map(|(number, mount)| {
            let Some(found) = placed.get(&mount.name) else {
                return Err(format!(
                    "cannot find volume {:?} to mount into container {:?}",
                    mount.name, container.name
                ));
            };
            let part = part(mount, env)?;
            let mut made = Mount {
                container_path: absolute(&mount.mount_path),
                host_path: String::new(),
                image: None,
                image_sub_path: String::new(),
                read_only: mount.read_only.unwrap_or_default() || found.read_only,
                recursive_read_only: recursive_read_only(mount, with.recursive_read_only)?,
                selinux_relabel: found.managed && has_selinux(),
                propagation: propagation(mount)?,
                uids: Vec::new(),
                gids: Vec::new(),
            };
            let Some(path) = &found.path else {
                let image = with.images.and_then(|images| images.get(&mount.name));
                let Some(image) = image else {
                    return Err(format!(
                        "the image of volume {:?} was not pulled for container {:?}",
                        mount.name, container.name
                    ));
                };
                made.image = Some(image.clone());
                made.image_sub_path = part.unwrap_or_default();
                return Ok(Wanted { mount: made, part: None, volume: mount.name.clone() });
            };
            let path = path.to_str().ok_or_else(|| format!("path {} is not text", quoted(path)))?;
            path.clone_into(&mut made.host_path);
            let part = part.map(|part| (part, place.sub_path(uid, &mount.name, &container.name, number)));
            Ok(Wanted { mount: made, part, volume: mount.name.clone() })
        })
        .collect()
}

/// Mounts the parts of volumes. Blocks.
pub(super) fn make(wanted: Vec<Wanted>, container: &str) -> Result<Vec<Mount>, Trouble> {
    wanted
        .into_iter()
        .map(|Wanted { mut mount, part, volume }| {
            let Some((part, target)) = part else { return Ok(mount) };
            let prepared = sub_path::prepare(mount.host_path.as_ref(), &part, &target).and_then(|path| {
                let error = || vk_provider::Error::internal(format!("path {} is not text", quoted(&path)));
                path.to_str().map(str::to_owned).ok_or_else(|| Refusal::Prepare(error()))
            });
            mount.host_path = prepared.map_err(|refusal| {
                // What is wrong could tell the pod's owner about the machine, so only our log has it.
                let (doing, error) = match refusal {
                    Refusal::Create(error) => ("create subPath directory", error),
                    Refusal::Prepare(error) => ("prepare subPath", error),
                };
                tracing::warn!(container, volume, part, error = error.report(), "failed to {doing}");
                trouble(format!("failed to {doing} for volumeMount {volume:?} of container {container:?}"))
            })?;
            Ok(mount)
        })
        .collect()
}

pub(super) fn trouble(message: String) -> Trouble {
    Trouble { reason: "CreateContainerConfigError".to_owned(), message }
}

/// The part of the volume that is wanted, checked.
fn part(mount: &VolumeMount, env: &[(String, String)]) -> Result<Option<String>, String> {
    let part = match mount.sub_path_expr.as_deref().filter(|expression| !expression.is_empty()) {
        Some(expression) => expand(expression, env)?,
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    if part.starts_with('/') {
        return Err(format!("error SubPath `{part}` must not be an absolute path"));
    }
    if has_backsteps(&part) {
        return Err(format!("unable to provision SubPath `{part}`: must not contain '..'"));
    }
    Ok(Some(part).filter(|part| !part.is_empty()))
}

/// Replaces `$(NAME)`; `$$` is a plain `$`. A variable that is not there, or is empty, is an error: the path would be another one.
fn expand(expression: &str, env: &[(String, String)]) -> Result<String, String> {
    let mut expanded = String::new();
    let mut missing = std::collections::BTreeSet::new();
    let mut rest = expression;
    while let Some(dollar) = rest.find('$') {
        expanded.push_str(&rest[..dollar]);
        let after = &rest[dollar + 1..];
        if let Some((name, behind)) = after.strip_prefix('(').and_then(|opened| opened.split_once(')')) {
            // The last one of a name counts.
            match env.iter().rfind(|(known, _)| known == name) {
                Some((_, value)) if !value.is_empty() => expanded.push_str(value),
                _ => drop(missing.insert(name)),
            }
            rest = behind;
        } else {
            expanded.push('$');
            // Of a pair the second starts nothing.
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
    let wish = format!("volume {:?} requested recursive read-only mode, but it is not", mount.name);
    if !mount.read_only.unwrap_or_default() {
        return failed(format!("{wish} read-only"));
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|mode| *mode != "None") {
        return failed(format!("{wish} compatible with propagation {propagation:?}"));
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => failed(format!("{wish} supported by the runtime")),
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
