use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{NOW, at, case, sandbox, table};
use crate::{
    containers::spec_hash,
    plan::{RemoveContainer, SandboxPlan, StopReason, active_deadline, should_restart},
    probe::result::{ProbeKind, ProbeResult},
    snapshot::SandboxState,
};

const RUNNING: &str = "a=running b=running c=running";

#[test]
fn containers_are_started_and_restarted_as_the_policy_says() {
    table(vec![
        ("all is well", case("Always", "", "a b c", RUNNING), "keep:s0"),
        ("some are missing", case("Always", "", "a b c", "b=running"), "keep:s0 start:a start:c"),
        (
            "Always restarts what has ended",
            case("Always", "", "a b c", "a=exited:0 b=exited:111 c=running"),
            "keep:s0 start:a start:b",
        ),
        (
            "OnFailure restarts what has failed",
            case("OnFailure", "", "a b c", "a=exited:0 b=exited:111 c=running"),
            "keep:s0 start:b",
        ),
        (
            "what was made and not started is made again",
            case("OnFailure", "", "a b c", "a=exited:0 b=created c=running"),
            "keep:s0 start:b",
        ),
        ("Never restarts nothing", case("Never", "", "a b c", "a=exited:0 b=exited:1 c=running"), "keep:s0"),
        ("Never: created", case("Never", "", "a b", "a=created b=running"), "keep:s0 start:a"),
        ("Never: all ended", case("Never", "", "a b", "a=exited:0 b=exited:1"), "stop-all over"),
        ("OnFailure: all succeeded", case("OnFailure", "", "a b", "a=exited:0 b=exited:0"), "stop-all over"),
        (
            "only the newest instance counts",
            case("OnFailure", "", "a", "a=exited:1 a=exited:0"),
            "stop-all over",
        ),
        (
            "unknown: stopped before it is restarted, whatever the policy",
            case("Never", "", "a b", "a=running b=unknown"),
            "stop:b-0 keep:s0 start:b",
        ),
        (
            "a second live instance is stopped, the newer one stays",
            case("Always", "", "a", "a=running a=running"),
            "stop:a-0 keep:s0",
        ),
    ]);
}

#[test]
fn a_sandbox_is_made_anew_when_it_must_be() {
    let no_address = |case: &mut super::Case| case.snapshot.sandboxes[0].ips.clear();
    let second = |case: &mut super::Case| case.snapshot.sandboxes.insert(0, sandbox("s1", 4, NOW - 10));
    table(vec![
        (
            "a new pod",
            case("Always", "", "a b", "").with(|case| case.snapshot.sandboxes.clear()),
            "create:0 start:a start:b",
        ),
        (
            "dead, Always",
            case("Always", "", "a b", "a=exited:0 b=running").dead_sandbox(),
            "stop-all create:1-for-s0 start:a start:b",
        ),
        (
            "dead, OnFailure: what has succeeded is not done twice",
            case("OnFailure", "", "a b", "a=exited:0 b=exited:1").dead_sandbox(),
            "stop-all create:1-for-s0 start:b",
        ),
        (
            "dead, OnFailure, all succeeded",
            case("OnFailure", "", "a b", "a=exited:0 b=exited:0").dead_sandbox(),
            "over",
        ),
        ("dead, Never", case("Never", "", "a b", "a=exited:0 b=exited:137").dead_sandbox(), "over"),
        (
            "dead, Never, one still called running",
            case("Never", "", "a b", "a=exited:0 b=running").dead_sandbox(),
            "stop-all over",
        ),
        (
            "dead, Never, nothing was ever made",
            case("Never", "", "a b", "").dead_sandbox(),
            "stop-all create:1-for-s0 start:a start:b",
        ),
        (
            "no address",
            case("Always", "", "a", "a=running").with(no_address),
            "stop-all create:1-for-s0 start:a",
        ),
        (
            "no address of its own is fine with the host's network",
            case("Always", "", "a", "a=running").with(no_address).with(|case| {
                case.snapshot.sandboxes[0].host_network = true;
                case.spec().host_network = Some(true);
            }),
            "keep:s0",
        ),
        (
            "another network is wanted, and nobody is told",
            case("Always", "", "a", "a=running").with(|case| case.spec().host_network = Some(true)),
            "stop-all create:1 start:a",
        ),
        (
            "two are ready",
            case("Always", "", "a", "a=running").with(second),
            "stop-all create:5-for-s1 start:a",
        ),
        (
            "the ready one is not the newest",
            case("Always", "", "a", "a=running").with(second).with(|case| {
                case.snapshot.sandboxes[0].state = SandboxState::NotReady;
            }),
            "stop-all create:5-for-s1 start:a",
        ),
        (
            "an old dead one does not matter",
            case("Always", "", "a", "").with(second).with(|case| {
                case.snapshot.sandboxes[1].state = SandboxState::NotReady;
                case.record("a=running", "s1", NOW - 5);
            }),
            "keep:s1",
        ),
        (
            "what succeeded in the sandbox before stays done",
            case("OnFailure", "", "a b", "a=exited:0").with(second).with(|case| {
                case.snapshot.sandboxes[1].state = SandboxState::NotReady;
                case.record("b=running", "s1", NOW - 5);
            }),
            "keep:s1",
        ),
        (
            "what still runs in the sandbox before is stopped, and started where it belongs",
            case("Always", "", "a", "a=running").with(second).with(|case| {
                case.snapshot.sandboxes[1].state = SandboxState::NotReady;
            }),
            "stop:a-0 keep:s1 start:a",
        ),
    ]);
}

