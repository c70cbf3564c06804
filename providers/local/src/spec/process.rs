//! The process of a container.

use oci_spec::image;
use serde_json::{Value, json};
use vk_pod_engine::backend::{ContainerConfig, Share};
use vk_provider::{Error, Result};

use super::{SpecInput, privileges};

/// The default PATH.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(super) fn process(input: &SpecInput<'_>) -> Result<Value> {
    let ContainerConfig { security, .. } = input.container;
    let identity = input.identity;
    let mut process = json!({
        "terminal": input.container.tty,
        "user": { "uid": identity.uid, "gid": identity.gid, "additionalGids": identity.groups },
        "args": arguments(input.container, input.image)?,
        "env": environment(input.container, input.image, hostname(input)),
        "cwd": working_directory(input.container, input.image),
        "capabilities": privileges::capabilities(input),
    });
    // The runtime treats the value false as true.
    if security.no_new_privileges {
        process["noNewPrivileges"] = json!(true);
    }
    if let Some(profile) = input.apparmor {
        process["apparmorProfile"] = json!(profile);
    }
    Ok(process)
}

/// Program and arguments. If the pod sets a command, the image's arguments are not used.
pub fn arguments(container: &ContainerConfig, image: Option<&image::Config>) -> Result<Vec<String>> {
    let entrypoint = || image.and_then(|image| image.entrypoint().clone()).unwrap_or_default();
    let cmd = || image.and_then(|image| image.cmd().clone()).unwrap_or_default();
    let (command, args) = match (container.command.is_empty(), container.args.is_empty()) {
        (false, _) => (container.command.clone(), container.args.clone()),
        (true, false) => (entrypoint(), container.args.clone()),
        (true, true) => (entrypoint(), cmd()),
    };
    let whole = [command, args].concat();
    if whole.is_empty() { Err(Error::invalid("no command specified")) } else { Ok(whole) }
}

/// The environment: defaults, then the image's, then the pod's. A later entry replaces an earlier one with the same
/// name, in its place.
pub fn environment(
    container: &ContainerConfig,
    image: Option<&image::Config>,
    hostname: &str,
) -> Vec<String> {
    let mut all = vec![PATH.to_owned()];
    let mut set = |entry: String| {
        let name = entry.split('=').next().unwrap_or_default();
        let same = |other: &String| other.split('=').next() == Some(name);
        match all.iter().position(same) {
            Some(place) => all[place] = entry,
            None => all.push(entry),
        }
    };
    if container.tty {
        set("TERM=xterm".to_owned());
    }
    set(format!("HOSTNAME={hostname}"));
    for entry in image.and_then(|image| image.env().as_ref()).into_iter().flatten() {
        set(entry.clone());
    }
    for (name, value) in &container.env {
        set(format!("{name}={value}"));
    }
    all
}

/// The working directory.
pub fn working_directory(container: &ContainerConfig, image: Option<&image::Config>) -> String {
    let own = Some(container.working_dir.clone()).filter(|path| !path.is_empty());
    let images = || image.and_then(|image| image.working_dir().clone()).filter(|path| !path.is_empty());
    let path = own.or_else(images).unwrap_or_else(|| "/".to_owned());
    if path.starts_with('/') { path } else { format!("/{path}") }
}

/// The stop signal.
pub fn stop_signal(container: &ContainerConfig, image: Option<&image::Config>) -> Option<String> {
    let images = || image.and_then(|image| image.stop_signal().clone());
    container.stop_signal.clone().or_else(images).filter(|signal| !signal.is_empty())
}

fn hostname<'a>(input: &'a SpecInput<'_>) -> &'a str {
    let own = &input.sandbox.hostname;
    if input.container.security.namespaces.network == Share::Node || own.is_empty() {
        input.node_hostname
    } else {
        own
    }
}
