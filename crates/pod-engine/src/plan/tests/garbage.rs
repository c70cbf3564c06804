use super::{Case, NOW, at, case, sandbox};
use crate::{plan::find_garbage, snapshot::SandboxState};

fn summary(case: &Case, pod_exists: bool) -> String {
    let garbage = find_garbage(pod_exists, &case.snapshot, at(NOW));
    let stop = garbage.stop.iter().map(|stop| format!("stop:{}", stop.id));
    let containers = garbage.containers.iter().map(|remove| format!("remove:{}", remove.id));
    let sandboxes = garbage.sandboxes.iter().map(|id| format!("sandbox:{id}"));
    stop.chain(containers).chain(sandboxes).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_newest_dead_instance_of_each_container_stays() {
    let case = case("Always", "", "a b", "a=exited:1 a=exited:1 b=exited:0 a=exited:1 a=running");
    assert_eq!(summary(&case, true), "remove:a-0 remove:a-1");
}

#[test]
fn what_may_run_is_stopped_before_it_goes_and_what_runs_stays() {
    let case = case("Always", "", "a b", "a=unknown a=exited:1 b=running");
    assert_eq!(summary(&case, true), "stop:a-0 remove:a-0");
    let plan = find_garbage(true, &case.snapshot, at(NOW));
    assert_eq!(plan.stop[0].message, "Container is in unknown state, try killing it before removal");
    assert_eq!(summary(&case, false), "stop:a-0 remove:a-0 remove:a-1", "b has to be stopped first");
}

#[test]
fn a_dead_sandbox_goes_when_it_holds_nothing_and_is_not_the_newest() {
    let two = |records: &str| {
        let mut case = case("Always", "", "a", records).dead_sandbox();
        case.snapshot.sandboxes.insert(0, sandbox("s1", 1, NOW - 10));
        case
    };
    assert_eq!(summary(&two(""), true), "sandbox:s0");
    assert_eq!(summary(&two("a=exited:1"), true), "", "the last record of a is in it");
    let mut replaced = two("a=exited:1");
    replaced.record("a=exited:1", "s1", NOW - 5);
    assert_eq!(summary(&replaced, true), "remove:a-0 sandbox:s0");
    assert_eq!(summary(&case("Always", "", "a", "").dead_sandbox(), true), "", "the newest stays");
}

#[test]
fn of_a_pod_that_is_gone_everything_dead_goes() {
    let mut case = case("Always", "", "a", "a=exited:1 a=exited:0");
    assert_eq!(summary(&case, false), "remove:a-0 remove:a-1", "a ready sandbox has to be stopped first");
    case.snapshot.sandboxes[0].state = SandboxState::NotReady;
    assert_eq!(summary(&case, false), "remove:a-0 remove:a-1 sandbox:s0");
}

#[test]
fn what_was_made_in_the_future_is_left_alone() {
    let mut case = case("Always", "", "a", "a=exited:1");
    case.record("a=exited:1", "s0", NOW + 10);
    assert_eq!(summary(&case, true), "", "the older one is the newest of the past");
}