#[test]
fn a_running_container_is_stopped_with_the_words_of_a_kubelet() {
    let failed = Some(ProbeResult::Failure);
    let cases = vec![
        (
            case("Always", "", "a", "a=running").probed("a", ProbeKind::Liveness, failed),
            "Container a failed liveness probe, will be restarted",
            StopReason::Liveness,
        ),
        (
            case("OnFailure", "", "a", "a=running").probed("a", ProbeKind::Startup, failed),
            "Container a failed startup probe, will be restarted",
            StopReason::Startup,
        ),
        (
            case("Never", "", "a b", "a=running b=running").probed("a", ProbeKind::Liveness, failed),
            "Container a failed liveness probe",
            StopReason::Liveness,
        ),
        (
            case("Never", "", "a", "a=running")
                .with(|case| case.any("a").image = Some("registry/image:2".to_owned())),
            "Container a definition changed, will be restarted",
            StopReason::Changed,
        ),
        (
            case("Always", "", "a", "a=unknown"),
            "Container is in \"unknown\" state, try killing it before restart",
            StopReason::Unknown,
        ),
    ];
    for (case, message, why) in cases {
        let plan = case.plan();
        assert_eq!((&*plan.stop[0].message, plan.stop[0].reason), (message, why));
        assert_eq!(plan.stop.len(), 1);
        assert_eq!(plan.start.len(), usize::from(message.contains("restart")), "{message}");
    }
}

#[test]
fn a_failed_probe_of_the_last_container_of_a_pod_that_never_restarts_ends_the_pod() {
    let failed = Some(ProbeResult::Failure);
    table(vec![
        (
            "alone",
            case("Never", "", "a", "a=running").probed("a", ProbeKind::Liveness, failed),
            "stop-all over",
        ),
        (
            "beside one that has ended",
            case("Never", "", "a b", "a=running b=exited:0").probed("a", ProbeKind::Startup, failed),
            "stop-all over",
        ),
        (
            "beside one that runs",
            case("Never", "", "a b", "a=running b=running").probed("a", ProbeKind::Startup, failed),
            "stop:a-0 keep:s0",
        ),
        (
            "readiness stops nobody",
            case("Never", "", "a", "a=running").probed("a", ProbeKind::Readiness, failed),
            "keep:s0",
        ),
        (
            "the result on an instance before it does not count",
            case("Always", "", "a", "a=exited:0").probed("a", ProbeKind::Liveness, failed).with(|case| {
                case.record("a=running", "s0", NOW - 5);
            }),
            "keep:s0",
        ),
    ]);
}

