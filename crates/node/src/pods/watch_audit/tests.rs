use serde_json::json;

use super::*;

fn reference(uid: &str) -> PodRef {
    PodRef::new("default", "web", uid)
}

fn versions(version: u64, pods: &[(&str, u64)]) -> PodVersions {
    let pods = pods.iter().map(|(uid, version)| (Arc::from(*uid), (reference(uid), *version))).collect();
    PodVersions { version, pods, all_nodes: false }
}

fn pod(uid: &str, version: u64) -> Pod {
    let metadata =
        json!({"namespace": "default", "name": "web", "uid": uid, "resourceVersion": version.to_string()});
    serde_json::from_value(json!({"metadata": metadata})).unwrap()
}

/// What is to be read after this list.
fn differing(audit: &mut WatchAudit, list: &PodVersions, known: &[(&str, KnownVersion)]) -> Vec<String> {
    let mut ids = EffectIds::default();
    let known: Vec<(PodRef, KnownVersion)> =
        known.iter().map(|(uid, version)| (reference(uid), *version)).collect();
    audit.compare(list, known.iter().map(|(pod, version)| (pod, *version)));
    let mut all: Vec<String> =
        std::iter::from_fn(|| audit.next_read(&mut ids)).map(|(_, pod)| pod.uid.to_string()).collect();
    audit.reads.clear();
    all.sort();
    all
}

#[test]
fn only_pods_that_the_list_may_know_better_are_read() {
    let known = [
        ("same", KnownVersion::Version(5)),
        ("newer-here", KnownVersion::Version(9)),
        ("newer-there", KnownVersion::Version(5)),
        ("lost", KnownVersion::Version(5)),
        ("too-new-for-it", KnownVersion::Version(11)),
        ("gone", KnownVersion::Gone),
        ("gone-and-listed", KnownVersion::Gone),
    ];
    let listed =
        [("same", 5), ("newer-here", 8), ("newer-there", 6), ("gone-and-listed", 5), ("unheard-of", 5)];
    let mut list = versions(10, &listed);
    assert_eq!(
        differing(&mut WatchAudit::default(), &list, &known),
        ["gone", "lost", "newer-there", "unheard-of"]
    );
    // In a list of all nodes, a pod that is new to this one may be another's.
    list.all_nodes = true;
    assert_eq!(differing(&mut WatchAudit::default(), &list, &known), ["gone", "lost", "newer-there"]);
}

#[test]
fn only_a_live_answer_makes_a_pod_gone_and_late_news_of_it_are_old() {
    let mut audit = WatchAudit::default();
    let all: Vec<String> = (0..3).map(|index| format!("uid-{index}")).collect();
    let known: Vec<(&str, KnownVersion)> =
        all.iter().map(|uid| (uid.as_str(), KnownVersion::Version(5))).collect();
    assert_eq!(differing(&mut audit, &versions(10, &[]), &known), all);
    // It is there after all; the API server does not answer; another one has its name.
    let five = Some(KnownVersion::Version(5));
    assert_eq!(audit.read(&reference("uid-0"), Some(pod("uid-0", 5)), five), None);
    audit.read_failed(&reference("uid-1"));
    let finding = audit.read(&reference("uid-2"), Some(pod("other", 9)), five);
    assert_eq!(finding, Some(AuditFinding::Gone));
    assert!(!audit.applied("uid-0") && !audit.applied("uid-1"));
    assert!(audit.applied("uid-2"), "old");
    audit.restarted();
    assert!(audit.applied("uid-2"), "the listing may have been made before");
    audit.listed();
    assert!(!audit.applied("uid-2"), "whatever comes now is newer than the listing");
}

#[test]
fn what_the_watch_shows_meanwhile_counts_more() {
    type Show = fn(&mut WatchAudit);
    let shows: [Show; 3] =
        [|audit| assert!(!audit.applied("a")), |audit| audit.deleted("a"), |audit| audit.restarted()];
    for show in shows {
        let mut audit = WatchAudit::default();
        assert_eq!(differing(&mut audit, &versions(10, &[("a", 6)]), &[]), ["a"]);
        show(&mut audit);
        assert_eq!(audit.read(&reference("a"), Some(pod("a", 6)), None), None);
    }
}

#[test]
fn few_are_read_at_a_time_and_all_in_the_end() {
    let names: Vec<String> = (0..20).map(|index| format!("uid-{index}")).collect();
    let listed: Vec<(&str, u64)> = names.iter().map(|uid| (uid.as_str(), 7)).collect();
    let list = versions(10, &listed);
    let mut audit = WatchAudit::default();
    audit.compare(&list, std::iter::empty());
    let mut ids = EffectIds::default();
    let (mut in_flight, mut found) = (Vec::new(), 0);
    loop {
        in_flight.extend(std::iter::from_fn(|| audit.next_read(&mut ids)));
        assert!(in_flight.len() <= READS);
        // The next comparison waits until all is read.
        audit.compare(&list, std::iter::empty());
        let Some((id, _)) = in_flight.pop() else { break };
        let one = audit.take_read(id).expect("a read in flight");
        let newer = audit.read(&one, Some(pod(&one.uid, 7)), None);
        found += usize::from(matches!(newer, Some(AuditFinding::Newer(_))));
        if found == 20 {
            break;
        }
    }
    assert_eq!(found, 20);
}
