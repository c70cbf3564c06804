//! A lower event, and its translation for the upper pod.

use k8s_openapi::api::core::v1::Event;
use vk_provider::{EventKind, PodEvent, PodRef};

use crate::status::truncate;

/// The API server accepts messages of 1024 bytes, and the core needs some room.
const MAX_MESSAGE: usize = 1000;
/// The API server accepts reasons of 128 characters.
const MAX_REASON: usize = 128;
/// The maximum length of names of components, nodes and containers.
const MAX_NAME: usize = 253;
/// The reason of events without one, which the API server would reject.
const NO_REASON: &str = "LowerEvent";

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InvolvedObject {
    /// A lower pod.
    Pod { namespace: String, name: String, uid: String },
    /// A lower claim.
    Claim { namespace: String, name: String },
}

/// A lower event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LowerEvent {
    /// The UID of the event.
    pub(super) uid: String,
    /// The resource version.
    pub(super) version: u64,
    pub(super) involved: InvolvedObject,
    /// How often it happened.
    pub(super) count: i32,
    pub(super) container: Option<String>,
    pub(super) kind: EventKind,
    pub(super) reason: String,
    pub(super) message: String,
}

// === impl LowerEvent ===

impl LowerEvent {
    /// Reads an event; `None` if it cannot be about an object of ours.
    pub(super) fn read(event: &Event) -> Option<Self> {
        let object = &event.involved_object;
        let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let namespace = text(&object.namespace).or_else(|| text(&event.metadata.namespace))?;
        let name = text(&object.name)?;
        let involved = match object.kind.as_deref()? {
            "Pod" => InvolvedObject::Pod { namespace, name, uid: text(&object.uid)? },
            "PersistentVolumeClaim" => InvolvedObject::Claim { namespace, name },
            _ => return None,
        };
        let version = event.metadata.resource_version.as_ref()?.parse().ok()?;
        let series = event.series.as_ref().and_then(|series| series.count);
        let reason = text(&event.reason).unwrap_or_else(|| NO_REASON.to_owned());
        Some(Self {
            uid: event.metadata.uid.clone()?,
            version,
            message: message(event, &involved),
            count: series.or(event.count).unwrap_or(1),
            container: container(object.field_path.as_deref()),
            kind: if event.type_.as_deref() == Some("Warning") {
                EventKind::Warning
            } else {
                EventKind::Normal
            },
            reason: truncate(&reason, MAX_REASON),
            involved,
        })
    }

    /// The event for an upper pod.
    pub(super) fn on(&self, pod: PodRef) -> PodEvent {
        PodEvent {
            pod,
            container: self.container.clone(),
            kind: self.kind,
            reason: self.reason.clone(),
            message: self.message.clone(),
        }
    }
}

/// The message with its source. The source stays readable if the text is truncated.
fn message(event: &Event, involved: &InvolvedObject) -> String {
    let source = event.source.as_ref();
    let given = |text: Option<&String>| {
        text.filter(|text| !text.is_empty()).map(|text| truncate(text, MAX_NAME)).into_iter()
    };
    let component = given(event.reporting_component.as_ref())
        .chain(given(source.and_then(|source| source.component.as_ref())))
        .next();
    let host = given(source.and_then(|source| source.host.as_ref())).next();
    let by: Vec<String> = component.into_iter().chain(host).collect();
    let by = if by.is_empty() { " (lower)".to_owned() } else { format!(" (lower: {})", by.join(", ")) };
    let what = match involved {
        InvolvedObject::Pod { .. } => String::new(),
        InvolvedObject::Claim { name, .. } => format!("PersistentVolumeClaim {name}: "),
    };
    let said = event.message.as_deref().unwrap_or_default().trim();
    let said = truncate(&format!("{what}{said}"), MAX_MESSAGE.saturating_sub(by.len()));
    format!("{said}{by}").trim_start().to_owned()
}

