//! Observes a pod on the real kubelet: container output, container states and events.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use kube::{Api, Client, api::ListParams};
use vk_testing::{
    eventually,
    host::{Kubelet, image::PATH},
};

use super::SOON;
use crate::kubelet::{
    control_plane::{Placed, volume_name},
    file_contents::{Contents, from_base64},
    recording::{Container, File, Placeholders, Recording, Started, Volume, Waiting, Warning},
};

/// Messages while the kubelet's caches are filling, which are not about the pod.
const PASSING: [&str; 3] = ["failed to sync", "not registered", "no relationship found"];
/// Waiting reasons that are not final.
const EARLY: [&str; 2] = ["PodInitializing", "ContainerCreating"];

/// Waits until the result of a pod is final and returns it.
pub(super) async fn observe(client: &Client, controller: &Kubelet, placed: Placed) -> Recording {
    let Placed { pod, mut words } = placed;
    words.learn(controller.folder().to_str().unwrap(), "{folder}");
    let (namespace, name) = (pod.metadata.namespace.clone().unwrap(), pod.metadata.name.clone().unwrap());
    let uid = pod.metadata.uid.clone().unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    let about = ListParams::default().fields(&format!("involvedObject.name={name}"));

    let what = format!("it is clear what becomes of {name}");
    let (pod, warnings, printed) = eventually(&what, SOON, || async {
        let pod = pods.get(&name).await.map_err(|error| error.to_string())?;
        let events = events.list(&about).await.map_err(|error| error.to_string())?.items;
        let warnings: BTreeSet<Warning> = events.into_iter().filter_map(warning).collect();
        // Containers start after the volumes are mounted and the init containers are done.
        let before = pod.status.iter().flat_map(|status| status.init_container_statuses.iter().flatten());
        let held =
            warnings.iter().any(|warning| warning.reason == "FailedMount") || before.clone().any(stuck);
        if warnings.is_empty() && statuses(&pod).any(|container| stuck(&container)) {
            return Err("the event has not come yet".to_owned());
        }
        let mut printed = BTreeMap::new();
        for container in statuses(&pod) {
            let text = printed_by(controller, &namespace, &name, &uid, &container.name);
            settled(&container, &text, held)?;
            printed.insert(container.name.clone(), text);
        }
        let spec = pod.spec.as_ref().unwrap();
        let added = spec.ephemeral_containers.iter().flatten().map(|container| &container.name);
        let all = spec.containers.iter().map(|container| &container.name).chain(added);
        if all.into_iter().any(|name| !printed.contains_key(name)) {
            Err(format!("{:?}", pod.status))
        } else {
            Ok((pod, warnings, printed))
        }
    })
    .await;

    let status = pod.status.clone().unwrap_or_default();
    if !pod.spec.as_ref().unwrap().host_network.unwrap_or(false) {
        let addresses = status.pod_ips.clone().unwrap_or_default();
        for (address, word) in addresses.into_iter().zip(["{pod IP}", "{second pod IP}"]) {
            words.learn(address.ip, word);
        }
    }
    let containers = statuses(&pod)
        .map(|container| {
            (container.name.clone(), container_of(&pod, &container, &printed[&container.name], &words))
        })
        .collect();
    let warnings = warnings
        .into_iter()
        .map(|warning| Warning { message: told(&words.replace(&warning.message)), ..warning })
        .collect();
    Recording { refused: None, containers, warnings }
}

/// The output of a container's first run so far.
fn printed_by(controller: &Kubelet, namespace: &str, pod: &str, uid: &str, container: &str) -> String {
    let file = controller.logs().join(format!("{namespace}_{pod}_{uid}")).join(container).join("0.log");
    let Ok(log) = std::fs::read_to_string(file) else { return String::new() };
    let mut text = String::new();
    for line in log.lines() {
        // Time, stream, full or partial line, text.
        let mut fields = line.splitn(4, ' ');
        let (_, stream, part, printed) = (fields.next(), fields.next(), fields.next(), fields.next());
        assert_eq!(stream, Some("stdout"), "{pod}/{container}: {line}");
        text.push_str(printed.unwrap_or_default());
        if part == Some("F") {
            text.push('\n');
        }
    }
    text
}

/// Whether the result of a container is final; the error says what is missing.
fn settled(container: &ContainerStatus, printed: &str, held: bool) -> Result<(), String> {
    let state = container.state.clone().unwrap_or_default();
    let over = match &state.waiting {
        Some(_) => held || stuck(container),
        // A container that cannot be started prints nothing.
        None => printed.is_empty() && state.terminated.is_some() || printed.ends_with("end\n"),
    };
    if over { Ok(()) } else { Err(format!("{}: {state:?}", container.name)) }
}

