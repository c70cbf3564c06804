//! A lease that several replicas want, and the permit that it gives.

use super::*;

const LOOK: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(30);

fn bench() -> Bench {
    Bench::on(Terms { duration: LIFE, renew_deadline: DEADLINE, standby: Some(LOOK) })
}

fn held() -> Bench {
    let mut bench = bench();
    bench.read(Err(Kind::NotFound)).unwrap();
    bench.write();
    bench
}

/// Somebody else's lease in one of its versions, with whatever time on it.
fn theirs(version: &str, age: i64) -> Lease {
    let mut lease = lease(NODE, Some(ELSEWHERE), age);
    lease.metadata.resource_version = Some(version.to_owned());
    lease
}

impl Bench {
    fn clocks(&self) -> Now {
        Now { elapsed: self.now, wall: self.wall() }
    }
}

#[test]
fn a_standby_waits_as_long_as_the_leader_renews() {
    let mut bench = bench();
    for round in 0..100 {
        bench.read(Ok(theirs(&(round / 15).to_string(), 0))).unwrap();
        assert!(bench.renewer.is_standing_by() && !bench.renewer.permits(bench.clocks()));
        assert_eq!(bench.due_in(), LOOK);
        bench.wait(LOOK);
    }
}

#[test]
fn a_standby_takes_over_when_the_lease_did_not_change_for_its_duration_whatever_the_clocks_say() {
    for age in [-7200, 0, 41, 7200] {
        let mut bench = bench();
        bench.read(Ok(theirs("1", age + 10))).unwrap();
        bench.wait(LOOK);
        bench.read(Ok(theirs("2", age))).unwrap();
        let free = bench.now + LIFE;
        loop {
            bench.wait(LOOK);
            bench.read(Ok(theirs("2", age))).unwrap();
            if bench.now >= free {
                break;
            }
            assert!(bench.renewer.is_standing_by(), "{age}: {:?}", bench.now);
        }
        assert_eq!(bench.write()["metadata"]["resourceVersion"], "2");
        assert!(bench.renewer.is_held() && bench.renewer.permits(bench.clocks()));
    }
}

#[test]
fn a_standby_takes_over_at_once_when_the_lease_is_given_back_or_its_leader_is_dead() {
    for found in [lease("", None, 1), lease(NODE, Some(&dead()), 1)] {
        let mut bench = bench();
        bench.read(Ok(theirs("1", 0))).unwrap();
        bench.wait(LOOK);
        bench.read(Ok(found)).unwrap();
        bench.write();
        assert!(bench.renewer.is_held());
    }
}

#[test]
fn a_standby_whose_leader_lost_the_lease_object_waits_for_its_whole_duration() {
    let mut bench = bench();
    bench.read(Ok(theirs("1", 0))).unwrap();
    bench.wait(LOOK);
    let free = bench.now + LIFE;
    while bench.now < free {
        bench.read(Err(Kind::NotFound)).unwrap();
        assert!(bench.renewer.is_standing_by(), "{:?}", bench.now);
        bench.wait(LOOK);
    }
    bench.read(Err(Kind::NotFound)).unwrap();
    let body = bench.write();
    assert!(body["metadata"].get("resourceVersion").is_none(), "{body}");

    // The leader is alive and creates it again.
    let mut bench = self::bench();
    bench.read(Ok(theirs("1", 0))).unwrap();
    bench.wait(LOOK);
    bench.read(Err(Kind::NotFound)).unwrap();
    bench.wait(LIFE);
    bench.read(Ok(theirs("7", 0))).unwrap();
    assert!(bench.renewer.is_standing_by());
}

#[test]
fn a_permit_counts_from_when_the_renewal_was_sent() {
    let mut bench = held();
    bench.wait(LIFE / 4 + LIFE / 50);
    let sent = bench.now;
    let call = bench.start().expect("a renewal");
    // The answer takes its time.
    bench.wait(Duration::from_secs(9));
    bench.answer(&call, Ok(lease(NODE, Some(&Instance::this().to_string()), 0))).unwrap();
    assert_eq!(bench.renewer.permit().unwrap().elapsed, sent + DEADLINE);
    assert_eq!(bench.renewer.lapse(), Some(sent + DEADLINE));
    bench.now = sent + DEADLINE * 99 / 100;
    assert!(bench.renewer.permits(bench.clocks()) && !bench.renewer.has_lapsed(bench.clocks()));
    bench.now = sent + DEADLINE;
    assert!(!bench.renewer.permits(bench.clocks()) && bench.renewer.has_lapsed(bench.clocks()));
}

#[test]
fn a_failed_renewal_does_not_prolong_the_permit() {
    let mut bench = held();
    let until = bench.renewer.permit();
    for kind in [Kind::Timeout, Kind::Server, Kind::Unreachable, Kind::Throttled, Kind::Conflict] {
        bench.wait(bench.due_in());
        let call = bench.start().expect("a renewal");
        bench.wait(Duration::from_secs(1));
        bench.answer(&call, Err(kind)).unwrap();
        assert_eq!(bench.renewer.permit(), until, "{kind}");
    }
}

#[test]
fn a_permit_ends_when_the_wall_clock_says_so_before_the_steady_one() {
    // As after a machine was suspended.
    let bench = held();
    let wall = bench.wall() + DEADLINE;
    assert!(!bench.renewer.permits(Now { elapsed: bench.now, wall }));
    assert!(bench.renewer.has_lapsed(Now { elapsed: bench.now, wall }));
}

#[test]
fn a_lease_that_is_given_back_or_lost_gives_no_permit_any_more() {
    let mut bench = held();
    assert!(bench.renewer.release(bench.now, false).is_some());
    assert_eq!(bench.renewer.permit(), None, "before anybody can see that it is free");

    let mut bench = held();
    bench.wait(LIFE / 2);
    let call = bench.start().unwrap();
    bench.answer(&call, Err(Kind::Conflict)).unwrap();
    bench.read(Ok(theirs("8", 0))).unwrap_err();
    assert_eq!(bench.renewer.permit(), None);
}

#[test]
fn where_there_is_to_be_one_process_the_permit_ends_and_the_lease_is_renewed_all_the_same() {
    let mut bench = Bench::held();
    bench.wait(LIFE);
    assert!(!bench.renewer.permits(bench.clocks()));
    assert!(!bench.renewer.has_lapsed(bench.clocks()), "nobody else waits for it");
    bench.write();
    assert!(bench.renewer.permits(bench.clocks()));
}
