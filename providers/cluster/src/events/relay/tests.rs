use std::collections::HashMap;

use parking_lot::Mutex;
use proptest::prelude::*;
use vk_provider::EventKind;

use super::*;

/// Our pods by their lower names, and the users of claims.
#[derive(Default)]
struct KnownPods {
    pods: Mutex<HashMap<(String, String), PodRef>>,
    users: Mutex<HashMap<String, Vec<PodRef>>>,
}

impl KnownPods {
    fn with(names: &[&str]) -> Self {
        let this = Self::default();
        for name in names {
            this.add(name);
        }
        this
    }

    fn add(&self, name: &str) {
        let key = (name.to_owned(), format!("lower-{name}"));
        self.pods.lock().insert(key, upper(name));
    }
}

impl PodLookup for KnownPods {
    fn upper_pod(&self, _namespace: &str, name: &str, uid: &str) -> Option<PodRef> {
        self.pods.lock().get(&(name.to_owned(), uid.to_owned())).cloned()
    }

    fn claim_users(&self, _namespace: &str, claim: &str) -> Vec<PodRef> {
        self.users.lock().get(claim).cloned().unwrap_or_default()
    }
}

fn upper(name: &str) -> PodRef {
    PodRef::new("shop", name, format!("upper-{name}"))
}

