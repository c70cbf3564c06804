use super::{Case, NOW, case, sandbox, table};
use crate::{
    plan::StopReason,
    probe::result::{ProbeKind, ProbeResult},
    snapshot::SandboxState,
};

const DONE: &str = "i=exited:0 j=exited:0 k=exited:0";

fn three(policy: &str, records: &str) -> Case {
    case(policy, "i j k", "a b", records)
}

#[test]
fn init_containers_run_one_after_the_other() {
    table(vec![
        ("the first", three("Always", ""), "keep:s0 start:i"),
        ("it runs", three("Always", "i=running"), "keep:s0"),
        ("the next", three("Always", "i=exited:0"), "keep:s0 start:j"),
        ("the last runs", three("Always", "i=exited:0 j=exited:0 k=running"), "keep:s0"),
        ("all done", three("Always", DONE), "keep:s0 start:a start:b"),
        ("the last failed, Always", three("Always", "i=exited:0 j=exited:0 k=exited:1"), "keep:s0 start:k"),
        (
            "the last failed, OnFailure",
            three("OnFailure", "i=exited:0 j=exited:0 k=exited:1"),
            "keep:s0 start:k",
        ),
        ("the last failed, Never", three("Never", "i=exited:0 j=exited:0 k=exited:1"), "stop-all over"),
        ("unknown, Always", three("Always", "i=exited:0 j=unknown"), "stop:j-0 keep:s0 start:j"),
        ("unknown, Never", three("Never", "i=exited:0 j=unknown"), "stop-all over"),
        ("made, and not started", three("Never", "i=created"), "keep:s0 start:i"),
        ("records of earlier ones are gone", three("Always", "k=running"), "keep:s0"),
        (
            "records of earlier ones are gone, and it is done",
            three("Always", "k=exited:0"),
            "keep:s0 start:a start:b",
        ),
        ("no record is left, but a regular container runs", three("Always", "a=running"), "keep:s0 start:b"),
        (
            "no record is left, but a regular container is made",
            three("Always", "a=created"),
            "keep:s0 start:a start:b",
        ),
        (
            "a regular container that has ended proves nothing",
            three("Always", "a=exited:1"),
            "keep:s0 start:i",
        ),
        (
            "out of memory is a failure whatever the code",
            three("OnFailure", "i=exited:0")
                .with(|case| case.snapshot.containers[0].reason = "OOMKilled".to_owned()),
            "stop-all over",
        ),
    ]);
}

#[test]
fn a_new_sandbox_begins_with_the_first_init_container_and_without_old_records() {
    let stale = |case: &mut Case| {
        case.snapshot.sandboxes[0].state = SandboxState::NotReady;
        case.snapshot.sandboxes.insert(0, sandbox("s1", 1, NOW - 10));
    };
    table(vec![
        (
            "dead",
            three("Always", &format!("{DONE} a=running")).dead_sandbox(),
            "stop-all remove:i-0 remove:j-0 remove:k-0 create:1-for-s0 start:i",
        ),
        (
            "dead while a sidecar ran",
            case("OnFailure", "+s i", "a", "s=running i=exited:1").dead_sandbox(),
            "stop-all remove:s-0 remove:i-0 create:1-for-s0 start:s",
        ),
        ("dead, Never", three("Never", DONE).dead_sandbox(), "over"),
        (
            "dead, Never, nothing was ever made",
            three("Never", "").dead_sandbox(),
            "stop-all create:1-for-s0 start:i",
        ),
        (
            "dead, OnFailure, all regular ones succeeded",
            case("OnFailure", "i", "a", "i=exited:0 a=exited:0").dead_sandbox(),
            "over",
        ),
        (
            "records of the sandbox before that could not be removed count for nothing",
            three("Always", DONE).with(stale),
            "keep:s1 start:i",
        ),
        (
            "a container that was only made in the sandbox before counts for nothing",
            three("Always", "a=created").with(stale),
            "keep:s1 start:i",
        ),
    ]);
    let plan = three("Always", DONE).dead_sandbox().plan();
    assert_eq!(plan.start[0].restarts, Some(1), "it is a restart all the same");
    assert!(plan.remove.iter().all(|remove| !remove.keep_log));
}

#[test]
fn only_the_newest_dead_instance_of_an_init_container_stays() {
    table(vec![
        (
            "exited",
            three("Always", "i=exited:1 i=exited:1 i=exited:0 j=exited:1 j=running"),
            "remove:i-1 remove:i-0 keep:s0",
        ),
        (
            "also when the pod ends",
            case("Never", "i", "a", "i=exited:1 i=exited:0 a=exited:0"),
            "stop-all remove:i-0 over",
        ),
        (
            "regular ones are for the garbage",
            case("Always", "", "a", "a=exited:1 a=exited:1 a=running"),
            "keep:s0",
        ),
    ]);
}

