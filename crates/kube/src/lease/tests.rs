mod standby;

use rand::SeedableRng as _;

use super::{acquisition::POLL_PERIOD, *};

const NODE: &str = "node";
const DURATION: Duration = Duration::from_secs(40);
const WALL: &str = "2026-01-01T00:10:00Z";
const ELSEWHERE: &str = "elsewhere/boot/pid:[1]/4711/1";

struct LeaseTest {
    renewer: Renewer,
    now: Duration,
    rng: StdRng,
}

impl LeaseTest {
    fn new() -> Self {
        Self::with_times(LeaseTimes { duration: DURATION, renew_deadline: DURATION / 2, standby: None })
    }

    fn with_times(times: LeaseTimes) -> Self {
        let renewer = Renewer::new(LeaseLock::Node(NODE.to_owned()), Instance::current(), times);
        Self { renewer, now: Duration::ZERO, rng: StdRng::seed_from_u64(7) }
    }

    fn wall(&self) -> Timestamp {
        WALL.parse::<Timestamp>().unwrap() + self.now
    }

    fn start(&mut self) -> Option<LeaseCall> {
        self.renewer.start(self.now, self.wall())
    }

    fn answer(&mut self, call: &LeaseCall, answer: Result<Lease, Kind>) -> Result<(), LeaseConflict> {
        let wall = self.wall();
        let answer = answer.map(Some).map_err(|kind| Error::new(kind, "no"));
        self.renewer.on_answer(self.now, wall, call, answer, &mut self.rng)
    }

    /// Makes the due call, which must be a read.
    fn read(&mut self, answer: Result<Lease, Kind>) -> Result<(), LeaseConflict> {
        assert_eq!(self.start(), Some(LeaseCall::Read));
        self.answer(&LeaseCall::Read, answer)
    }

    /// Makes the due call, which must be a write, and answers it with success.
    fn write(&mut self) -> Value {
        let call = self.start().expect("a call");
        let (LeaseCall::Create(body) | LeaseCall::Renew(body)) = &call else { panic!("{call:?}") };
        let mut taken = body.clone();
        taken["metadata"]["resourceVersion"] = json!("9");
        taken["metadata"]["uid"] = json!("lease-uid");
        self.answer(&call, Ok(serde_json::from_value(taken).unwrap())).unwrap();
        body.clone()
    }

    fn held() -> Self {
        let mut test = Self::new();
        test.read(Err(Kind::NotFound)).unwrap();
        test.write();
        assert!(test.renewer.is_held());
        test
    }

    fn due_in(&self) -> Duration {
        self.renewer.next_deadline().unwrap().saturating_sub(self.now)
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
    }
}

/// A lease that was last renewed `age` seconds before [`WALL`].
fn lease(holder: &str, instance: Option<&str>, age: i64) -> Lease {
    let renewed = WALL.parse::<Timestamp>().unwrap() - jiff::SignedDuration::from_secs(age);
    let annotations = instance.map(|instance| json!({INSTANCE_ANNOTATION: instance}));
    serde_json::from_value(json!({
        "metadata": {"name": NODE, "resourceVersion": "5", "annotations": annotations},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 40, "renewTime": micros(renewed)},
    }))
    .unwrap()
}

fn dead() -> String {
    let this = Instance::current().to_string();
    let (rest, start) = this.rsplit_once('/').unwrap();
    format!("{rest}/{}", start.parse::<u64>().unwrap() + 1)
}

#[test]
fn a_missing_lease_is_created_and_then_held() {
    let mut test = LeaseTest::new();
    test.read(Err(Kind::NotFound)).unwrap();
    assert!(!test.renewer.is_held());
    let body = test.write();
    assert_eq!(body["spec"]["holderIdentity"], NODE);
    assert_eq!(body["spec"]["leaseDurationSeconds"], 40);
    assert_eq!(body["metadata"]["annotations"][INSTANCE_ANNOTATION], Instance::current().to_string());
    assert!(body["metadata"].get("resourceVersion").is_none(), "{body}");
    assert!(test.renewer.is_held());
}

#[test]
fn a_free_lease_is_acquired_at_once_with_its_version_as_precondition() {
    let (this, gone) = (Instance::current().to_string(), dead());
    for (why, found) in [
        ("released", lease("", None, 1)),
        ("ours", lease(NODE, Some(&this), 1)),
        ("of a dead process", lease(NODE, Some(&gone), 1)),
        ("expired", lease(NODE, Some(ELSEWHERE), 41)),
        ("expired, without an instance annotation", lease(NODE, None, 41)),
    ] {
        let mut test = LeaseTest::new();
        test.read(Ok(found)).unwrap();
        assert!(!test.renewer.is_held() || why == "ours", "{why}");
        let body = test.write();
        assert_eq!(body["metadata"]["resourceVersion"], "5", "{why}");
        assert!(test.renewer.is_held(), "{why}");
    }
}

