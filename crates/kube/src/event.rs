//! Events on objects. A repeated one counts up instead of filling the list.

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{Event as CoreEvent, ObjectReference},
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use parking_lot::Mutex;
use serde_json::json;
use tracing::debug;
use vk_supervisor::Clock;

use crate::{Client, Error, Kind, Objects, Patch};

/// How long after it an event counts as a repetition.
const SERIES: Duration = Duration::from_mins(6);

/// How many events are remembered, to tell a repetition.
const REMEMBERED: usize = 1024;

/// Publishes events for one reporter. Clones are the same.
#[derive(Clone)]
pub struct Recorder {
    client: Client,
    controller: Arc<str>,
    instance: Arc<str>,
    known: Arc<Mutex<Known>>,
    /// Whether events go to the core group, because their own group is not for us.
    core: Arc<AtomicBool>,
    clock: Clock,
}

/// How serious it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// As expected.
    Normal,
    /// Somebody should look.
    Warning,
}

/// What was published lately.
#[derive(Default)]
struct Known {
    series: HashMap<u64, Series>,
    /// From the oldest to the newest.
    order: VecDeque<u64>,
}

#[derive(Clone)]
struct Series {
    name: String,
    count: i32,
    last: Timestamp,
}

// === impl Recorder ===

impl Recorder {
    /// A recorder that reports as `controller` on `instance`, which is the node.
    pub fn new(client: Client, controller: &str, instance: &str) -> Self {
        Self {
            client,
            controller: controller.into(),
            instance: instance.into(),
            known: Arc::default(),
            core: Arc::default(),
            clock: Clock::system(),
        }
    }

    /// Publishes one event. An event that cannot be written is not worth stopping for: it is logged and dropped.
    pub async fn publish(&self, about: &ObjectReference, severity: Severity, reason: &str, message: &str) {
        // The API server takes at most 1 kB.
        let note: String = message.chars().take(1000).collect();
        let mut hasher = DefaultHasher::new();
        (&about.kind, &about.namespace, &about.name, &about.uid, &about.field_path).hash(&mut hasher);
        (severity, reason, &note).hash(&mut hasher);
        let key = hasher.finish();
        let now = self.clock.now();
        let repeated = self.known.lock().repeated(key, now);
        let mut written = Err(Error::new(Kind::NotFound, "not written yet"));
        if let Some(series) = &repeated {
            written = self.count(about, series).await;
        }
        // An event lives for an hour in the API server, or for as long as somebody leaves it there.
        if written.as_ref().is_err_and(|error| error.kind == Kind::NotFound) {
            written = self.create(about, severity, reason, note, now).await;
        }
        match written {
            Ok(series) => self.known.lock().remember(key, series),
            Err(error) => debug!(%error, reason, "event not written"),
        }
    }

    fn events(&self, about: &ObjectReference) -> Objects<Event> {
        Objects::namespaced(self.client.clone(), namespace(about))
    }

    /// The same events, by the group that they had first.
    fn core_events(&self, about: &ObjectReference) -> Objects<CoreEvent> {
        Objects::namespaced(self.client.clone(), namespace(about))
    }

    async fn count(&self, about: &ObjectReference, series: &Series) -> Result<Series, Error> {
        let body = json!({"series": {"count": series.count, "lastObservedTime": MicroTime(series.last)}});
        if self.core.load(Ordering::Relaxed) {
            self.core_events(about).patch(&series.name, Patch::Merge(&body)).await?;
        } else {
            self.events(about).patch(&series.name, Patch::Merge(&body)).await?;
        }
        Ok(series.clone())
    }

    async fn create(
        &self,
        about: &ObjectReference,
        severity: Severity,
        reason: &str,
        note: String,
        now: Timestamp,
    ) -> Result<Series, Error> {
        let subject = about.name.as_deref().unwrap_or(&self.controller);
        let name = format!("{subject}.{:x}", now.as_nanosecond());
        let kind = match severity {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        };
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: about.namespace.clone(),
                ..ObjectMeta::default()
            },
            action: Some(reason.to_owned()),
            reason: Some(reason.to_owned()),
            note: Some(note),
            type_: Some(kind.to_owned()),
            event_time: Some(MicroTime(now)),
            regarding: Some(about.clone()),
            reporting_controller: Some(self.controller.to_string()),
            reporting_instance: Some(self.instance.to_string()),
            ..Event::default()
        };
        self.send(about, event).await?;
        Ok(Series { name, count: 1, last: now })
    }

    /// Up to Kubernetes 1.33 or later a node may write events by the core group only. It is one store behind both.
    async fn send(&self, about: &ObjectReference, event: Event) -> Result<(), Error> {
        if !self.core.load(Ordering::Relaxed) {
            match self.events(about).create(&event).await {
                Err(error) if is_closed(&error) => {}
                answer => return answer.map(drop),
            }
        }
        self.core_events(about).create(&in_core(event)).await?;
        if !self.core.swap(true, Ordering::Relaxed) {
            debug!("the group events.k8s.io is forbidden: events go by the core group");
        }
        Ok(())
    }
}

fn namespace(about: &ObjectReference) -> &str {
    about.namespace.as_deref().unwrap_or("default")
}

/// Whether the whole group is forbidden, and not only one namespace, which nobody may add to while it ends.
fn is_closed(error: &Error) -> bool {
    error.kind == Kind::Forbidden && !error.message.contains("being terminated")
}

fn in_core(event: Event) -> CoreEvent {
    CoreEvent {
        metadata: event.metadata,
        action: event.action,
        reason: event.reason,
        message: event.note,
        type_: event.type_,
        event_time: event.event_time,
        involved_object: event.regarding.unwrap_or_default(),
        reporting_component: event.reporting_controller,
        reporting_instance: event.reporting_instance,
        ..CoreEvent::default()
    }
}

// === impl Known ===

impl Known {
    /// The series that an event goes on, with this one counted in.
    fn repeated(&self, key: u64, now: Timestamp) -> Option<Series> {
        let series = self.series.get(&key).filter(|series| series.last + SERIES > now)?;
        Some(Series { count: series.count + 1, last: now, ..series.clone() })
    }

    fn remember(&mut self, key: u64, series: Series) {
        if self.series.insert(key, series).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > REMEMBERED {
            let oldest = self.order.pop_front();
            oldest.and_then(|oldest| self.series.remove(&oldest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(count: i32, last: Timestamp) -> Series {
        Series { name: "a".to_owned(), count, last }
    }

    #[test]
    fn an_event_is_repeated_for_some_minutes_and_then_it_is_a_new_one() {
        let mut known = Known::default();
        let begin = Timestamp::UNIX_EPOCH;
        assert!(known.repeated(1, begin).is_none());
        known.remember(1, series(1, begin));
        let again = known.repeated(1, begin + SERIES / 2).expect("a repetition");
        assert_eq!(again.count, 2);
        known.remember(1, again);
        assert_eq!(known.repeated(1, begin + SERIES).expect("still one").count, 3);
        assert!(known.repeated(1, begin + SERIES * 2).is_none());
    }

    #[test]
    fn what_is_remembered_has_an_end() {
        let mut known = Known::default();
        for key in 0..10_000 {
            known.remember(key, series(1, Timestamp::UNIX_EPOCH));
        }
        assert_eq!((known.series.len(), known.order.len()), (REMEMBERED, REMEMBERED));
        assert!(known.repeated(9_999, Timestamp::UNIX_EPOCH).is_some());
    }
}
