mod standby;

use rand::SeedableRng as _;

use super::{claim::LOOK_PERIOD, *};

const NODE: &str = "node";
const LIFE: Duration = Duration::from_secs(40);
const WALL: &str = "2026-01-01T00:10:00Z";
const ELSEWHERE: &str = "elsewhere/boot/pid:[1]/4711/1";

struct Bench {
    renewer: Renewer,
    now: Duration,
    rng: StdRng,
}

impl Bench {
    fn new() -> Self {
        Self::on(Terms { duration: LIFE, renew_deadline: LIFE / 2, standby: None })
    }

    fn on(terms: Terms) -> Self {
        let renewer = Renewer::new(NODE.to_owned(), Instance::this(), terms);
        Self { renewer, now: Duration::ZERO, rng: StdRng::seed_from_u64(7) }
    }

    fn wall(&self) -> Timestamp {
        WALL.parse::<Timestamp>().unwrap() + self.now
    }

    fn start(&mut self) -> Option<LeaseCall> {
        self.renewer.start(self.now, self.wall())
    }

    fn answer(&mut self, call: &LeaseCall, answer: Result<Lease, Kind>) -> Result<(), Taken> {
        let wall = self.wall();
        let answer = answer.map(Some).map_err(|kind| Error::new(kind, "no"));
        self.renewer.answered(self.now, wall, call, answer, &mut self.rng)
    }

    /// Makes the call that is due, which must be a read.
    fn read(&mut self, answer: Result<Lease, Kind>) -> Result<(), Taken> {
        assert_eq!(self.start(), Some(LeaseCall::Read));
        self.answer(&LeaseCall::Read, answer)
    }

    /// Makes the call that is due, which must write, and lets the server take it.
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
        let mut bench = Self::new();
        bench.read(Err(Kind::NotFound)).unwrap();
        bench.write();
        assert!(bench.renewer.is_held());
        bench
    }

    fn due_in(&self) -> Duration {
        self.renewer.deadline().unwrap().saturating_sub(self.now)
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
    let this = Instance::this().to_string();
    let (rest, start) = this.rsplit_once('/').unwrap();
    format!("{rest}/{}", start.parse::<u64>().unwrap() + 1)
}

#[test]
fn a_lease_that_is_not_there_is_created_and_then_held() {
    let mut bench = Bench::new();
    bench.read(Err(Kind::NotFound)).unwrap();
    assert!(!bench.renewer.is_held());
    let body = bench.write();
    assert_eq!(body["spec"]["holderIdentity"], NODE);
    assert_eq!(body["spec"]["leaseDurationSeconds"], 40);
    assert_eq!(body["metadata"]["annotations"][INSTANCE_ANNOTATION], Instance::this().to_string());
    assert!(body["metadata"].get("resourceVersion").is_none(), "{body}");
    assert!(bench.renewer.is_held());
}

#[test]
fn a_free_lease_is_taken_at_once_under_its_version() {
    let (this, gone) = (Instance::this().to_string(), dead());
    for (why, found) in [
        ("released", lease("", None, 1)),
        ("ours", lease(NODE, Some(&this), 1)),
        ("of a dead process", lease(NODE, Some(&gone), 1)),
        ("expired", lease(NODE, Some(ELSEWHERE), 41)),
        ("expired, and nobody's we know", lease(NODE, None, 41)),
    ] {
        let mut bench = Bench::new();
        bench.read(Ok(found)).unwrap();
        assert!(!bench.renewer.is_held() || why == "ours", "{why}");
        let body = bench.write();
        assert_eq!(body["metadata"]["resourceVersion"], "5", "{why}");
        assert!(bench.renewer.is_held(), "{why}");
    }
}

#[test]
fn a_lease_without_a_time_is_free_only_after_its_duration() {
    let mut bench = Bench::new();
    let mut found = lease(NODE, Some(ELSEWHERE), 0);
    found.spec.as_mut().unwrap().renew_time = None;
    bench.read(Ok(found.clone())).unwrap();
    assert!(!bench.renewer.is_held());
    bench.wait(LOOK_PERIOD);
    bench.read(Ok(found)).unwrap();
    bench.write();
    assert!(bench.renewer.is_held());
}

