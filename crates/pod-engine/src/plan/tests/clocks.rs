//! The clock was set back between two instances.

use super::*;

#[test]
fn a_dead_predecessor_from_the_future_does_not_end_the_one_that_runs() {
    let stepped =
        case("Always", "", "app", "app=exited:1").with(|case| case.record("app=running", "s0", NOW - 5000));
    assert_eq!(stepped.snapshot.newest("app").map(|newest| newest.id.as_str()), Some("app-1"));
    assert_eq!(stepped.summary(), "keep:s0");
    let anew = case("Always", "", "app", "app=exited:1 app=exited:1").with(|case| {
        case.snapshot.sandboxes.push(sandbox("s1", 1, NOW - 6000));
        case.snapshot.sandboxes[0].state = SandboxState::NotReady;
        case.record("app=running", "s1", NOW - 5000);
    });
    assert_eq!(anew.summary(), "keep:s1");
}

#[test]
fn the_only_one_that_runs_in_the_sandbox_is_kept_whatever_came_after_it() {
    let odd = case("Always", "", "app", "app=running app=exited:1");
    assert_eq!(odd.summary(), "keep:s0");
    let ended = odd.with(|case| {
        let running = case.snapshot.containers.iter_mut().find(|record| record.id == "app-0").unwrap();
        running.state = ContainerState::Exited;
        running.exit_code = 1;
        running.finished = Some(at(NOW - 1));
        case.snapshot.sort();
        case.backoffs = CrashBackoffs::new(Duration::ZERO);
    });
    let start = ended.plan().start;
    assert_eq!(
        start.iter().map(|start| start.restarts).collect::<Vec<_>>(),
        [Some(2)],
        "a number of its own"
    );
}

#[test]
fn a_second_one_is_still_stopped() {
    let twice = case("Always", "", "app", "app=running app=running");
    assert_eq!(twice.summary(), "stop:app-0 keep:s0");
}

#[test]
fn containers_of_different_names_stay_in_the_order_of_their_creation() {
    let mut case = case("Always", "", "app other", "app=exited:1 other=exited:1 app=running other=running");
    let ids =
        |case: &Case| case.snapshot.containers.iter().map(|record| record.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&case), ["other-1", "app-1", "other-0", "app-0"]);
    // After the runtime lost its state, attempt numbers start again or continue from the logs.
    case.snapshot.containers.clear();
    case.record("other=running", "s0", NOW - 10);
    case.record("app=running", "s0", NOW - 20);
    assert_eq!(ids(&case), ["other-0", "app-0"]);
}
