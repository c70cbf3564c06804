//! The cloud's events as pod events: each once, also across restarts and changes of the leader.
//!
//! Clouds repeat their events with every answer. How far they were published is remembered in an annotation of the pod.

use std::{collections::BTreeSet, fmt};

use aws_lc_rs::digest::{SHA256, digest};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use vk_provider::EventKind;

use crate::{backend::GroupEvent, identity};

/// The annotation that remembers how far events were published.
pub(super) const EVENTS_ANNOTATION: &str = "virtual-kubelet.io/group-events";

/// How far events were published: all before this time, and some of this time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventMark {
    time: Timestamp,
    /// The events of this time that were published, as short hashes.
    published: BTreeSet<String>,
    /// How many were published, as earlier versions wrote it: the first ones in their order.
    count: usize,
}

/// So many events of one second are published at most: what a cloud says does not fill the pod.
const MOST_AT_ONCE: usize = 200;
/// What a hash begins with, so that it is no number.
const HASH: char = 'h';
/// The bytes of a hash: enough for the events of one pod in one second.
const HASH_BYTES: usize = 5;

// === impl EventMark ===

impl EventMark {
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        Self::parse(pod.metadata.annotations.as_ref()?.get(EVENTS_ANNOTATION)?)
    }

    fn parse(text: &str) -> Option<Self> {
        let (time, events) = text.rsplit_once('/')?;
        let time = time.parse().ok()?;
        if let Ok(count) = events.parse() {
            return Some(Self { time, published: BTreeSet::new(), count });
        }
        let published = events.split(',').map(|hash| hash.strip_prefix(HASH).map(str::to_owned));
        Some(Self { time, published: published.collect::<Option<_>>()?, count: 0 })
    }

    /// The events that were not published yet, oldest first, and the mark after them. Events without a time are left out. An event may
    /// appear after others of the same second, which is all that clouds say.
    pub(super) fn select(mark: Option<Self>, mut events: Vec<GroupEvent>) -> (Vec<GroupEvent>, Option<Self>) {
        events.retain(|event| event.time.is_some());
        events.sort_by(|a, b| (a.time, &a.reason, &a.message).cmp(&(b.time, &b.reason, &b.message)));
        events.dedup();
        let mut mark = mark;
        let mut new = Vec::new();
        for event in events {
            let Some(time) = event.time else { continue };
            match &mut mark {
                Some(mark) if time < mark.time => continue,
                Some(mark) if time == mark.time => {
                    let counted = mark.count > 0;
                    mark.count = mark.count.saturating_sub(1);
                    if mark.published.len() >= MOST_AT_ONCE || !mark.published.insert(hash(&event)) || counted
                    {
                        continue;
                    }
                }
                _ => mark = Some(Self { time, published: [hash(&event)].into(), count: 0 }),
            }
            new.push(event);
        }
        // A count is of use once: these events have hashes now.
        if let Some(mark) = mark.as_mut().filter(|mark| !mark.published.is_empty()) {
            mark.count = 0;
        }
        (new, mark)
    }
}

fn hash(event: &GroupEvent) -> String {
    let GroupEvent { reason, message, container, .. } = event;
    let text = format!("{reason}\n{message}\n{}", container.as_deref().unwrap_or_default());
    identity::base32(&digest(&SHA256, text.as_bytes()).as_ref()[..HASH_BYTES])
}

impl fmt::Display for EventMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.time)?;
        if self.published.is_empty() {
            return write!(f, "{}", self.count);
        }
        for (at, hash) in self.published.iter().enumerate() {
            let separator = if at == 0 { "" } else { "," };
            write!(f, "{separator}{HASH}{hash}")?;
        }
        Ok(())
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
        let (new, after) = EventMark::select(mark.clone(), vec![event(4, "Pulled")]);
        assert!(new.is_empty() && after == mark);
    }

    #[test]
    fn events_of_one_second_that_appear_later_are_published_and_none_twice() {
        let (new, mark) = EventMark::select(None, vec![event(5, "Pulled")]);
        assert_eq!(reasons(&new), ["Pulled"]);
        let mark = EventMark::parse(&mark.unwrap().to_string());
        let all = vec![event(5, "Created"), event(5, "Pulled"), event(5, "Started")];
        let (new, mark) = EventMark::select(mark, all.clone());
        assert_eq!(reasons(&new), ["Created", "Started"]);
        assert_eq!(reasons(&EventMark::select(mark, all).0), [""; 0]);
    }

    #[test]
    fn a_flood_of_events_does_not_fill_the_pod() {
        let flood: Vec<_> = (0..10_000).map(|number| event(5, &format!("Event{number}"))).collect();
        let (new, mark) = EventMark::select(None, flood.clone());
        let mark = mark.unwrap();
        assert_eq!((new.len(), mark.to_string().len() < 4096), (MOST_AT_ONCE, true));
        assert_eq!(reasons(&EventMark::select(Some(mark), flood).0), [""; 0]);
    }

    #[test]
    fn marks_of_earlier_versions_are_understood() {
        let time = Timestamp::from_second(5).unwrap();
        let mark = EventMark::parse(&format!("{time}/2"));
        let all = vec![event(5, "Created"), event(5, "Pulled"), event(5, "Started")];
        let (new, mark) = EventMark::select(mark, all.clone());
        assert_eq!(reasons(&new), ["Started"]);
        let mark = EventMark::parse(&mark.unwrap().to_string());
        assert_eq!(reasons(&EventMark::select(mark, all).0), [""; 0]);
    }
}
