//! Events about containers, as a kubelet records them: a container started, is backing off, is being stopped. They are derived
//! from the statuses that a provider reports, for providers that do not record them.

use std::{borrow::Cow, collections::HashSet};

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};
use vk_provider::EventKind;

use super::fingerprint::containers;

/// An event about a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerEvent {
    /// The container, as a field path in the pod.
    pub(crate) path: String,
    /// Normal or Warning.
    pub(crate) kind: EventKind,
    /// As the kubelet has it.
    pub(crate) reason: Cow<'static, str>,
    /// For people.
    pub(crate) message: String,
}

/// The reasons of events that the provider records itself. Only those are remembered that the core would record too: a backend may make up
/// any number of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProviderEventReasons(HashSet<&'static str>);

/// The reasons of the events here.
const REASONS: [&str; 4] = [STARTED, KILLING, BACK_OFF, FAILED];
const STARTED: &str = "Started";
const KILLING: &str = "Killing";
const BACK_OFF: &str = "BackOff";
const FAILED: &str = "Failed";

/// A provider that records one of these records the other: waiting for its first event would record the first stop twice.
const PAIR: [&str; 2] = [STARTED, KILLING];

impl ProviderEventReasons {
    /// The provider recorded an event with this reason.
    pub(crate) fn observe(&mut self, reason: &str) {
        let Some(reason) = REASONS.into_iter().find(|own| *own == reason) else { return };
        self.0.insert(reason);
        if PAIR.contains(&reason) {
            self.0.extend(PAIR);
        }
    }

    /// Whether the provider records events with this reason.
    pub(crate) fn contains(&self, reason: &str) -> bool {
        self.0.contains(reason)
    }
}

/// The events between two statuses.
pub(crate) fn between(pod: &Pod, before: Option<&PodStatus>, after: &PodStatus) -> Vec<ContainerEvent> {
    let mut events = Vec::new();
    for ((list, now), (_, then)) in lists(Some(after)).into_iter().zip(lists(before)) {
        for status in now.iter().filter(|status| has(pod, &status.name)) {
            let known = then.iter().find(|known| known.name == status.name);
            events.extend(transition(pod, list, known, status));
        }
    }
    events
}

/// The events of a pod that is being stopped: one for each running container.
pub(crate) fn killing(reported: &PodStatus) -> Vec<ContainerEvent> {
    let all =
        lists(Some(reported)).into_iter().flat_map(|(list, all)| all.iter().map(move |one| (list, one)));
    all.filter(|(_, one)| one.state.as_ref().is_some_and(|state| state.running.is_some()))
        .map(|(list, one)| ContainerEvent {
            path: path(list, &one.name),
            kind: EventKind::Normal,
            reason: KILLING.into(),
            message: format!("Stopping container {}", one.name),
        })
        .collect()
}

/// Whether the pod has such a container. Anything else that is reported is invalid, and gets no event.
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

fn transition(
    pod: &Pod,
    list: &str,
    before: Option<&ContainerStatus>,
    now: &ContainerStatus,
) -> Option<ContainerEvent> {
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
        (EventKind::Normal, STARTED, format!("Started container {name}"))
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
                (EventKind::Warning, BACK_OFF, text)
            }
            "ImagePullBackOff" => {
                (EventKind::Normal, BACK_OFF, format!("Back-off pulling image {:?}", now.image))
            }
            "ErrImagePull"
            | "ErrImageNeverPull"
            | "InvalidImageName"
            | "CreateContainerConfigError"
            | "CreateContainerError"
            | "RunContainerError" => {
                let why = message.map_or_else(|| reason.clone(), |message| format!("{reason}: {message}"));
                (EventKind::Warning, FAILED, format!("Error: {why}"))
            }
            _ => return None,
        }
    };
    Some(ContainerEvent { path: path(list, name), kind, reason: reason.into(), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_that_records_starts_is_expected_to_record_stops() {
        let mut own = ProviderEventReasons::default();
        own.observe("Pulled");
        assert!(!own.contains("Started") && !own.contains("Killing"));
        own.observe("Started");
        assert!(own.contains("Killing"));
        assert!(!own.contains("BackOff"), "nothing is known of the rest");
        let mut own = ProviderEventReasons::default();
        own.observe("Killing");
        assert!(own.contains("Started"));
    }

    /// Events of a lower cluster have any reason that somebody there makes up.
    #[test]
    fn reasons_that_the_core_does_not_record_are_not_remembered() {
        let mut own = ProviderEventReasons::default();
        for number in 0..10_000 {
            own.observe(&format!("Reason{number}"));
        }
        for reason in REASONS {
            own.observe(reason);
        }
        assert_eq!(own.0.len(), REASONS.len());
    }
}
