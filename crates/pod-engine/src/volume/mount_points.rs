//! Volumes that are mounted inside others. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use vk_provider::{Error, Result};

use crate::containers::pod_containers;

/// The directories that a volume needs because other volumes are mounted on them: the volume is read-only in the container, so the runtime
/// cannot create them. As in a kubelet, only the outermost.
pub(super) fn mount_points(pod: &Pod, volume: &str) -> Result<BTreeSet<String>> {
    let mut points = BTreeSet::new();
    for container in pod_containers(pod) {
        let mounts = container.spec.volume_mounts.as_deref().unwrap_or_default();
        let mut all: Vec<String> = mounts.iter().map(|mount| clean(&mount.mount_path)).collect();
        all.sort();
        for own in mounts.iter().filter(|mount| mount.name == volume) {
            let own = clean(&own.mount_path);
            if own.starts_with("../") {
                return Err(Error::invalid(format!("invalid container mount point {own}")));
            }
            let inside = format!("{own}/");
            let mut outer: Vec<String> = Vec::new();
            for point in &all {
                let Some(below) = point.strip_prefix(&inside) else { continue };
                if outer.iter().any(|outer| point.starts_with(outer)) {
                    continue;
                }
                outer.push(format!("{point}/"));
                points.insert(below.to_owned());
            }
        }
    }
    Ok(points)
}

/// A path without repeated slashes, dots and resolvable parent steps.
fn clean(path: &str) -> String {
    let absolute = path.starts_with('/');
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." if names.last().is_some_and(|last| *last != "..") => drop(names.pop()),
            ".." if absolute => {}
            name => names.push(name),
        }
    }
    let joined = names.join("/");
    match (absolute, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }
}

#[cfg(test)]
mod tests;