#[test]
fn a_holder_that_renews_is_left_alone() {
    let mut bench = Bench::new();
    bench.read(Ok(lease(NODE, Some(ELSEWHERE), 5))).unwrap();
    for _ in 0..4 {
        bench.wait(LOOK_PERIOD);
        bench.read(Ok(lease(NODE, Some(ELSEWHERE), 5))).unwrap();
        assert!(!bench.renewer.is_held());
    }
    bench.wait(LOOK_PERIOD);
    let taken = bench.read(Ok(lease(NODE, Some(ELSEWHERE), -5))).unwrap_err();
    assert_eq!(taken, Taken::InUse { node: NODE.into(), holder: "process 4711 on host elsewhere".into() });
}

#[test]
fn a_holder_that_does_not_renew_is_succeeded_after_its_duration_and_not_before() {
    let mut bench = Bench::new();
    bench.read(Ok(lease(NODE, Some(ELSEWHERE), 10))).unwrap();
    while bench.now < Duration::from_secs(29) {
        bench.wait(LOOK_PERIOD);
        bench.read(Ok(lease(NODE, Some(ELSEWHERE), 10))).unwrap();
        assert_ne!(bench.renewer.state, State::Ours, "{:?}", bench.now);
    }
    bench.wait(LOOK_PERIOD);
    bench.read(Ok(lease(NODE, Some(ELSEWHERE), 10))).unwrap();
    bench.write();
    assert!(bench.renewer.is_held());
}

#[test]
fn a_holder_whose_clock_is_ahead_is_waited_for_no_longer_than_its_duration() {
    let mut bench = Bench::new();
    bench.read(Ok(lease(NODE, Some(ELSEWHERE), -3600))).unwrap();
    bench.wait(LIFE);
    bench.read(Ok(lease(NODE, Some(ELSEWHERE), -3600))).unwrap();
    bench.write();
    assert!(bench.renewer.is_held());
}

#[test]
fn whoever_is_faster_in_taking_a_free_lease_has_it() {
    let mut bench = Bench::new();
    bench.read(Ok(lease("", None, 1))).unwrap();
    let call = bench.start().unwrap();
    bench.answer(&call, Err(Kind::Conflict)).unwrap();
    bench.read(Ok(lease(NODE, Some(ELSEWHERE), 0))).unwrap();
    assert!(!bench.renewer.is_held());

    let mut bench = Bench::new();
    bench.read(Err(Kind::NotFound)).unwrap();
    let call = bench.start().unwrap();
    bench.answer(&call, Err(Kind::AlreadyExists)).unwrap();
    bench.wait(Duration::from_secs(1));
    bench.read(Ok(lease(NODE, Some(ELSEWHERE), 0))).unwrap();
    assert!(!bench.renewer.is_held());
}

#[test]
fn a_lease_that_another_process_took_is_lost() {
    let mut bench = Bench::held();
    bench.wait(LIFE);
    let call = bench.start().unwrap();
    bench.answer(&call, Err(Kind::Conflict)).unwrap();
    assert!(!bench.renewer.is_held(), "not before it was looked at");
    let taken = bench.read(Ok(lease(NODE, Some(ELSEWHERE), 0))).unwrap_err();
    assert_eq!(taken, Taken::Lost { node: NODE.into(), holder: "process 4711 on host elsewhere".into() });
}

#[test]
fn a_lease_that_somebody_touched_is_renewed_all_the_same() {
    let mut bench = Bench::held();
    bench.wait(LIFE);
    let call = bench.start().unwrap();
    bench.answer(&call, Err(Kind::Conflict)).unwrap();
    let mut touched = lease(NODE, Some(&Instance::this().to_string()), 0);
    touched.metadata.resource_version = Some("77".into());
    bench.read(Ok(touched)).unwrap();
    assert_eq!(bench.write()["metadata"]["resourceVersion"], "77");
}

