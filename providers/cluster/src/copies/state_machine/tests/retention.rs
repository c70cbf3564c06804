//! Namespaces that nobody uses go after a while.

use vk_kube::{Error, Kind as ErrorKind};

use super::{
    super::*,
    A_WHILE, MAP,
    fake_clusters::{FakeClusters, RETENTION, key, needs, pod},
    map, with_copy,
};

fn retired(clusters: &FakeClusters) -> bool {
    clusters.log.iter().any(|entry| entry == "retire default")
}

#[test]
fn a_namespace_goes_some_time_after_the_last_pod_and_copy() {
    let mut clusters = with_copy();
    clusters.advance(RETENTION * 3);
    assert!(!retired(&clusters), "a pod uses it");
    clusters.remove_pod("p");
    clusters.advance(RETENTION.saturating_sub(A_WHILE));
    assert!(!retired(&clusters) && clusters.lower_namespaces.contains("default"), "not yet");
    assert_eq!(clusters.data(&key(MAP, "a")), None, "the copy goes sooner");
    clusters.advance(RETENTION);
    assert!(retired(&clusters) && clusters.lower.is_empty());
    assert!(
        clusters.state_machine.lower_namespaces.is_empty() && clusters.state_machine.deadline().is_none()
    );

    clusters.add_pod("p", &[(MAP, "a")]);
    clusters.run();
    assert_eq!(clusters.state_machine.readiness(&pod("p")), Readiness::Ready, "it is made again");
}

#[test]
fn a_namespace_that_an_earlier_process_used_goes_too() {
    let mut clusters = with_copy();
    clusters.restart(2);
    clusters.advance(RETENTION * 2);
    assert!(retired(&clusters) && clusters.lower.is_empty());
}

#[test]
fn a_namespace_with_a_claim_stays_until_the_claim_is_gone() {
    let mut clusters = FakeClusters::new();
    clusters.put(Kind::Claim, "default", "data", serde_json::json!({"spec": {}}));
    clusters.add_pod("p", &[(Kind::Claim, "data")]);
    clusters.run();
    clusters.remove_pod("p");
    clusters.advance(RETENTION * 3);
    assert!(!retired(&clusters), "the copy of the claim is there");
    clusters.delete(Kind::Claim, "default", "data");
    clusters.advance(RETENTION * 3);
    assert!(retired(&clusters));
}

#[test]
fn a_pod_that_arrives_while_its_namespace_goes_waits_and_gets_a_new_one() {
    let mut clusters = with_copy();
    clusters.remove_pod("p");
    clusters.advance(A_WHILE * 12);
    clusters.now += RETENTION * 2;
    clusters.handle(Event::Tick);
    assert_eq!(clusters.retirements, ["default"]);
    clusters.put(MAP, "default", "a", map("1"));
    clusters.add_pod("late", &[(MAP, "a")]);
    assert_eq!(clusters.state_machine.readiness(&pod("late")), Readiness::Waiting);
    assert!(clusters.namespace_calls.is_empty(), "one thing after the other");
    assert!(clusters.answer_retirement());
    clusters.advance(A_WHILE);
    assert_eq!(clusters.state_machine.readiness(&pod("late")), Readiness::Ready);
    assert!(clusters.lower_namespaces.contains("default"));
}

#[test]
fn a_namespace_that_has_to_stay_is_looked_at_again_later() {
    let mut clusters = with_copy();
    clusters.remove_pod("p");
    clusters.advance(A_WHILE * 12);
    clusters.now += RETENTION * 2;
    clusters.handle(Event::Tick);
    clusters.retirements.clear();
    let in_use = Error::new(ErrorKind::Conflict, "somebody else uses it");
    clusters.handle(Event::NamespaceRetired("default".to_owned(), Err(in_use)));
    assert!(clusters.retirements.is_empty());
    clusters.advance(RETENTION * 2);
    assert!(retired(&clusters));
}

/// Each of them lists everything in a namespace.
#[test]
fn a_few_namespaces_are_retired_at_a_time() {
    let mut clusters = FakeClusters::new();
    let pods: Vec<PodRef> = (0..20).map(|n| PodRef::new(format!("n{n}"), "p", format!("uid-{n}"))).collect();
    for pod in &pods {
        clusters.handle(Event::PodAdded(pod.clone(), Dependencies::default()));
    }
    clusters.run();
    for pod in &pods {
        clusters.handle(Event::PodRemoved(pod.clone()));
    }
    clusters.now += RETENTION * 2;
    clusters.handle(Event::Tick);
    assert!((1..=4).contains(&clusters.retirements.len()), "{:?}", clusters.retirements);
    assert_eq!(clusters.state_machine.deadline(), None, "an answer comes first");
    clusters.advance(A_WHILE);
    assert!(clusters.state_machine.lower_namespaces.is_empty() && clusters.lower.is_empty());
}

fn pod_in(namespace: &str) -> PodRef {
    PodRef::new(namespace, "p", format!("uid-in-{namespace}"))
}

/// After a restart thousands of namespaces are due at the same time, and each answer asks for the next one.
#[test]
fn while_enough_namespaces_are_retired_no_other_one_is_examined() {
    let mut clusters = FakeClusters::new();
    for namespace in ["n0", "n1", "n2", "n3", "n4", "used"] {
        clusters.handle(Event::PodAdded(pod_in(namespace), Dependencies::default()));
    }
    clusters.run();
    for namespace in ["n0", "n1", "n2", "n3", "n4"] {
        clusters.handle(Event::PodRemoved(pod_in(namespace)));
    }
    clusters.now += RETENTION * 2;
    clusters.handle(Event::Tick);
    assert_eq!(clusters.retirements, ["n0", "n1", "n2", "n3"]);
    let next_check = |clusters: &FakeClusters| clusters.state_machine.lower_namespaces["used"].deadline(true);
    assert!(next_check(&clusters) <= Some(clusters.now), "it is still due");
    assert!(clusters.answer_retirement());
    assert_eq!(clusters.retirements, ["n0", "n1", "n2", "n4"]);
    assert!(next_check(&clusters) <= Some(clusters.now), "it is still due");
    clusters.run();
    assert_eq!(clusters.lower_namespaces, BTreeSet::from(["used".to_owned()]));
    assert!(next_check(&clusters) > Some(clusters.now), "a pod uses it");
}

#[test]
fn namespaces_with_a_pod_or_with_a_copy_of_any_kind_stay() {
    let mut clusters = FakeClusters::of(NamespaceMapping::Suffix("-x".to_owned()), 1);
    let mut expected = BTreeSet::from(["pod-x".to_owned()]);
    for namespace in ["pod", "unused", "unused-too"] {
        clusters.handle(Event::PodAdded(pod_in(namespace), Dependencies::default()));
    }
    for kind in Kind::ALL {
        let namespace = kind.to_string().to_lowercase();
        clusters.put(kind, &namespace, "a", serde_json::json!({"spec": {}}));
        clusters.handle(Event::PodAdded(pod_in(&namespace), needs(&[(kind, "a")])));
        let lower = format!("{namespace}-x");
        clusters.used.insert(CopyKey { kind, namespace: lower.clone(), name: "a".to_owned() });
        expected.insert(lower);
        clusters.run();
        clusters.handle(Event::PodRemoved(pod_in(&namespace)));
    }
    for namespace in ["unused", "unused-too"] {
        clusters.handle(Event::PodRemoved(pod_in(namespace)));
    }
    clusters.advance(RETENTION * 2);
    assert_eq!(clusters.lower_namespaces, expected);
}