#[test]
fn a_lease_without_a_renew_time_is_free_only_after_its_duration() {
    let mut test = LeaseTest::new();
    let mut found = lease(NODE, Some(ELSEWHERE), 0);
    found.spec.as_mut().unwrap().renew_time = None;
    test.read(Ok(found.clone())).unwrap();
    assert!(!test.renewer.is_held());
    test.wait(POLL_PERIOD);
    test.read(Ok(found)).unwrap();
    test.write();
    assert!(test.renewer.is_held());
}

#[test]
fn a_lease_that_is_renewed_by_its_holder_is_a_conflict() {
    let mut test = LeaseTest::new();
    test.read(Ok(lease(NODE, Some(ELSEWHERE), 5))).unwrap();
    for _ in 0..4 {
        test.wait(POLL_PERIOD);
        test.read(Ok(lease(NODE, Some(ELSEWHERE), 5))).unwrap();
        assert!(!test.renewer.is_held());
    }
    test.wait(POLL_PERIOD);
    let conflict = test.read(Ok(lease(NODE, Some(ELSEWHERE), -5))).unwrap_err();
    assert_eq!(
        conflict,
        LeaseConflict::InUse {
            lock: LeaseLock::Node(NODE.into()),
            holder: "process 4711 on host elsewhere".into()
        }
    );
}

#[test]
fn a_lease_that_is_not_renewed_is_acquired_after_its_duration_and_not_before() {
    let mut test = LeaseTest::new();
    test.read(Ok(lease(NODE, Some(ELSEWHERE), 10))).unwrap();
    while test.now < Duration::from_secs(29) {
        test.wait(POLL_PERIOD);
        test.read(Ok(lease(NODE, Some(ELSEWHERE), 10))).unwrap();
        assert_ne!(test.renewer.state, State::Ours, "{:?}", test.now);
    }
    test.wait(POLL_PERIOD);
    test.read(Ok(lease(NODE, Some(ELSEWHERE), 10))).unwrap();
    test.write();
    assert!(test.renewer.is_held());
}

#[test]
fn a_holder_whose_clock_is_ahead_delays_us_by_at_most_the_lease_duration() {
    let mut test = LeaseTest::new();
    test.read(Ok(lease(NODE, Some(ELSEWHERE), -3600))).unwrap();
    test.wait(DURATION);
    test.read(Ok(lease(NODE, Some(ELSEWHERE), -3600))).unwrap();
    test.write();
    assert!(test.renewer.is_held());
}

#[test]
fn a_lost_race_for_a_free_lease_leaves_it_to_the_winner() {
    let mut test = LeaseTest::new();
    test.read(Ok(lease("", None, 1))).unwrap();
    let call = test.start().unwrap();
    test.answer(&call, Err(Kind::Conflict)).unwrap();
    test.read(Ok(lease(NODE, Some(ELSEWHERE), 0))).unwrap();
    assert!(!test.renewer.is_held());

    let mut test = LeaseTest::new();
    test.read(Err(Kind::NotFound)).unwrap();
    let call = test.start().unwrap();
    test.answer(&call, Err(Kind::AlreadyExists)).unwrap();
    test.wait(Duration::from_secs(1));
    test.read(Ok(lease(NODE, Some(ELSEWHERE), 0))).unwrap();
    assert!(!test.renewer.is_held());
}

#[test]
fn a_lease_that_another_process_acquired_is_lost() {
    let mut test = LeaseTest::held();
    test.wait(DURATION);
    let call = test.start().unwrap();
    test.answer(&call, Err(Kind::Conflict)).unwrap();
    assert!(!test.renewer.is_held(), "not before it was read again");
    let conflict = test.read(Ok(lease(NODE, Some(ELSEWHERE), 0))).unwrap_err();
    assert_eq!(
        conflict,
        LeaseConflict::Lost {
            lock: LeaseLock::Node(NODE.into()),
            holder: "process 4711 on host elsewhere".into()
        }
    );
}

#[test]
fn a_lease_that_was_edited_by_others_is_still_renewed() {
    let mut test = LeaseTest::held();
    test.wait(DURATION);
    let call = test.start().unwrap();
    test.answer(&call, Err(Kind::Conflict)).unwrap();
    let mut touched = lease(NODE, Some(&Instance::current().to_string()), 0);
    touched.metadata.resource_version = Some("77".into());
    test.read(Ok(touched)).unwrap();
    assert_eq!(test.write()["metadata"]["resourceVersion"], "77");
}

#[test]
fn a_deleted_lease_is_created_again_at_once() {
    let mut test = LeaseTest::held();
    test.renewer.set_owner("node-uid", test.now);
    test.write();
    test.wait(DURATION / 2);
    let call = test.start().unwrap();
    assert!(matches!(call, LeaseCall::Renew(_)));
    test.answer(&call, Err(Kind::NotFound)).unwrap();
    let call = test.start().unwrap();
    let LeaseCall::Create(body) = &call else { panic!("{call:?}") };
    assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], "node-uid");
    assert!(body["metadata"].get("resourceVersion").is_none(), "{body}");
}