#[test]
fn a_lease_that_vanished_is_created_again_at_once() {
    let mut bench = Bench::held();
    bench.renewer.owned_by("node-uid", bench.now);
    bench.write();
    bench.wait(LIFE / 2);
    let call = bench.start().unwrap();
    assert!(matches!(call, LeaseCall::Renew(_)));
    bench.answer(&call, Err(Kind::NotFound)).unwrap();
    let call = bench.start().unwrap();
    let LeaseCall::Create(body) = &call else { panic!("{call:?}") };
    assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], "node-uid");
    assert!(body["metadata"].get("resourceVersion").is_none(), "{body}");
}

#[test]
fn the_lease_is_renewed_four_times_in_its_life() {
    let mut bench = Bench::held();
    for _ in 0..50 {
        let wait = bench.due_in();
        assert!((LIFE / 4..LIFE / 4 + LIFE / 100).contains(&wait), "{wait:?}");
        assert_eq!(bench.start(), None);
        bench.wait(wait);
        bench.write();
    }
}

#[test]
fn a_new_node_owns_the_lease_at_once_and_other_owners_stay() {
    let mut bench = Bench::held();
    bench.renewer.owned_by("first", bench.now);
    assert_eq!(bench.renewer.deadline(), Some(bench.now));
    assert_eq!(bench.write()["metadata"]["ownerReferences"][0]["uid"], "first");
    bench.renewer.owned_by("first", bench.now);
    assert_eq!(bench.start(), None);

    let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "theirs"});
    let owners = &mut bench.renewer.seen.as_mut().unwrap().metadata.owner_references;
    owners.as_mut().unwrap().push(serde_json::from_value(other).unwrap());
    bench.renewer.owned_by("second", bench.now);
    let body = bench.write();
    let owners: Vec<&str> = body["metadata"]["ownerReferences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|owner| owner["uid"].as_str().unwrap())
        .collect();
    assert_eq!(owners, ["theirs", "second"]);
    assert_eq!(bench.start(), None, "the server has it");
}

#[test]
fn failures_are_repeated_within_the_life_of_the_lease_and_without_haste() {
    let mut bench = Bench::held();
    bench.wait(LIFE / 3);
    let mut waits = Vec::new();
    for _ in 0..30 {
        let call = bench.start().expect("a renewal");
        bench.answer(&call, Err(Kind::Unreachable)).unwrap();
        assert!(bench.renewer.is_held(), "nobody else has it");
        let wait = bench.due_in();
        waits.push(wait);
        bench.wait(wait);
    }
    assert!(waits[0] <= Duration::from_millis(200), "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= LIFE / 6), "{waits:?}");
    assert!(waits[20..].iter().all(|wait| *wait >= LIFE / 12), "{waits:?}");
    bench.write();
    assert!(bench.due_in() >= LIFE / 4);
}

#[test]
fn only_what_is_held_is_given_back() {
    let mut bench = Bench::new();
    assert_eq!(bench.renewer.release(bench.now, false), None);
    assert!(bench.renewer.is_released());

    let mut bench = Bench::new();
    bench.read(Ok(lease(NODE, Some(ELSEWHERE), 0))).unwrap();
    assert_eq!(bench.renewer.release(bench.now, true), None);
    assert!(bench.renewer.is_released());

    let mut bench = Bench::held();
    let call = bench.renewer.release(bench.now, false).unwrap();
    let LeaseCall::Release(body) = &call else { panic!("{call:?}") };
    assert_eq!(body["metadata"]["resourceVersion"], "9");
    assert!(body["spec"]["holderIdentity"].is_null());
    bench.answer(&call, Err(Kind::Unreachable)).unwrap();
    assert!(!bench.renewer.is_released());
    assert_eq!(bench.renewer.release(bench.now, false), None, "not at once");
    bench.wait(Duration::from_secs(1));
    let again = bench.renewer.release(bench.now, false).unwrap();
    bench.answer(&again, Ok(lease("", None, 0))).unwrap();
    assert!(bench.renewer.is_released());
    assert_eq!(bench.renewer.deadline(), None);

    let mut bench = Bench::held();
    let call = bench.renewer.release(bench.now, true).unwrap();
    assert_eq!(call, LeaseCall::Delete { uid: "lease-uid".into() });
    bench.answer(&call, Err(Kind::NotFound)).unwrap();
    assert!(bench.renewer.is_released());
}
