//! What people know from a kubelet: that a container started, is backing off, is being stopped. Read off the statuses that a
//! provider reports, for providers that do not tell it themselves.

use std::{borrow::Cow, collections::HashSet};

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};
use vk_provider::EventKind;

use super::fingerprint::containers;

/// One event about a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The container, as a path in the pod.
    pub path: String,
    /// Normal or Warning.
    pub kind: EventKind,
    /// In the kubelet's words.
    pub reason: Cow<'static, str>,
    /// For people.
    pub message: String,
}

/// The reasons of events that the provider tells itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnWords(HashSet<String>);

/// Who tells one of these tells the other: the first stop would be told twice, if its event were waited for.
const PAIR: [&str; 2] = ["Started", "Killing"];

impl OwnWords {
    /// The provider told an event with this reason.
    pub fn heard(&mut self, reason: &str) {
        if self.has(reason) {
            return;
        }
        self.0.insert(reason.to_owned());
        if PAIR.contains(&reason) {
            self.0.extend(PAIR.map(str::to_owned));
        }
    }

    /// Whether the provider tells events with this reason.
    pub fn has(&self, reason: &str) -> bool {
        self.0.contains(reason)
    }
}

/// What happened between two statuses.
pub fn between(pod: &Pod, before: Option<&PodStatus>, after: &PodStatus) -> Vec<Word> {
    let mut words = Vec::new();
    for ((list, now), (_, then)) in lists(Some(after)).into_iter().zip(lists(before)) {
        for status in now.iter().filter(|status| has(pod, &status.name)) {
            let known = then.iter().find(|known| known.name == status.name);
            words.extend(word(pod, list, known, status));
        }
    }
    words
}

/// What is said when the pod is stopped: its containers that run.
pub fn killing(reported: &PodStatus) -> Vec<Word> {
    let all =
        lists(Some(reported)).into_iter().flat_map(|(list, all)| all.iter().map(move |one| (list, one)));
    all.filter(|(_, one)| one.state.as_ref().is_some_and(|state| state.running.is_some()))
        .map(|(list, one)| Word {
            path: path(list, &one.name),
            kind: EventKind::Normal,
            reason: "Killing".into(),
            message: format!("Stopping container {}", one.name),
        })
        .collect()
}

/// Whether the pod has such a container: what else is reported is nonsense, and nobody needs to read about it.
fn has(pod: &Pod, name: &str) -> bool {
    let ephemeral = pod.spec.as_ref().and_then(|spec| spec.ephemeral_containers.as_deref());
    containers(pod).any(|(_, one)| one.name == name)
        || ephemeral.unwrap_or_default().iter().any(|one| one.name == name)
}

fn lists(status: Option<&PodStatus>) -> [(&'static str, &[ContainerStatus]); 3] {
    let list = |pick: fn(&PodStatus) -> &Option<Vec<ContainerStatus>>| {
        status.and_then(|status| pick(status).as_deref()).unwrap_or_default()
    };
    [
        ("initContainers", list(|status| &status.init_container_statuses)),
        ("containers", list(|status| &status.container_statuses)),
        ("ephemeralContainers", list(|status| &status.ephemeral_container_statuses)),
    ]
}

fn path(list: &str, name: &str) -> String {
    format!("spec.{list}{{{name}}}")
}

fn word(pod: &Pod, list: &str, before: Option<&ContainerStatus>, now: &ContainerStatus) -> Option<Word> {
    let none = ContainerState::default();
    let then = before.and_then(|before| before.state.as_ref()).unwrap_or(&none);
    let state = now.state.as_ref().unwrap_or(&none);
    let name = &now.name;
    let (kind, reason, message) = if state.running.is_some() {
        let id = |status: &ContainerStatus| status.container_id.clone();
        let same = then.running.is_some()
            && before
                .is_some_and(|before| before.restart_count == now.restart_count && id(before) == id(now));
        if same {
            return None;
        }
        (EventKind::Normal, "Started", format!("Started container {name}"))
    } else {
        let why = |state: &ContainerState| state.waiting.as_ref().and_then(|waiting| waiting.reason.clone());
        let reason = why(state)?;
        if why(then).as_ref() == Some(&reason) {
            return None;
        }
        let message = state.waiting.as_ref().and_then(|waiting| waiting.message.clone());
        match reason.as_str() {
            "CrashLoopBackOff" => {
                let meta = &pod.metadata;
                let (pod, namespace) =
                    (meta.name.as_deref().unwrap_or_default(), meta.namespace.as_deref().unwrap_or_default());
                let text = format!("Back-off restarting failed container {name} in pod {pod}_{namespace}");
                (EventKind::Warning, "BackOff", text)
            }
            "ImagePullBackOff" => {
                (EventKind::Normal, "BackOff", format!("Back-off pulling image {:?}", now.image))
            }
            "ErrImagePull"
            | "ErrImageNeverPull"
            | "InvalidImageName"
            | "CreateContainerConfigError"
            | "CreateContainerError"
            | "RunContainerError" => {
                let why = message.map_or_else(|| reason.clone(), |message| format!("{reason}: {message}"));
                (EventKind::Warning, "Failed", format!("Error: {why}"))
            }
            _ => return None,
        }
    };
    Some(Word { path: path(list, name), kind, reason: reason.into(), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_tells_of_starts_is_known_to_tell_of_stops_before_the_first() {
        let mut own = OwnWords::default();
        own.heard("Pulled");
        assert!(own.has("Pulled") && !own.has("Started") && !own.has("Killing"));
        own.heard("Started");
        assert!(own.has("Killing"));
        assert!(!own.has("BackOff"), "of the rest nothing is known");
        let mut own = OwnWords::default();
        own.heard("Killing");
        assert!(own.has("Started"));
    }
}