#[test]
fn the_lease_is_renewed_four_times_per_duration() {
    let mut test = LeaseTest::held();
    for _ in 0..50 {
        let wait = test.due_in();
        assert!((DURATION / 4..DURATION / 4 + DURATION / 100).contains(&wait), "{wait:?}");
        assert_eq!(test.start(), None);
        test.wait(wait);
        test.write();
    }
}

#[test]
fn a_new_node_owns_the_lease_at_once_and_other_owners_stay() {
    let mut test = LeaseTest::held();
    test.renewer.set_owner("first", test.now);
    assert_eq!(test.renewer.next_deadline(), Some(test.now));
    assert_eq!(test.write()["metadata"]["ownerReferences"][0]["uid"], "first");
    test.renewer.set_owner("first", test.now);
    assert_eq!(test.start(), None);

    let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "theirs"});
    let owners = &mut test.renewer.lease.as_mut().unwrap().metadata.owner_references;
    owners.as_mut().unwrap().push(serde_json::from_value(other).unwrap());
    test.renewer.set_owner("second", test.now);
    let body = test.write();
    let owners: Vec<&str> = body["metadata"]["ownerReferences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|owner| owner["uid"].as_str().unwrap())
        .collect();
    assert_eq!(owners, ["theirs", "second"]);
    assert_eq!(test.start(), None, "the server already has it");
}

#[test]
fn failed_renewals_are_retried_with_backoff_within_the_lease_duration() {
    let mut test = LeaseTest::held();
    test.wait(DURATION / 3);
    let mut waits = Vec::new();
    for _ in 0..30 {
        let call = test.start().expect("a renewal");
        test.answer(&call, Err(Kind::Unreachable)).unwrap();
        assert!(test.renewer.is_held(), "no other process has it");
        let wait = test.due_in();
        waits.push(wait);
        test.wait(wait);
    }
    assert!(waits[0] <= Duration::from_millis(200), "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= DURATION / 6), "{waits:?}");
    assert!(waits[20..].iter().all(|wait| *wait >= DURATION / 12), "{waits:?}");
    test.write();
    assert!(test.due_in() >= DURATION / 4);
}

#[test]
fn only_a_held_lease_is_released() {
    let mut test = LeaseTest::new();
    assert_eq!(test.renewer.release(test.now, false), None);
    assert!(test.renewer.is_released());

    let mut test = LeaseTest::new();
    test.read(Ok(lease(NODE, Some(ELSEWHERE), 0))).unwrap();
    assert_eq!(test.renewer.release(test.now, true), None);
    assert!(test.renewer.is_released());

    let mut test = LeaseTest::held();
    let call = test.renewer.release(test.now, false).unwrap();
    let LeaseCall::Release(body) = &call else { panic!("{call:?}") };
    assert_eq!(body["metadata"]["resourceVersion"], "9");
    assert!(body["spec"]["holderIdentity"].is_null());
    test.answer(&call, Err(Kind::Unreachable)).unwrap();
    assert!(!test.renewer.is_released());
    assert_eq!(test.renewer.release(test.now, false), None, "not at once");
    test.wait(Duration::from_secs(1));
    let again = test.renewer.release(test.now, false).unwrap();
    test.answer(&again, Ok(lease("", None, 0))).unwrap();
    assert!(test.renewer.is_released());
    assert_eq!(test.renewer.next_deadline(), None);

    let mut test = LeaseTest::held();
    let call = test.renewer.release(test.now, true).unwrap();
    assert_eq!(call, LeaseCall::Delete { uid: "lease-uid".into() });
    test.answer(&call, Err(Kind::NotFound)).unwrap();
    assert!(test.renewer.is_released());
}

#[test]
fn a_server_that_asks_for_patience_does_not_cost_the_lease() {
    let mut test = LeaseTest::held();
    test.wait(DURATION / 4 + Duration::from_secs(1));
    let call = test.start().expect("a renewal");
    let busy = Error { retry_after: Some(Duration::from_secs(3)), ..Error::new(Kind::Throttled, "later") };
    let wall = test.wall();
    test.renewer.on_answer(test.now, wall, &call, Err(busy), &mut test.rng).unwrap();
    assert!(test.due_in() >= Duration::from_secs(3), "{:?}", test.due_in());
    test.wait(test.due_in());
    let call = test.start().expect("another attempt");
    let busy = Error { retry_after: Some(Duration::from_hours(1)), ..Error::new(Kind::Throttled, "later") };
    let wall = test.wall();
    test.renewer.on_answer(test.now, wall, &call, Err(busy), &mut test.rng).unwrap();
    assert!(test.due_in() <= DURATION / 4 + Duration::from_secs(1), "{:?}", test.due_in());
}
