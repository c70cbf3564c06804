//! Pod events about references, with the kubelet's messages and the Go original's reasons.

use vk_provider::{
    Error, EventKind, PodEvent, PodRef,
    error::Kind,
    resolve::{Reference, ReferenceKind},
};

use super::fetched_objects::ResolveWarning;

/// Event for a missing optional reference, or for keys that cannot be variable names.
pub(super) fn for_warning(pod: &PodRef, container: Option<&str>, cause: &ResolveWarning) -> PodEvent {
    let (reason, message) = match cause {
        ResolveWarning::MissingOptional(reference) => {
            let message = format!("optional {reference} does not exist; the pod starts without it");
            (missing("Optional", reference), message)
        }
        ResolveWarning::SkippedKeys { source, names } => {
            let names = names.join(", ");
            let message =
                format!("skipped keys of {source} that are not valid environment variables: {names}");
            ("InvalidEnvironmentVariableNames".to_owned(), message)
        }
    };
    warning(pod, container, reason, message)
}

/// Events for a container that cannot start.
pub(super) fn container_failed(pod: &PodRef, container: &str, error: &Error) -> Vec<PodEvent> {
    let mut events =
        vec![warning(pod, Some(container), "Failed".to_owned(), format!("Error: {}", error.report()))];
    if let Kind::Unresolved(reference) = error.kind() {
        let message = format!("the pod cannot start without {reference}: {}", error.report());
        events.push(warning(pod, None, missing("Mandatory", reference), message));
    }
    events
}

/// Event for a volume whose files cannot be resolved.
pub(super) fn volume_failed(pod: &PodRef, volume: &str, error: &Error) -> PodEvent {
    let message = format!("MountVolume.SetUp failed for volume {volume:?} : {}", error.report());
    warning(pod, None, "FailedMount".to_owned(), message)
}

/// Event for missing pull secrets. The pull may succeed without them.
pub(super) fn pull_secrets_missing(pod: &PodRef, names: &[String]) -> PodEvent {
    let message = format!(
        "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
        names.join(", ")
    );
    warning(pod, None, "FailedToRetrieveImagePullSecret".to_owned(), message)
}

/// The Go original's reason, such as `OptionalSecretKeyNotFound`.
fn missing(what: &str, reference: &Reference) -> String {
    let kind = match reference.kind {
        ReferenceKind::ConfigMap => "ConfigMap".to_owned(),
        ReferenceKind::Secret => "Secret".to_owned(),
        other => format!("{other:?}"),
    };
    let key = if reference.key.is_some() { "Key" } else { "" };
    format!("{what}{kind}{key}NotFound")
}

fn warning(pod: &PodRef, container: Option<&str>, reason: String, message: String) -> PodEvent {
    let container = container.map(ToOwned::to_owned);
    PodEvent { pod: pod.clone(), container, kind: EventKind::Warning, reason, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> PodRef {
        PodRef::new("shop", "web", "1")
    }

    #[test]
    fn reasons_are_those_of_the_go_original() {
        let map = Reference::new(ReferenceKind::ConfigMap, "shop", "settings");
        let secret = Reference::new(ReferenceKind::Secret, "shop", "db").key("password");
        let reason =
            |reference| for_warning(&pod(), None, &ResolveWarning::MissingOptional(reference)).reason;
        assert_eq!(reason(map.clone()), "OptionalConfigMapNotFound");
        assert_eq!(reason(secret.clone()), "OptionalSecretKeyNotFound");
        let failed = |reference| {
            let error = Error::new(Kind::Unresolved(reference), "not found");
            container_failed(&pod(), "app", &error).pop().unwrap().reason
        };
        assert_eq!(failed(map), "MandatoryConfigMapNotFound");
        assert_eq!(failed(secret), "MandatorySecretKeyNotFound");
    }

    #[test]
    fn failure_messages_are_those_of_the_kubelet() {
        let reference = Reference::new(ReferenceKind::ConfigMap, "shop", "settings");
        let error = Error::new(Kind::Unresolved(reference), "configmap \"settings\" not found");
        let events = container_failed(&pod(), "app", &error);
        assert_eq!(
            (&*events[0].reason, &*events[0].message),
            ("Failed", "Error: configmap \"settings\" not found")
        );
        assert_eq!(
            volume_failed(&pod(), "files", &error).message,
            "MountVolume.SetUp failed for volume \"files\" : configmap \"settings\" not found"
        );
    }
}
