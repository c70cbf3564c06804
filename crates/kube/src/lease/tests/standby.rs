//! Leader election between several replicas, and the write deadline that follows from a renewal.

use super::*;

const POLL_INTERVAL: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(30);

fn test() -> LeaseTest {
    LeaseTest::with_times(LeaseTimes {
        duration: DURATION,
        renew_deadline: DEADLINE,
        standby: Some(POLL_INTERVAL),
    })
}

fn held() -> LeaseTest {
    let mut test = test();
    test.read(Err(Kind::NotFound)).unwrap();
    test.write();
    test
}

/// A lease of another process with the given version and age.
fn theirs(version: &str, age: i64) -> Lease {
    let mut lease = lease(NODE, Some(ELSEWHERE), age);
    lease.metadata.resource_version = Some(version.to_owned());
    lease
}

impl LeaseTest {
    fn clocks(&self) -> Now {
        Now { elapsed: self.now, wall: self.wall() }
    }
}

#[test]
fn a_standby_waits_while_the_leader_renews() {
    let mut test = test();
    for round in 0..100 {
        test.read(Ok(theirs(&(round / 15).to_string(), 0))).unwrap();
        assert!(test.renewer.is_on_standby() && !test.renewer.may_write(test.clocks()));
        assert_eq!(test.due_in(), POLL_INTERVAL);
        test.wait(POLL_INTERVAL);
    }
}

#[test]
fn a_standby_takes_over_when_the_lease_did_not_change_for_its_duration_regardless_of_wall_clocks() {
    for age in [-7200, 0, 41, 7200] {
        let mut test = test();
        test.read(Ok(theirs("1", age + 10))).unwrap();
        test.wait(POLL_INTERVAL);
        test.read(Ok(theirs("2", age))).unwrap();
        let free = test.now + DURATION;
        loop {
            test.wait(POLL_INTERVAL);
            test.read(Ok(theirs("2", age))).unwrap();
            if test.now >= free {
                break;
            }
            assert!(test.renewer.is_on_standby(), "{age}: {:?}", test.now);
        }
        assert_eq!(test.write()["metadata"]["resourceVersion"], "2");
        assert!(test.renewer.is_held() && test.renewer.may_write(test.clocks()));
    }
}

#[test]
fn a_standby_takes_over_at_once_when_the_lease_is_released_or_the_leader_is_dead() {
    for found in [lease("", None, 1), lease(NODE, Some(&dead()), 1)] {
        let mut test = test();
        test.read(Ok(theirs("1", 0))).unwrap();
        test.wait(POLL_INTERVAL);
        test.read(Ok(found)).unwrap();
        test.write();
        assert!(test.renewer.is_held());
    }
}

#[test]
fn a_standby_waits_a_whole_duration_after_the_lease_object_was_deleted() {
    let mut test = test();
    test.read(Ok(theirs("1", 0))).unwrap();
    test.wait(POLL_INTERVAL);
    let free = test.now + DURATION;
    while test.now < free {
        test.read(Err(Kind::NotFound)).unwrap();
        assert!(test.renewer.is_on_standby(), "{:?}", test.now);
        test.wait(POLL_INTERVAL);
    }
    test.read(Err(Kind::NotFound)).unwrap();
    let body = test.write();
    assert!(body["metadata"].get("resourceVersion").is_none(), "{body}");

    // The leader is alive and creates the lease again.
    let mut test = self::test();
    test.read(Ok(theirs("1", 0))).unwrap();
    test.wait(POLL_INTERVAL);
    test.read(Err(Kind::NotFound)).unwrap();
    test.wait(DURATION);
    test.read(Ok(theirs("7", 0))).unwrap();
    assert!(test.renewer.is_on_standby());
}

#[test]
fn the_write_deadline_counts_from_when_the_renewal_was_sent() {
    let mut test = held();
    test.wait(DURATION / 4 + DURATION / 50);
    let sent = test.now;
    let call = test.start().expect("a renewal");
    // The response is slow.
    test.wait(Duration::from_secs(9));
    test.answer(&call, Ok(lease(NODE, Some(&Instance::current().to_string()), 0))).unwrap();
    assert_eq!(test.renewer.write_deadline().unwrap().elapsed, sent + DEADLINE);
    assert_eq!(test.renewer.expires_at(), Some(sent + DEADLINE));
    test.now = sent + DEADLINE * 99 / 100;
    assert!(test.renewer.may_write(test.clocks()) && !test.renewer.has_expired(test.clocks()));
    test.now = sent + DEADLINE;
    assert!(!test.renewer.may_write(test.clocks()) && test.renewer.has_expired(test.clocks()));
}

#[test]
fn a_failed_renewal_does_not_extend_the_write_deadline() {
    let mut test = held();
    let until = test.renewer.write_deadline();
    for kind in [Kind::Timeout, Kind::Server, Kind::Unreachable, Kind::Throttled, Kind::Conflict] {
        test.wait(test.due_in());
        let call = test.start().expect("a renewal");
        test.wait(Duration::from_secs(1));
        test.answer(&call, Err(kind)).unwrap();
        assert_eq!(test.renewer.write_deadline(), until, "{kind}");
    }
}

#[test]
fn the_write_deadline_also_ends_by_the_wall_clock() {
    // As after the machine was suspended.
    let test = held();
    let wall = test.wall() + DEADLINE;
    assert!(!test.renewer.may_write(Now { elapsed: test.now, wall }));
    assert!(test.renewer.has_expired(Now { elapsed: test.now, wall }));
}

#[test]
fn a_released_or_lost_lease_has_no_write_deadline() {
    let mut test = held();
    assert!(test.renewer.release(test.now, false).is_some());
    assert_eq!(test.renewer.write_deadline(), None, "cleared before others can see the released lease");

    let mut test = held();
    test.wait(DURATION / 2);
    let call = test.start().unwrap();
    test.answer(&call, Err(Kind::Conflict)).unwrap();
    test.read(Ok(theirs("8", 0))).unwrap_err();
    assert_eq!(test.renewer.write_deadline(), None);
}

#[test]
fn without_standby_the_write_deadline_ends_but_the_lease_is_still_renewed() {
    let mut test = LeaseTest::held();
    test.wait(DURATION);
    assert!(!test.renewer.may_write(test.clocks()));
    assert!(!test.renewer.has_expired(test.clocks()), "no other replica waits for it");
    test.write();
    assert!(test.renewer.may_write(test.clocks()));
}