#[test]
fn containers_have_policies_and_rules_of_their_own() {
    table(vec![
        (
            "Always in a pod with Never",
            case("Never", "", "a b c", "a=exited:0 b=exited:3 c=running")
                .policy_of("a", "Always")
                .policy_of("b", "Always"),
            "keep:s0 start:a start:b",
        ),
        (
            "OnFailure in a pod with Never",
            case("Never", "", "a b", "a=exited:0 b=exited:3")
                .policy_of("a", "OnFailure")
                .policy_of("b", "OnFailure"),
            "keep:s0 start:b",
        ),
        (
            "Never in a pod with Always",
            case("Always", "", "a b", "a=exited:0 b=running").policy_of("a", "Never"),
            "keep:s0",
        ),
        (
            "a rule restarts",
            case("Never", "", "a b", "a=exited:42 b=running").policy_of("a", "Never").rule(
                "a",
                "Restart",
                "In",
                &[42],
            ),
            "keep:s0 start:a",
        ),
        (
            "a rule that does not match",
            case("Never", "", "a b", "a=exited:42 b=running").policy_of("a", "Never").rule(
                "a",
                "Restart",
                "NotIn",
                &[42],
            ),
            "keep:s0",
        ),
        (
            "OnFailure of its own counts in a new sandbox",
            case("Always", "", "a b", "a=exited:0 b=exited:0").policy_of("a", "OnFailure").dead_sandbox(),
            "stop-all create:1-for-s0 start:b",
        ),
        (
            "an init container that may fail once more in a pod with Never",
            case("Never", "i", "a", "i=exited:3").policy_of("i", "OnFailure"),
            "keep:s0 start:i",
        ),
    ]);
    let case = case("Sometimes", "", "a", "");
    assert!(should_restart(&case.pod, &super::spec("a"), 0), "an unknown policy is the default one");
}

#[test]
fn a_rule_can_restart_all_and_whoever_said_so_goes_last() {
    let mut case =
        case("Always", "i +s", "a b", "i=exited:0 s=running a=exited:9 b=exited:0 a=exited:1 b=running")
            .policy_of("a", "Never")
            .rule("a", "RestartAllContainers", "In", &[1]);
    let plan = case.plan();
    let stopped: Vec<_> = plan.stop.iter().map(|stop| (&*stop.id, &*stop.message, stop.reason)).collect();
    assert_eq!(
        stopped,
        [("b-1", "killing", StopReason::RestartAll), ("s-0", "killing", StopReason::RestartAll)]
    );
    let ids = ["a-0", "b-1", "b-0", "i-0", "s-0", "a-1"];
    assert_eq!(plan.remove, ids.map(|id| RemoveContainer { id: id.to_owned(), keep_log: true }));
    assert_eq!(plan.sandbox, SandboxPlan::Keep("s0".to_owned()));
    assert!(plan.start.is_empty());
    assert_eq!(plan.next_deadline, Some(case.now), "they are started right after");
    case.snapshot.containers.retain(|container| container.id == "a-1");
    assert_eq!(case.summary(), "remove:a-1 keep:s0", "it goes on after a crash of ours");
    case.snapshot.containers.clear();
    assert_eq!(case.summary(), "keep:s0 start:i");
    assert_eq!(case.plan().start[0].restarts, None, "the logs have its restart count");
}