#[test]
fn a_sidecar_lets_the_next_one_go_when_it_has_started() {
    let sidecars = |records| case("Always", "+s i +t", "a", records);
    let startup = |records, result| sidecars(records).probed("s", ProbeKind::Startup, result);
    table(vec![
        ("the first", sidecars(""), "keep:s0 start:s"),
        ("it runs", sidecars("s=running"), "keep:s0 start:i"),
        ("its startup probe has not run", startup("s=running", None), "keep:s0"),
        ("its startup probe does not know", startup("s=running", Some(ProbeResult::Unknown)), "keep:s0"),
        ("its startup probe is content", startup("s=running", Some(ProbeResult::Success)), "keep:s0 start:i"),
        (
            "its startup probe has failed",
            startup("s=running", Some(ProbeResult::Failure)),
            "stop:s-0 keep:s0 start:s",
        ),
        (
            "its liveness does not matter for the next",
            sidecars("s=running").probed("s", ProbeKind::Liveness, None),
            "keep:s0 start:i",
        ),
        (
            "it is restarted, and the next one starts",
            sidecars("s=running").probed("s", ProbeKind::Liveness, Some(ProbeResult::Failure)),
            "stop:s-0 keep:s0 start:s start:i",
        ),
        ("the last one runs", sidecars("s=running i=exited:0 t=running"), "keep:s0 start:a"),
        ("it has ended while the next one runs", sidecars("s=exited:0 i=running"), "keep:s0 start:s"),
        (
            "it has ended, and the next one has, too",
            sidecars("s=exited:0 i=exited:0"),
            "keep:s0 start:s start:t",
        ),
        ("made, and not started", sidecars("s=created"), "keep:s0 start:s"),
        ("unknown", sidecars("s=unknown"), "stop:s-0 keep:s0 start:s"),
    ]);
}

#[test]
fn sidecars_are_kept_running_as_long_as_the_pod_has_something_to_do() {
    let never = |records| case("Never", "+s +t", "a b", records);
    table(vec![
        ("restarted even with Never", never("s=exited:0 t=running a=running b=running"), "keep:s0 start:s"),
        ("its record is gone", never("t=running a=running b=running"), "keep:s0 start:s"),
        (
            "one regular container has ended",
            never("s=exited:1 t=running a=exited:0 b=running"),
            "keep:s0 start:s",
        ),
        (
            "all regular containers have ended",
            never("s=running t=running a=exited:0 b=exited:1"),
            "stop-all over",
        ),
        ("and it has, too", never("s=running t=exited:1 a=exited:0 b=exited:1"), "stop-all over"),
        (
            "the regular one waits for the last sidecar when both have ended",
            case("Always", "+s", "a", "s=exited:0 a=exited:0"),
            "keep:s0 start:s",
        ),
        (
            "liveness while the regular ones run",
            never("s=running t=running a=running b=running").probed(
                "s",
                ProbeKind::Liveness,
                Some(ProbeResult::Failure),
            ),
            "stop:s-0 keep:s0 start:s",
        ),
        (
            "another image",
            never("s=running t=running a=running b=running").with(|case| {
                case.any("t").image = Some("registry/image:2".to_owned());
            }),
            "stop:t-0 keep:s0 start:t",
        ),
    ]);
}

#[test]
fn a_sidecar_is_stopped_with_the_words_of_a_kubelet() {
    let failed = Some(ProbeResult::Failure);
    let sidecar = || case("Always", "+s", "a", "s=running a=running");
    let cases = vec![
        (
            sidecar().probed("s", ProbeKind::Liveness, failed),
            "Init container s failed liveness probe",
            StopReason::Liveness,
        ),
        (
            sidecar().probed("s", ProbeKind::Startup, failed),
            "Init container s failed startup probe",
            StopReason::Startup,
        ),
        (
            sidecar().with(|case| case.any("s").image = None),
            "Init container s definition changed",
            StopReason::Changed,
        ),
        (
            case("Always", "+s", "a", "s=unknown"),
            "Init container is in \"unknown\" state, try killing it before restart",
            StopReason::Unknown,
        ),
    ];
    for (case, message, why) in cases {
        let plan = case.plan();
        assert_eq!((&*plan.stop[0].message, plan.stop[0].reason), (message, why));
        assert_eq!(plan.start[0].name, "s");
    }
}