/// Whether a container waits for something that needs intervention.
fn stuck(container: &ContainerStatus) -> bool {
    let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
    waiting.and_then(|waiting| waiting.reason.as_deref()).is_some_and(|reason| !EARLY.contains(&reason))
}

fn container_of(pod: &Pod, container: &ContainerStatus, printed: &str, words: &Placeholders) -> Container {
    let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
    let waiting = waiting.map(|waiting| Waiting {
        reason: waiting.reason.clone().unwrap_or_default(),
        message: words.replace(&waiting.message.clone().unwrap_or_default()),
    });
    let started = printed.starts_with("environ ").then(|| started(pod, printed, words));
    // The runtime's reason; any other belongs to a program that ran.
    let ended = container.state.as_ref().and_then(|state| state.terminated.as_ref());
    let broken = ended.filter(|ended| ended.reason.as_deref() == Some("StartError"));
    let broken = broken.map(|ended| words.replace(ended.message.as_deref().unwrap_or_default()));
    Container { waiting, broken, started }
}

fn started(pod: &Pod, printed: &str, words: &Placeholders) -> Started {
    let mut started = Started::default();
    let spec = pod.spec.as_ref().unwrap();
    // Machine-specific.
    let host_network = spec.host_network.unwrap_or(false);
    let host_name = spec.hostname.as_deref().or(pod.metadata.name.as_deref()).unwrap_or_default();
    let bytes = |field: &str| from_base64(field).unwrap_or_else(|| panic!("no base64: {field}"));
    let text = |field: &str| words.replace(&String::from_utf8_lossy(&bytes(field)));
    for volume in spec.volumes.iter().flatten() {
        if volume.config_map.is_some()
            || volume.secret.is_some()
            || volume.downward_api.is_some()
            || volume.projected.is_some()
        {
            started.volumes.insert(volume_name(&volume.name).to_owned(), Volume::default());
        }
    }
    for line in printed.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        match fields[..] {
            ["environ", environ] => {
                for variable in text(environ).split_terminator('\0') {
                    let (name, value) = variable.split_once('=').unwrap();
                    // Set by the image or the runtime.
                    let own =
                        [("PATH", PATH), ("HOSTNAME", host_name), ("HOME", "/")].contains(&(name, value));
                    if !(own || host_network && name == "HOSTNAME") {
                        let double = started.env.insert(name.to_owned(), value.to_owned());
                        assert!(double.is_none(), "{name} is twice in the environment");
                    }
                }
            }
            ["cmdline", cmdline] => {
                // The first argument is the shell that runs the script.
                started.command = text(cmdline).split_terminator('\0').skip(1).map(str::to_owned).collect();
            }
            ["file", volume, path, mode, owner, contents] => {
                let contents = if contents == "-" {
                    Contents::Unreadable
                } else {
                    Contents::new(&bytes(contents), words)
                };
                let file = File { mode: mode.to_owned(), owner: owner.to_owned(), contents };
                if let Some(volume) = started.volumes.get_mut(volume) {
                    volume.files.insert(text(path), file);
                }
            }
            ["link", volume, path, target] => {
                if let Some(volume) = started.volumes.get_mut(volume) {
                    let target = text(target);
                    let target = if text(path) == "..data" { "..{time}".to_owned() } else { target };
                    volume.links.insert(text(path), target);
                }
            }
            ["end"] => {}
            _ => panic!("printed: {line}"),
        }
    }
    started
}

/// File system errors name directories of this run and depend on the order of a Go map.
fn told(message: &str) -> String {
    match message.split_once(" : ") {
        Some((what, why)) if why.contains("/volumes/kubernetes.io~") => {
            format!("{what} : {{an error of the file system}}")
        }
        _ => message.to_owned(),
    }
}

fn warning(event: Event) -> Option<Warning> {
    let (reason, message) = (event.reason?, event.message?);
    (event.type_? == "Warning" && !PASSING.iter().any(|passing| message.contains(passing)))
        .then_some(Warning { reason, message })
}

fn statuses(pod: &Pod) -> impl Iterator<Item = ContainerStatus> + use<> {
    let status = pod.status.clone().unwrap_or_default();
    let lists =
        [status.init_container_statuses, status.container_statuses, status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten()
}