fn event(pod: &str, event: &str, version: u64, count: i32) -> LowerEvent {
    LowerEvent {
        uid: event.to_owned(),
        version,
        involved: InvolvedObject::Pod {
            namespace: "web".to_owned(),
            name: pod.to_owned(),
            uid: format!("lower-{pod}"),
        },
        count,
        container: None,
        kind: EventKind::Warning,
        reason: "BackOff".to_owned(),
        message: event.to_owned(),
    }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Feeds a relay a list.
fn listed(relay: &mut EventRelay, words: &[LowerEvent], now: Duration, pods: &KnownPods) -> Vec<String> {
    relay.begin_listing(0);
    let events =
        words.iter().flat_map(|event| relay.handle_event(now, 0, event.clone(), pods)).collect::<Vec<_>>();
    relay.finish_listing(0);
    events.into_iter().map(|event| event.message).collect()
}

#[test]
fn any_number_of_made_up_reasons_takes_a_bounded_amount_of_memory() {
    let pods = KnownPods::with(&["a"]);
    let mut relay = EventRelay::new(1);
    listed(&mut relay, &[], at(0), &pods);
    let mut relayed = 0;
    for number in 0..20_000 {
        let event =
            LowerEvent { reason: format!("Reason{number}"), ..event("a", &format!("e{number}"), number, 1) };
        relayed += relay.handle_event(at(1), 0, event, &pods).len();
    }
    assert_eq!(relay.buckets.len(), MAX_BUCKETS);
    assert_eq!(relayed, MAX_BUCKETS + BURST as usize, "the rest shares a bucket");
    let later = LowerEvent { reason: "Later".to_owned(), ..event("a", "later", 30_000, 1) };
    assert_eq!(relay.handle_event(at(100), 0, later, &pods).len(), 1);
    assert_eq!(relay.buckets.len(), 1, "those that are full again were dropped");
}

#[test]
fn events_before_the_start_are_not_relayed() {
    let pods = KnownPods::with(&["a"]);
    let mut relay = EventRelay::new(1);
    assert!(listed(&mut relay, &[event("a", "old", 5, 1)], at(0), &pods).is_empty());
    let events = relay.handle_event(at(1), 0, event("a", "new", 6, 1), &pods);
    assert_eq!((events.len(), &events[0].pod, events[0].message.as_str()), (1, &upper("a"), "new"));
    assert_eq!(relay.handle_event(at(2), 0, event("a", "old", 7, 2), &pods).len(), 1, "it happened again");
}

#[test]
fn after_a_broken_watch_only_missed_events_are_relayed() {
    let pods = KnownPods::with(&["a"]);
    let mut relay = EventRelay::new(1);
    listed(&mut relay, &[event("a", "old", 5, 1)], at(0), &pods);
    relay.handle_event(at(1), 0, event("a", "heard", 6, 1), &pods);
    let words = [event("a", "old", 5, 1), event("a", "heard", 6, 1), event("a", "missed", 7, 1)];
    // A list that is interrupted, and another one.
    relay.begin_listing(0);
    assert_eq!(relay.handle_event(at(2), 0, words[2].clone(), &pods).len(), 1);
    assert!(listed(&mut relay, &words, at(3), &pods).is_empty(), "events already");
    let words = [words.as_slice(), &[event("a", "later", 8, 1)]].concat();
    assert_eq!(listed(&mut relay, &words, at(4), &pods), ["later"]);
}

#[test]
fn after_an_empty_first_list_every_event_is_new() {
    let pods = KnownPods::with(&["a"]);
    let mut relay = EventRelay::new(1);
    listed(&mut relay, &[], at(0), &pods);
    assert_eq!(listed(&mut relay, &[event("a", "new", 5, 1)], at(1), &pods), ["new"]);
}

#[test]
fn events_of_a_restored_api_server_are_relayed() {
    let pods = KnownPods::with(&["a"]);
    let mut relay = EventRelay::new(1);
    listed(&mut relay, &[event("a", "old", 500, 1)], at(0), &pods);
    listed(&mut relay, &[event("a", "older", 100, 1)], at(1), &pods);
    assert_eq!(listed(&mut relay, &[event("a", "new", 101, 1)], at(2), &pods), ["new"]);
}

#[test]
fn only_events_of_our_pods_are_relayed() {
    let pods = KnownPods::with(&["a"]);
    let mut relay = EventRelay::new(1);
    listed(&mut relay, &[], at(0), &pods);
    assert!(relay.handle_event(at(1), 0, event("theirs", "e1", 5, 1), &pods).is_empty());
    let mut namesake = event("a", "e2", 6, 1);
    namesake.involved =
        InvolvedObject::Pod { namespace: "web".to_owned(), name: "a".to_owned(), uid: "another".to_owned() };
    assert!(relay.handle_event(at(1), 0, namesake, &pods).is_empty());
    assert!(relay.tick(at(2), &pods).is_empty());
    assert!(relay.tick(at(60), &pods).is_empty());
    assert_eq!(relay.deadline(), None, "nothing waits for ever");
}

#[test]
fn an_event_waits_for_its_pod() {
    let pods = KnownPods::default();
    let mut relay = EventRelay::new(1);
    listed(&mut relay, &[], at(0), &pods);
    assert!(relay.handle_event(at(1), 0, event("a", "Scheduled", 5, 1), &pods).is_empty());
    assert!(relay.tick(relay.deadline().unwrap(), &pods).is_empty());
    pods.add("a");
    let events = relay.tick(relay.deadline().unwrap(), &pods);
    assert_eq!((events.len(), events[0].message.as_str()), (1, "Scheduled"));
    assert_eq!(relay.deadline(), None);
}

#[test]
fn a_repeated_event_is_relayed_with_growing_delay() {
    let pods = KnownPods::with(&["a"]);
    let mut relay = EventRelay::new(1);
    listed(&mut relay, &[], at(0), &pods);
    let mut times = Vec::new();
    for second in 0..3600_u64 {
        // It happens every ten seconds and is observed every second.
        let count = i32::try_from(second / 10).unwrap() + 1;
        if !relay.handle_event(at(second), 0, event("a", "e", second + 1, count), &pods).is_empty() {
            times.push(second);
        }
    }
    assert_eq!(times, [0, 60, 180, 420, 900, 1500, 2100, 2700, 3300]);
    let later = |relay: &mut EventRelay, second, count| {
        relay.handle_event(at(second), 0, event("a", "e", second, count), &pods).len()
    };
    assert_eq!(later(&mut relay, 7200, 361), 1, "it happened meanwhile");
    assert_eq!(later(&mut relay, 9000, 361), 0, "written, and not happened");
}

#[test]
fn the_rate_is_limited_per_pod_and_reason() {
    let pods = KnownPods::with(&["a", "b"]);
    let mut relay = EventRelay::new(1);
    listed(&mut relay, &[], at(0), &pods);
    let flood = |relay: &mut EventRelay, now, from: u64| {
        let words = (from..from + 1000).map(|version| event("a", &format!("e{version}"), version, 1));
        words.flat_map(|event| relay.handle_event(now, 0, event, &pods)).count()
    };
    assert_eq!(flood(&mut relay, at(0), 1), BURST as usize);
    assert_eq!(flood(&mut relay, at(90), 2000), 3);
    let mut other = event("a", "other", 5000, 1);
    other.reason = "Unhealthy".to_owned();
    assert_eq!(relay.handle_event(at(90), 0, other, &pods).len(), 1);
    assert_eq!(relay.handle_event(at(90), 0, event("b", "e", 5001, 1), &pods).len(), 1);
}

#[test]
fn an_event_of_a_claim_is_relayed_to_all_its_pods() {
    let pods = KnownPods::default();
    let mut relay = EventRelay::new(1);
    listed(&mut relay, &[], at(0), &pods);
    let mut of_claim = event("", "ProvisioningFailed", 5, 1);
    of_claim.involved = InvolvedObject::Claim { namespace: "web".to_owned(), name: "data".to_owned() };
    // The claim is created before the pod.
    assert!(relay.handle_event(at(1), 0, of_claim.clone(), &pods).is_empty());
    pods.users.lock().insert("data".to_owned(), vec![upper("a"), upper("b")]);
    let events = relay.tick(relay.deadline().unwrap(), &pods);
    assert_eq!(events.iter().map(|event| &event.pod).collect::<Vec<_>>(), [&upper("a"), &upper("b")]);
    // A pod that is added later gets the next occurrence, and the others not before their delay has passed.
    pods.users.lock().get_mut("data").unwrap().push(upper("c"));
    let again = LowerEvent { count: 2, version: 6, ..of_claim };
    let events = relay.handle_event(at(5), 0, again, &pods);
    assert_eq!(events.iter().map(|event| &event.pod).collect::<Vec<_>>(), [&upper("c")]);
}

#[test]
fn memory_is_bounded() {
    let pods = KnownPods::default();
    let mut relay = EventRelay::new(1);
    listed(&mut relay, &[], at(0), &pods);
    for version in 1..=20_000 {
        relay.handle_event(at(1), 0, event("theirs", &format!("e{version}"), version, 1), &pods);
    }
    assert_eq!(relay.waiting.len(), MAX_WAITING);
    let mut now = at(100);
    for number in 0..20_000_u64 {
        let name = format!("p{number}");
        pods.add(&name);
        now += Duration::from_millis(100);
        assert_eq!(relay.handle_event(now, 0, event(&name, &name, 30_000 + number, 1), &pods).len(), 1);
    }
    assert!(relay.sent.last.len() <= MAX_SENT && relay.sent.order.len() <= MAX_SENT);
    assert!(relay.buckets.len() <= MAX_BUCKETS, "{}", relay.buckets.len());
}

/// What happens to the events of a lower cluster and to their watch.
#[derive(Clone, Debug)]
enum Happens {
    /// An event is written about our pod or another one.
    Said(bool),
    /// An old event is deleted.
    Expired,
    /// The watch breaks, and this many events are written before it is back. Its first list is interrupted after this many events.
    Broke(u8, Option<u8>),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        4 => any::<bool>().prop_map(Happens::Said),
        1 => Just(Happens::Expired),
        2 => (0..4_u8, proptest::option::of(0..6_u8)).prop_map(|(said, off)| Happens::Broke(said, off)),
    ]
}

