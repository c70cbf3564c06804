use serde_json::json;

use super::*;

fn reference(uid: &str) -> PodRef {
    PodRef::new("default", "web", uid)
}

fn survey(version: u64, pods: &[(&str, u64)]) -> Survey {
    let pods = pods.iter().map(|(uid, version)| (Arc::from(*uid), (reference(uid), *version))).collect();
    Survey { version, pods, of_all: false }
}

fn pod(uid: &str, version: u64) -> Pod {
    let metadata =
        json!({"namespace": "default", "name": "web", "uid": uid, "resourceVersion": version.to_string()});
    serde_json::from_value(json!({"metadata": metadata})).unwrap()
}

/// What is to be read after this survey.
fn doubts(missed: &mut Missed, survey: &Survey, known: &[(&str, Known)]) -> Vec<String> {
    let known: Vec<(PodRef, Known)> = known.iter().map(|(uid, version)| (reference(uid), *version)).collect();
    missed.surveyed(survey, known.iter().map(|(pod, version)| (pod, *version)));
    let mut all: Vec<String> = std::iter::from_fn(|| missed.take()).map(|pod| pod.uid.to_string()).collect();
    all.sort();
    all
}

#[test]
fn only_what_the_survey_could_know_better_is_read() {
    let known = [
        ("same", Known::Version(5)),
        ("newer-here", Known::Version(9)),
        ("newer-there", Known::Version(5)),
        ("lost", Known::Version(5)),
        ("too-new-for-it", Known::Version(11)),
        ("gone", Known::Gone),
        ("gone-and-listed", Known::Gone),
    ];
    let listed =
        [("same", 5), ("newer-here", 8), ("newer-there", 6), ("gone-and-listed", 5), ("unheard-of", 5)];
    let mut survey = survey(10, &listed);
    assert_eq!(
        doubts(&mut Missed::default(), &survey, &known),
        ["gone", "lost", "newer-there", "unheard-of"]
    );
    // Of a survey of all nodes, what is new to this one may be another's.
    survey.of_all = true;
    assert_eq!(doubts(&mut Missed::default(), &survey, &known), ["gone", "lost", "newer-there"]);
}

#[test]
fn only_a_live_answer_makes_a_pod_gone_and_late_news_of_it_are_old() {
    let mut missed = Missed::default();
    let all: Vec<String> = (0..3).map(|index| format!("uid-{index}")).collect();
    let known: Vec<(&str, Known)> = all.iter().map(|uid| (uid.as_str(), Known::Version(5))).collect();
    assert_eq!(doubts(&mut missed, &survey(10, &[]), &known), all);
    // It is there after all; the API server does not answer; another one has its name.
    let five = Some(Known::Version(5));
    assert_eq!(missed.read(&reference("uid-0"), Some(pod("uid-0", 5)), five), None);
    missed.unread(&reference("uid-1"));
    let finding = missed.read(&reference("uid-2"), Some(pod("other", 9)), five);
    assert_eq!(finding, Some(Finding::Gone));
    assert!(!missed.seen("uid-0") && !missed.seen("uid-1"));
    assert!(missed.seen("uid-2"), "old");
    missed.restarted();
    assert!(missed.seen("uid-2"), "the listing may have been made before");
    missed.listed();
    assert!(!missed.seen("uid-2"), "whatever comes now is newer than the listing");
}

#[test]
fn what_the_watch_tells_meanwhile_counts_more() {
    type Tells = fn(&mut Missed);
    let tells: [Tells; 3] =
        [|missed| assert!(!missed.seen("a")), |missed| missed.deleted("a"), |missed| missed.restarted()];
    for tell in tells {
        let mut missed = Missed::default();
        assert_eq!(doubts(&mut missed, &survey(10, &[("a", 6)]), &[]), ["a"]);
        tell(&mut missed);
        assert_eq!(missed.read(&reference("a"), Some(pod("a", 6)), None), None);
    }
}

#[test]
fn few_are_read_at_a_time_and_all_in_the_end() {
    let names: Vec<String> = (0..20).map(|index| format!("uid-{index}")).collect();
    let listed: Vec<(&str, u64)> = names.iter().map(|uid| (uid.as_str(), 7)).collect();
    let survey = survey(10, &listed);
    let mut missed = Missed::default();
    missed.surveyed(&survey, std::iter::empty());
    let (mut under_way, mut found) = (Vec::new(), 0);
    loop {
        under_way.extend(std::iter::from_fn(|| missed.take()));
        assert!(under_way.len() <= READS);
        // The next survey waits until all is read.
        missed.surveyed(&survey, std::iter::empty());
        let Some(one) = under_way.pop() else { break };
        let newer = missed.read(&one, Some(pod(&one.uid, 7)), None);
        found += usize::from(matches!(newer, Some(Finding::Newer(_))));
        if found == 20 {
            break;
        }
    }
    assert_eq!(found, 20);
}
