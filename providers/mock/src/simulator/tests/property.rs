//! Property test: no sequence of requests leads to an invalid status.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Create(usize),
    Image(usize, u8),
    Debug(usize),
    Delete(usize, u64),
    Finish(usize, bool, i32),
    Vanish(usize),
    Advance(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let pod = 0..4_usize;
    prop_oneof![
        pod.clone().prop_map(Step::Create),
        (pod.clone(), 0..3_u8).prop_map(|(pod, tag)| Step::Image(pod, tag)),
        pod.clone().prop_map(Step::Debug),
        (pod.clone(), 0..20_u64).prop_map(|(pod, grace)| Step::Delete(pod, grace)),
        (pod.clone(), any::<bool>(), 0..2).prop_map(|(pod, init, code)| Step::Finish(pod, init, code)),
        pod.prop_map(Step::Vanish),
        (0..30_000_u64).prop_map(Step::Advance),
    ]
}

fn life() -> impl Strategy<Value = Lifecycle> {
    (0..3_u64, 0..3_u64, proptest::option::of(0..8_u64), 0..2, 0..9_u64, 0..3_u64, 0..2).prop_map(
        |(start, ready, run, exit_code, stop, init, init_exit_code)| Lifecycle {
            start_delay: seconds(start),
            ready_delay: seconds(ready),
            run_for: run.map(seconds),
            exit_code,
            stop_delay: seconds(stop),
            restart_backoff: seconds(1),
            init_run_for: seconds(init),
            init_exit_code,
            ..Lifecycle::default()
        },
    )
}

/// The pods of a run: one per restart policy, one with init containers and one with a sidecar.
fn model(index: usize, tag: u8, debug: bool) -> Pod {
    let policy = ["Always", "OnFailure", "Never", "Never"][index];
    let mut pod = pod(&format!("u{index}"), policy, &["a", "b"]);
    let spec = pod.spec.as_mut().unwrap();
    spec.containers[0].image = Some(format!("app:{tag}"));
    if index != 1 {
        spec.init_containers = Some(vec![container("i"), container("s")]);
    }
    if index == 3 {
        spec.init_containers.as_mut().unwrap()[1].restart_policy = Some("Always".into());
    }
    if debug {
        spec.ephemeral_containers =
            Some(vec![EphemeralContainer { name: "d".into(), ..EphemeralContainer::default() }]);
    }
    pod
}

fn rank(phase: &str) -> u8 {
    match phase {
        "Pending" => 0,
        "Running" => 1,
        _ => 2,
    }
}

/// Invariants of every status.
fn check(status: &PodStatus, before: Option<&PodStatus>) {
    let groups = [
        (&status.init_container_statuses, &["i", "s"][..]),
        (&status.container_statuses, &["a", "b"]),
        (&status.ephemeral_container_statuses, &["d"]),
    ];
    for (statuses, known) in groups {
        for container in statuses.iter().flatten() {
            assert!(known.contains(&container.name.as_str()), "unknown container {}", container.name);
            let state = container.state.as_ref().unwrap();
            let members = [state.running.is_some(), state.waiting.is_some(), state.terminated.is_some()];
            assert_eq!(members.into_iter().filter(|there| *there).count(), 1, "{container:?}");
            assert!(container.restart_count >= 0);
        }
    }
    let phase = status.phase.as_deref().unwrap();
    let all = groups.into_iter().flat_map(|(statuses, _)| statuses.iter().flatten());
    let running = all.filter(|container| container.state.as_ref().unwrap().running.is_some()).count();
    assert!(rank(phase) < 2 || running == 0, "{phase} and {running} containers run");
    let ready = condition(status, "ContainersReady");
    assert!(ready == "False" || phase == "Running", "{phase} and ready");
    if let Some(before) = before {
        let earlier = before.phase.as_deref().unwrap();
        assert!(rank(phase) >= rank(earlier), "{earlier} became {phase}");
        assert!(rank(earlier) < 2 || phase == earlier, "{earlier} became {phase}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_events_makes_a_malformed_status(
        life in life(),
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let mut simulator = PodSimulator::new();
        let mut now = 0;
        let mut seen: HashMap<String, PodStatus> = HashMap::new();
        let mut wanted = [(0, false); 4];
        for step in steps {
            let request = match step {
                Step::Create(pod) => Request::create(desired(model(pod, wanted[pod].0, wanted[pod].1), life.clone())),
                Step::Image(pod, tag) => {
                    wanted[pod].0 = tag;
                    Request::update(desired(model(pod, tag, wanted[pod].1), life.clone()))
                }
                Step::Debug(pod) => {
                    wanted[pod].1 = true;
                    Request::update(desired(model(pod, wanted[pod].0, true), life.clone()))
                }
                Step::Delete(pod, grace) => {
                    Request::Delete { pod: reference(&format!("u{pod}")), grace: seconds(grace) }
                }
                Step::Finish(pod, init, exit_code) => {
                    let container = if init { "i" } else { "a" }.to_owned();
                    Request::Finish { pod: reference(&format!("u{pod}")), container, exit_code }
                }
                Step::Vanish(pod) => Request::Vanish(reference(&format!("u{pod}"))),
                Step::Advance(millis) => {
                    now += millis;
                    simulator.advance(at(now));
                    Request::Ping
                }
            };
            // Requests may fail, but statuses must be valid.
            let _ = simulator.apply(at(now), request);
            for index in 0..4 {
                let uid = format!("u{index}");
                match simulator.status(&reference(&uid)) {
                    Some(status) => {
                        check(&status, seen.get(&uid));
                        seen.insert(uid, status);
                    }
                    None => {
                        seen.remove(&uid);
                    }
                }
            }
            if let Some(due) = simulator.next_deadline() {
                prop_assert!(due > at(now), "something that is due was left");
            }
        }
    }
}
