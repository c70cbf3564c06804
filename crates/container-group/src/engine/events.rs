//! The cloud's events as pod events: each once, also across restarts and changes of the leader.
//!
//! Clouds repeat their events with every answer. How far they were published is remembered in an annotation of the pod.

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use vk_provider::EventKind;

use crate::backend::GroupEvent;

/// The annotation that remembers how far events were published.
pub(super) const EVENTS_ANNOTATION: &str = "virtual-kubelet.io/group-events";

/// How far events were published: all before this time, and some of this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventMark {
    time: Timestamp,
    count: usize,
}

// === impl EventMark ===

impl EventMark {
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        Self::parse(pod.metadata.annotations.as_ref()?.get(EVENTS_ANNOTATION)?)
    }

    fn parse(text: &str) -> Option<Self> {
        let (time, count) = text.rsplit_once('/')?;
        Some(Self { time: time.parse().ok()?, count: count.parse().ok()? })
    }

    /// The events that were not published yet, oldest first, and the mark after them. Events without a time are left out.
    pub(super) fn select(mark: Option<Self>, mut events: Vec<GroupEvent>) -> (Vec<GroupEvent>, Option<Self>) {
        events.retain(|event| event.time.is_some());
        events.sort_by(|a, b| (a.time, &a.reason, &a.message).cmp(&(b.time, &b.reason, &b.message)));
        events.dedup();
        let mut mark = mark;
        // How many of the mark's time were published before.
        let mut published = mark.map_or(0, |mark| mark.count);
        let mut new = Vec::new();
        for event in events {
            let Some(time) = event.time else { continue };
            match &mut mark {
                Some(mark) if time < mark.time => continue,
                Some(mark) if time == mark.time => {
                    if published > 0 {
                        published -= 1;
                        continue;
                    }
                    mark.count += 1;
                }
                _ => {
                    published = 0;
                    mark = Some(Self { time, count: 1 });
                }
            }
            new.push(event);
        }
        (new, mark)
    }
}

impl fmt::Display for EventMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.time, self.count)
    }
}

/// The text of the newest warning.
pub(super) fn newest_warning(events: &[GroupEvent]) -> Option<String> {
    let warnings = events.iter().filter(|event| event.kind == EventKind::Warning);
    warnings.max_by_key(|event| event.time).map(|event| format!("{}: {}", event.reason, event.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(second: i64, reason: &str) -> GroupEvent {
        GroupEvent {
            time: Timestamp::from_second(second).ok(),
            kind: EventKind::Normal,
            reason: reason.to_owned(),
            message: String::new(),
            container: None,
        }
    }

    fn reasons(events: &[GroupEvent]) -> Vec<&str> {
        events.iter().map(|event| event.reason.as_str()).collect()
    }

    #[test]
    fn each_event_is_published_once_also_by_the_next_process() {
        let first = vec![event(2, "Pulled"), event(1, "Pulling"), event(2, "Created")];
        let (new, mark) = EventMark::select(None, first.clone());
        assert_eq!(reasons(&new), ["Pulling", "Created", "Pulled"]);
        let mark = EventMark::parse(&mark.unwrap().to_string());
        assert!(mark.is_some());
        let (new, mark) = EventMark::select(mark, first.clone());
        assert_eq!(reasons(&new), [""; 0]);
        let more = [first, vec![event(2, "Started"), event(3, "Killed")]].concat();
        let (new, _) = EventMark::select(mark, more);
        assert_eq!(reasons(&new), ["Started", "Killed"]);
    }

    #[test]
    fn events_that_the_cloud_has_forgotten_do_not_come_again() {
        let (_, mark) = EventMark::select(None, vec![event(5, "Started")]);
        let (new, after) = EventMark::select(mark, vec![event(4, "Pulled")]);
        assert!(new.is_empty() && after == mark);
    }
}