/// The container that an event is about, which kubelets write as `spec.containers{name}`.
fn container(path: Option<&str>) -> Option<String> {
    let (list, name) = path?.strip_suffix('}')?.split_once('{')?;
    let known = matches!(list, "spec.containers" | "spec.initContainers" | "spec.ephemeralContainers");
    (known && !name.is_empty()).then(|| truncate(name, MAX_NAME))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Option<LowerEvent> {
        LowerEvent::read(&serde_json::from_value(value).unwrap())
    }

    fn event(object: &Value, more: &Value) -> Value {
        let mut event = json!({
            "metadata": {"namespace": "web", "name": "e", "uid": "e1", "resourceVersion": "7"},
            "involvedObject": object, "reason": "Failed", "type": "Warning", "message": "no such image",
        });
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        event
    }

    fn pod() -> Value {
        json!({"kind": "Pod", "namespace": "web", "name": "a", "uid": "l1"})
    }

    #[test]
    fn an_event_of_a_kubelet_keeps_message_source_and_container() {
        let mut object = pod();
        object["fieldPath"] = json!("spec.initContainers{setup}");
        let source = json!({"component": "kubelet", "host": "node-7"});
        let event = read(event(&object, &json!({"source": source, "count": 3}))).unwrap();
        let upper_event = event.on(PodRef::new("shop", "a", "u1"));
        assert_eq!(upper_event.message, "no such image (lower: kubelet, node-7)");
        assert_eq!((upper_event.kind, upper_event.reason.as_str()), (EventKind::Warning, "Failed"));
        assert_eq!((upper_event.container.as_deref(), event.count, event.version), (Some("setup"), 3, 7));
    }

    #[test]
    fn an_event_of_a_scheduler_has_its_count_in_a_series() {
        let more = json!({"reportingComponent": "default-scheduler", "series": {"count": 9}, "source": {},
            "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal"});
        let event = read(event(&pod(), &more)).unwrap();
        assert_eq!((event.count, event.kind), (9, EventKind::Normal));
        assert_eq!(event.message, "no such image (lower: default-scheduler)");
    }

    #[test]
    fn an_event_of_a_claim_names_the_claim() {
        let object = json!({"kind": "PersistentVolumeClaim", "namespace": "web", "name": "data", "uid": "c"});
        let event = read(event(&object, &json!({}))).unwrap();
        assert_eq!(event.message, "PersistentVolumeClaim data: no such image (lower)");
        assert_eq!(
            event.involved,
            InvolvedObject::Claim { namespace: "web".to_owned(), name: "data".to_owned() }
        );
    }

    #[test]
    fn a_long_message_is_truncated_but_not_its_source() {
        let more = json!({"message": "é".repeat(5000), "reason": "R".repeat(500),
            "reportingComponent": "x".repeat(500)});
        let event = read(event(&pod(), &more)).unwrap();
        assert!(event.message.len() <= 1000 && event.message.ends_with("xx...)"), "{}", event.message);
        assert_eq!(event.reason.len(), 128);
    }

    #[test]
    fn an_event_without_reason_and_message_gets_defaults() {
        let event = read(event(&pod(), &json!({"message": null, "reason": "", "type": "?"}))).unwrap();
        assert_eq!((event.reason.as_str(), event.message.as_str()), ("LowerEvent", "(lower)"));
        assert_eq!(event.kind, EventKind::Normal);
    }

    #[test]
    fn events_about_other_kinds_are_ignored() {
        let node = json!({"kind": "Node", "name": "node-7", "uid": "node-7"});
        assert_eq!(read(event(&node, &json!({}))), None);
        let nobody = json!({"kind": "Pod", "namespace": "web", "name": "a"});
        assert_eq!(read(event(&nobody, &json!({}))), None, "a pod without a UID may be any");
        for path in ["spec.containers{}", "spec.volumes{a}", "{", "}", "spec.containers"] {
            let mut object = pod();
            object["fieldPath"] = json!(path);
            assert_eq!(read(event(&object, &json!({}))).unwrap().container, None, "{path}");
        }
    }
}
