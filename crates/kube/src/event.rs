//! Records Kubernetes events. A repeated event increments the count of its series.

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

/// An event that repeats within this time continues its series.
const SERIES_WINDOW: Duration = Duration::from_mins(6);

/// How many events are remembered for detecting repetitions.
const MAX_RECENT: usize = 1024;

/// Records events for one reporter. Clones share state.
#[derive(Clone)]
pub struct Recorder {
    client: Client,
    controller: Arc<str>,
    instance: Arc<str>,
    recent: Arc<Mutex<RecentEvents>>,
    /// Write to the core group, because events.k8s.io is forbidden.
    use_core_group: Arc<AtomicBool>,
    clock: Clock,
}

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Expected.
    Normal,
    /// Needs attention.
    Warning,
}

/// Events published recently.
#[derive(Default)]
struct RecentEvents {
    series: HashMap<u64, Series>,
    /// Keys, oldest first.
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
    /// A recorder that reports as `controller` on `instance`, the node.
    pub fn new(client: Client, controller: &str, instance: &str) -> Self {
        Self {
            client,
            controller: controller.into(),
            instance: instance.into(),
            recent: Arc::default(),
            use_core_group: Arc::default(),
            clock: Clock::system(),
        }
    }

    /// Publishes an event. If it cannot be written, it is logged and dropped.
    pub async fn publish(&self, about: &ObjectReference, severity: Severity, reason: &str, message: &str) {
        // The API server limits notes to 1 kB.
        let note: String = message.chars().take(1000).collect();
        let mut hasher = DefaultHasher::new();
        (&about.kind, &about.namespace, &about.name, &about.uid, &about.field_path).hash(&mut hasher);
        (severity, reason, &note).hash(&mut hasher);
        let key = hasher.finish();
        let now = self.clock.now();
        let repeated = self.recent.lock().next_in_series(key, now);
        let mut written = Err(Error::new(Kind::NotFound, "not written yet"));
        if let Some(series) = &repeated {
            written = self.count(about, series).await;
        }
        // The API server drops an event after an hour, and somebody may have deleted it.
        if written.as_ref().is_err_and(|error| error.kind == Kind::NotFound) {
            written = self.create(about, severity, reason, note, now).await;
        }
        match written {
            Ok(series) => self.recent.lock().remember(key, series),
            Err(error) => debug!(%error, reason, "event not written"),
        }
    }

    fn events(&self, about: &ObjectReference) -> Objects<Event> {
        Objects::namespaced(self.client.clone(), namespace(about))
    }

    /// The same events in the core group.
    fn core_events(&self, about: &ObjectReference) -> Objects<CoreEvent> {
        Objects::namespaced(self.client.clone(), namespace(about))
    }

    async fn count(&self, about: &ObjectReference, series: &Series) -> Result<Series, Error> {
        let body = json!({"series": {"count": series.count, "lastObservedTime": MicroTime(series.last)}});
        if self.use_core_group.load(Ordering::Relaxed) {
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

    /// Creates the event, in the core group if necessary: at least up to Kubernetes 1.33 nodes may write only there. The API server
    /// keeps events of both groups in one place.
    async fn send(&self, about: &ObjectReference, event: Event) -> Result<(), Error> {
        if !self.use_core_group.load(Ordering::Relaxed) {
            match self.events(about).create(&event).await {
                Err(error) if is_group_forbidden(&error) => {}
                answer => return answer.map(drop),
            }
        }
        self.core_events(about).create(&into_core_event(event)).await?;
        if !self.use_core_group.swap(true, Ordering::Relaxed) {
            debug!("events.k8s.io is forbidden: writing events to the core group");
        }
        Ok(())
    }
}

fn namespace(about: &ObjectReference) -> &str {
    about.namespace.as_deref().unwrap_or("default")
}

/// Whether the group is forbidden, as opposed to one namespace, which accepts no new objects while it terminates.
fn is_group_forbidden(error: &Error) -> bool {
    error.kind == Kind::Forbidden && !error.message.contains("being terminated")
}

fn into_core_event(event: Event) -> CoreEvent {
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

// === impl RecentEvents ===

impl RecentEvents {
    /// The series that this event continues, including it.
    fn next_in_series(&self, key: u64, now: Timestamp) -> Option<Series> {
        let series = self.series.get(&key).filter(|series| series.last + SERIES_WINDOW > now)?;
        Some(Series { count: series.count + 1, last: now, ..series.clone() })
    }

    fn remember(&mut self, key: u64, series: Series) {
        if self.series.insert(key, series).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > MAX_RECENT {
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
    fn a_repetition_within_the_window_continues_the_series() {
        let mut recent = RecentEvents::default();
        let begin = Timestamp::UNIX_EPOCH;
        assert!(recent.next_in_series(1, begin).is_none());
        recent.remember(1, series(1, begin));
        let again = recent.next_in_series(1, begin + SERIES_WINDOW / 2).expect("a repetition");
        assert_eq!(again.count, 2);
        recent.remember(1, again);
        assert_eq!(recent.next_in_series(1, begin + SERIES_WINDOW).expect("still one").count, 3);
        assert!(recent.next_in_series(1, begin + SERIES_WINDOW * 2).is_none());
    }

    #[test]
    fn the_number_of_remembered_events_is_bounded() {
        let mut recent = RecentEvents::default();
        for key in 0..10_000 {
            recent.remember(key, series(1, Timestamp::UNIX_EPOCH));
        }
        assert_eq!((recent.series.len(), recent.order.len()), (MAX_RECENT, MAX_RECENT));
        assert!(recent.next_in_series(9_999, Timestamp::UNIX_EPOCH).is_some());
    }
}
