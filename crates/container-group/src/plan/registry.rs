//! Credentials for the registries of a pod's images, as clouds take them: server, user and password.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};
use vk_provider::resolve::{PullCredentials, RegistryLogin};

use super::Diagnostics;
use crate::backend::ResolvedPod;

const FIELD: &str = "spec.imagePullSecrets";

/// How a cloud logs in to the registries of a pod.
#[derive(Clone, Debug, Default)]
pub struct RegistryLogins {
    /// Registries with a password, by server.
    pub passwords: Vec<RegistryPassword>,
    /// Servers of the cloud's own registries among those of the images: they need no password.
    pub own: Vec<String>,
}

/// A user and a password for a registry.
#[derive(Clone, Debug)]
pub struct RegistryPassword {
    /// The host of the registry, with its port: no scheme and no path.
    pub server: String,
    /// The user.
    pub username: String,
    /// The password.
    pub password: SecretString,
}

/// The logins for the images of a pod, each server once. `is_own` says whether a server is a registry of the cloud, which lets the
/// account in without a password; a pull secret for it is used nevertheless.
///
/// A token instead of a password cannot be passed on, and one server can have one user: both are warnings.
pub fn logins(
    pod: &ResolvedPod,
    is_own: impl Fn(&str) -> bool,
    diagnostics: &mut Diagnostics,
) -> RegistryLogins {
    let mut passwords: BTreeMap<String, RegistryPassword> = BTreeMap::new();
    let mut problems = Vec::new();
    for (image, credentials) in &pod.credentials {
        // The best match first: it is the one that counts for its server.
        for PullCredentials { registry, login } in credentials {
            let server = server_of(registry, image);
            let RegistryLogin::Basic { username, password } = login else {
                problems.push(format!("{server}: a token is not passed on; use a user name and a password"));
                continue;
            };
            let earlier = passwords.entry(server.clone()).or_insert_with(|| RegistryPassword {
                server: server.clone(),
                username: username.clone(),
                password: password.clone(),
            });
            if earlier.username != *username || earlier.password.expose_secret() != password.expose_secret() {
                problems.push(format!(
                    "{server}: the pull secrets have several logins; only that of user {} is used",
                    earlier.username
                ));
            }
        }
    }
    problems.sort_unstable();
    problems.dedup();
    if !problems.is_empty() {
        diagnostics.warn(FIELD, problems.join("; "));
    }
    let mut own: Vec<_> = images(pod).map(image_server).filter(|server| is_own(server)).collect();
    own.sort_unstable();
    own.dedup();
    own.retain(|server| !passwords.contains_key(server));
    RegistryLogins { passwords: passwords.into_values().collect(), own }
}

/// The server of an image: `docker.io` without one.
pub fn image_server(image: &str) -> String {
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => canonical(host),
        _ => "docker.io".to_owned(),
    }
}

fn images(pod: &ResolvedPod) -> impl Iterator<Item = &str> {
    let spec = pod.pod.spec.iter();
    let all = spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    all.filter_map(|container| container.image.as_deref())
}

/// The server of a pull secret's entry: its host, or that of the image if the entry has wildcards.
fn server_of(entry: &str, image: &str) -> String {
    let host = entry.trim_start_matches("https://").trim_start_matches("http://");
    let host = host.split('/').next().unwrap_or_default();
    if host.is_empty() || host.contains('*') || host.contains('?') || host.contains('[') {
        return image_server(image);
    }
    canonical(host)
}

/// All names of Docker Hub are one server.
fn canonical(host: &str) -> String {
    match host {
        "index.docker.io" | "registry-1.docker.io" => "docker.io".to_owned(),
        _ => host.to_owned(),
    }
}

#[cfg(test)]
mod tests;