#[test]
fn nothing_starts_in_a_pod_that_is_deleted_finished_or_past_its_deadline() {
    let phase = |phase: &str| {
        let phase = phase.to_owned();
        move |case: &mut super::Case| case.status().phase = Some(phase)
    };
    let started = |ago: i64| {
        move |case: &mut super::Case| {
            case.status().start_time = Some(Time(at(NOW - ago)));
            case.spec().active_deadline_seconds = Some(60);
        }
    };
    let empty = |case: &mut super::Case| case.snapshot = crate::Snapshot::default();
    table(vec![
        ("deleted", case("Always", "i", "a", "i=exited:0 a=exited:1").deleted(), "stop-all over"),
        ("deleted, nothing is there", case("Always", "", "a", "").with(empty).deleted(), "over"),
        ("deleted, the sandbox is dead", case("Always", "", "a", "").dead_sandbox().deleted(), "over"),
        (
            "Succeeded, and forgotten by the runtime",
            case("Always", "", "a", "").with(empty).with(phase("Succeeded")),
            "over",
        ),
        (
            "Failed, and something runs",
            case("Always", "", "a", "a=running").with(phase("Failed")),
            "stop-all over",
        ),
        (
            "Running, and forgotten by the runtime",
            case("Always", "", "a", "").with(empty).with(phase("Running")),
            "create:0 start:a",
        ),
        ("before its deadline", case("Always", "", "a", "a=running").with(started(59)), "keep:s0"),
        ("at its deadline", case("Always", "", "a", "a=running").with(started(60)), "stop-all over"),
    ]);
    let case = case("Always", "", "a", "a=running").with(started(10));
    assert_eq!(case.plan().next_deadline, Some(at(NOW + 50)));
    assert_eq!(active_deadline(&case.pod), Some(at(NOW + 50)));
}

#[test]
fn ephemeral_containers_are_started_once_and_before_all_others() {
    table(vec![
        ("new", case("Always", "", "a", "a=running").ephemeral("e"), "keep:s0 start:e"),
        ("before others", case("Always", "", "a", "").ephemeral("e"), "keep:s0 start:e start:a"),
        (
            "while initialisation goes on",
            case("Always", "i", "a", "i=running").ephemeral("e"),
            "keep:s0 start:e",
        ),
        ("ended", case("Always", "", "a", "a=running e=exited:1").ephemeral("e"), "keep:s0"),
        ("unknown", case("Always", "", "a", "a=running e=unknown").ephemeral("e"), "keep:s0"),
        (
            "keeps no pod alive",
            case("Never", "", "a", "a=exited:0 e=running").ephemeral("e"),
            "stop-all over",
        ),
        ("not in a pod that ends", case("Never", "", "a", "a=exited:0").ephemeral("e"), "stop-all over"),
        (
            "waits for a new sandbox",
            case("Always", "", "a", "").ephemeral("e").dead_sandbox(),
            "stop-all create:1-for-s0 start:a",
        ),
    ]);
}

#[test]
fn restarts_are_counted_from_the_newest_instance_or_else_from_the_logs() {
    let case = case("Always", "", "a b", "a=exited:1 a=exited:1");
    let plan = case.plan();
    let counts: Vec<_> = plan.start.iter().map(|start| start.restarts.unwrap_or(4)).collect();
    assert_eq!(counts, [2, 4]);
}

#[test]
fn the_hash_is_that_of_a_kubelet_and_only_name_and_image_count() {
    let mut container = super::spec("test_container");
    container.image = Some("foo/image:v1".to_owned());
    container.args = Some(vec!["/bin/sh".to_owned()]);
    assert_eq!(spec_hash(&container), 0x8e45_cbd0);
    let mut container = super::spec("foo");
    container.image = Some("bar".to_owned());
    assert_eq!(spec_hash(&container), 0x11a6_d6d6);
}

#[test]
fn a_container_that_does_not_say_what_it_was_made_from_has_not_changed() {
    let case = case("Always", "", "a", "a=running").with(|case| {
        case.snapshot.containers[0].annotations.clear();
        case.any("a").image = Some("registry/image:2".to_owned());
    });
    assert_eq!(case.summary(), "keep:s0");
}