proptest! {
    #[test]
    fn whatever_becomes_of_the_watch_each_event_of_ours_since_the_beginning_is_told_once(
        before in 0..5_u64,
        all in proptest::collection::vec(happens(), 0..40),
    ) {
        let pods = KnownPods::with(&["a"]);
        let mut relay = EventRelay::new(1);
        let mut version = 100;
        // The events on the server, in its own order.
        let mut there: Vec<LowerEvent> = Vec::new();
        let mut say = |there: &mut Vec<LowerEvent>, ours: bool| {
            version += 1;
            let said = LowerEvent {
                reason: format!("R{}", version % 7),
                ..event(if ours { "a" } else { "theirs" }, &format!("e{version}"), version, 1)
            };
            there.insert(usize::try_from(version * 7919).unwrap() % (there.len() + 1), said.clone());
            said
        };
        let (mut wanted, mut events) = (Vec::new(), Vec::new());
        for _ in 0..before {
            say(&mut there, true);
        }
        events.extend(listed(&mut relay, &there, at(0), &pods));
        for one in all {
            match one {
                Happens::Said(ours) => {
                    let said = say(&mut there, ours);
                    wanted.extend(ours.then(|| said.message.clone()));
                    events.extend(relay.handle_event(at(1), 0, said, &pods).into_iter().map(|event| event.message));
                }
                Happens::Expired => {
                    // The oldest first, as on a real server.
                    let oldest = there.iter().map(|event| event.version).min();
                    there.retain(|event| Some(event.version) != oldest);
                }
                Happens::Broke(number, off) => {
                    for _ in 0..number {
                        wanted.push(say(&mut there, true).message);
                    }
                    if let Some(off) = off {
                        relay.begin_listing(0);
                        let part = there.iter().take(off.into()).cloned();
                        let part: Vec<_> = part.flat_map(|event| relay.handle_event(at(1), 0, event, &pods)).collect();
                        events.extend(part.into_iter().map(|event| event.message));
                    }
                    events.extend(listed(&mut relay, &there, at(1), &pods));
                }
            }
        }
        wanted.sort();
        events.sort();
        prop_assert_eq!(events, wanted);
    }
}
