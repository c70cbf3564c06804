use jiff::Timestamp;
use serde_json::{Value, json};
use vk_provider::placement::PLACEMENT_ANNOTATION;

use super::*;
use crate::{choose::Prefer, held_pods::MAX_HELD, names};

const MS: Duration = Duration::from_millis(1);

/// Two nodes that can be asked, and a machine.
struct Test {
    state: ExtenderState,
    now: Duration,
    /// What the wall clock shows.
    wall: Timestamp,
    asked: Vec<String>,
}

fn parse<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn node(name: &str) -> Node {
    parse(json!({"metadata": {"name": name, "annotations": {PLACEMENT_ANNOTATION: "fit"}}}))
}

fn pod(uid: &str, cpu: &str) -> Value {
    let owner =
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "rs", "controller": true});
    json!({
        "metadata": {"name": uid, "namespace": "team", "uid": uid, "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": "Pending"},
    })
}

/// A pod for which placement has chosen node `a`.
fn placed_pod(uid: &str) -> Value {
    let mut pod = pod(uid, "1");
    pod["status"] =
        json!({"nominatedNodeName": "a", "conditions": [{"type": names::PLACED, "status": "True"}]});
    pod
}

fn bound(uid: &str, cpu: &str, node: &str) -> Pod {
    let mut pod = pod(uid, cpu);
    pod["spec"]["nodeName"] = json!(node);
    parse(pod)
}

fn fits(room: u32, fullness: u8) -> Verdict {
    Verdict::Fits { room, fullness }
}

fn refused(text: &str, nodes: u32, lasting: bool) -> Verdict {
    Verdict::Refused { why: vec![Cause { text: text.to_owned(), nodes }], lasting }
}

/// What a node answers; `None` if it fails.
fn answer(verdict: impl Into<Option<Verdict>>) -> Result<FitAnswer, String> {
    let verdict = verdict.into().ok_or("broken")?;
    Ok(FitAnswer { verdicts: vec![verdict], best_nodes: None })
}

fn all() -> Vec<String> {
    ["a", "b", "machine"].map(ToOwned::to_owned).to_vec()
}

impl Test {
    fn new(preference: Preference) -> Self {
        let mut state = ExtenderState::new(preference);
        state.apply_node(node("a"));
        state.apply_node(node("b"));
        state.apply_node(parse(json!({"metadata": {"name": "machine"}})));
        let wall = "2026-11-18T20:00:00Z".parse().unwrap();
        Self { state, now: Duration::from_secs(1), wall, asked: Vec::new() }
    }

    fn clocks(&self) -> Now {
        Now { elapsed: self.now, wall: self.wall }
    }

    fn prioritize(&mut self, pod: &Arc<Pod>, names: &[String]) -> Vec<i64> {
        self.state.prioritize(self.clocks(), pod, names)
    }

    /// Begins a call and asks what is missing. The questions are answered at once.
    fn ask(
        &mut self,
        pod: &Arc<Pod>,
        names: &[String],
        verdict: impl Fn(&str, &FitQuery) -> Result<FitAnswer, String>,
    ) -> FilterCall {
        let mut call = self.state.begin(self.now, Arc::clone(pod));
        for Question { id, node, query } in self.state.missing(self.now, &mut call, names).questions {
            let name = node.metadata.name.clone().unwrap();
            let verdict = verdict(&name, &query);
            self.asked.push(name);
            self.state.answered(self.now, id, verdict);
        }
        call
    }

    fn filter_among(
        &mut self,
        pod: &Arc<Pod>,
        names: &[String],
        verdict: impl Fn(&str, &FitQuery) -> Result<FitAnswer, String>,
    ) -> Filtered {
        self.asked.clear();
        let call = self.ask(pod, names, verdict);
        self.state.filter(self.clocks(), &call, names.to_vec())
    }

    /// `filter` for a pod of this UID on all nodes, of which `b` refuses everything.
    fn filter(&mut self, uid: &str, cpu: &str, room: impl Fn(&FitQuery) -> Verdict) -> Vec<String> {
        let pod = Arc::new(parse(pod(uid, cpu)));
        let names = ["a", "b"].map(ToOwned::to_owned);
        let filtered = self.filter_among(&pod, &names, |name, query| {
            answer(if name == "a" { room(query) } else { refused("insufficient cpu", 4, false) })
        });
        filtered.result.node_names
    }
}

fn held(query: &FitQuery) -> Vec<&str> {
    query.held.iter().map(|pod| pod.metadata.uid.as_deref().unwrap()).collect()
}

#[test]
fn machines_and_nodes_that_cannot_tell_pass_and_refusals_say_whether_fewer_pods_would_help() {
    let mut test = Test::new(Preference::default());
    let pod = Arc::new(parse(pod("u", "1")));
    let filtered = test.filter_among(&pod, &all(), |name, _| {
        answer(if name == "a" {
            refused("insufficient cpu", 100, false)
        } else {
            refused("no image policy", 0, true)
        })
    });
    assert_eq!(
        serde_json::to_value(filtered.result).unwrap(),
        json!({
            "NodeNames": ["machine"],
            "FailedNodes": {"a": "no lower node takes the pod (insufficient cpu)"},
            "FailedAndUnresolvableNodes": {"b": "no image policy"},
        })
    );
    assert_eq!(test.asked, ["a", "b"]);
    test.now += 200 * MS;
    let filtered = test.filter_among(&pod, &all(), |name, _| {
        answer(if name == "a" { fits(3, 20) } else { Verdict::unknown("required pod affinity") })
    });
    assert_eq!(filtered.result.node_names, all());
    assert_eq!(test.prioritize(&pod, &all()), [10, 1, 7]);
}

#[test]
fn a_reason_has_the_same_text_for_the_same_causes() {
    let cause = |text: &str, nodes| Cause { text: text.to_owned(), nodes };
    let causes = [cause("taint gpu", 3), cause("insufficient cpu", 9), cause("quota is used up", 0)];
    let more = [cause("quota is used up", 0), cause("insufficient cpu", 4), cause("taint gpu", 1)];
    let expected = "quota is used up; no lower node takes the pod (insufficient cpu, taint gpu)";
    assert_eq!((reason(&causes), reason(&more)), (expected.to_owned(), expected.to_owned()));
    assert_eq!(reason(&[cause(&"x".repeat(5000), 1)]).len(), REASON_CHARS);
    let quota = |left: &str| {
        vec![
            cause(&format!("quota \"team-2\" has {left} of 8 cpu left"), 0),
            cause(&format!("quota \"team-2\" has {left} of 16 cpu left"), 0),
        ]
    };
    let reasons = ["2", "500m", "0"].map(|left| reason(&quota(left)));
    assert_eq!(reasons, [(); 3].map(|()| "quota \"team-2\" has … of … cpu left".to_owned()));
}

#[test]
fn a_burst_of_equal_pods_is_one_query_until_the_room_is_used_up() {
    let mut test = Test::new(Preference::default());
    for uid in ["u1", "u2", "u3"] {
        assert_eq!(test.filter(uid, "1", |_| fits(3, 10)), ["a"]);
        assert_eq!(test.asked.is_empty(), uid != "u1", "{uid}");
        test.now += 10 * MS;
    }
    let names = test.filter("u4", "1", |query| {
        assert_eq!(held(query), ["u1", "u2", "u3"], "they are on their way");
        refused("insufficient cpu", 4, false)
    });
    assert_eq!((names, &test.asked), (Vec::<String>::new(), &vec!["a".to_owned()]));
    test.filter("u5", "1", |_| unreachable!("the refusal holds for a moment"));
    test.now += 200 * MS;
    test.filter("u6", "1", |_| fits(1, 10));
    assert_eq!(test.asked, ["a", "b"]);
}

#[test]
fn a_pod_of_another_shape_ends_the_answers_about_the_node_on_which_it_is_expected() {
    let mut test = Test::new(Preference::default());
    test.filter("u1", "1", |_| fits(3, 10));
    test.filter("u2", "2", |query| {
        assert_eq!(held(query), ["u1"]);
        fits(1, 10)
    });
    test.filter("u3", "1", |query| {
        assert_eq!(held(query), ["u1", "u2"]);
        refused("insufficient cpu", 4, false)
    });
    assert_eq!(test.asked, ["a"], "nothing came to b");
}

#[test]
fn a_pod_that_is_bound_elsewhere_than_expected_counts_where_it_is() {
    let mut test = Test::new(Preference { prefer: Prefer::Pack, ..Preference::default() });
    let first: Arc<Pod> = Arc::new(parse(pod("u1", "1")));
    let filtered =
        test.filter_among(&first, &all(), |name, _| answer(fits(5, if name == "a" { 60 } else { 20 })));
    assert_eq!(filtered.result.node_names, all());
    test.prioritize(&first, &all());
    assert_eq!(*test.state.expected["u1"].node, *"a");
    test.state.apply_bound_pod(test.now, &bound("u1", "1", "b"));
    let second = Arc::new(parse(pod("u2", "1")));
    test.filter_among(&second, &all(), |name, query| {
        assert_eq!((name, held(query)), ("a", vec![]), "b was asked before, and has one pod more now");
        answer(fits(5, 60))
    });
    assert_eq!(test.asked, ["a"]);
    assert!(test.state.held.is_held("u1"));
    // The node has seen it.
    let mut seen = bound("u1", "1", "b");
    seen.status = parse(
        json!({"phase": "Pending", "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0}]}),
    );
    test.state.apply_bound_pod(test.now, &seen);
    assert!(!test.state.held.is_held("u1"));
}

#[test]
fn a_pod_that_is_not_bound_soon_or_is_tried_again_is_not_expected_any_more() {
    let mut test = Test::new(Preference::default());
    test.filter("u1", "1", |_| fits(1, 10));
    test.filter("u1", "1", |query| {
        assert_eq!(held(query), Vec::<&str>::new(), "not beside itself");
        fits(1, 10)
    });
    test.now += EXPECTED_FOR;
    test.filter("u2", "1", |query| {
        assert_eq!(held(query), Vec::<&str>::new());
        fits(1, 10)
    });
    assert_eq!(test.asked, ["a", "b"]);
}

#[test]
fn a_node_that_does_not_answer_passes_and_is_not_waited_for_again() {
    let mut test = Test::new(Preference::default());
    let pod: Arc<Pod> = Arc::new(parse(pod("u1", "1")));
    let mut call = test.state.begin(test.now, pod);
    let missing = test.state.missing(test.now, &mut call, &all());
    assert_eq!((missing.questions.len(), missing.until), (2, Some(test.now + PATIENCE)));
    let again = test.state.missing(test.now, &mut call, &all());
    assert_eq!((again.questions.len(), again.until), (0, missing.until), "a question is asked once");
    test.now += PATIENCE;
    assert_eq!(test.state.missing(test.now, &mut call, &all()).until, None);
    let filtered = test.state.filter(test.clocks(), &call, all());
    assert_eq!((filtered.result.node_names, filtered.unanswered), (all(), 2));
    let mut other = test.state.begin(test.now, Arc::new(parse(super::tests::pod("u2", "2"))));
    assert_eq!(test.state.missing(test.now, &mut other, &all()).until, None, "it hangs");
}

#[test]
fn a_node_that_fails_three_times_is_not_asked_for_five_seconds() {
    let mut test = Test::new(Preference::default());
    let pod: Arc<Pod> = Arc::new(parse(pod("u1", "1")));
    let broken = |_: &str, _: &FitQuery| answer(None);
    for _ in 0..3 {
        assert_eq!(test.filter_among(&pod, &all(), broken).unanswered, 2);
        assert_eq!(test.asked, ["a", "b"]);
        test.now += 10 * MS;
    }
    assert_eq!(test.filter_among(&pod, &all(), broken).unanswered, 2);
    assert!(test.asked.is_empty());
    test.now += Duration::from_secs(5);
    let filtered = test.filter_among(&pod, &all(), |_, _| answer(fits(1, 1)));
    assert_eq!((filtered.unanswered, test.asked.len()), (0, 2));
}

#[test]
fn a_node_where_pods_of_the_controller_were_stuck_does_not_pass_while_another_one_does() {
    let mut test = Test::new(Preference::default());
    test.state.set_avoid_table(&[("avoid.team.rs".to_owned(), "a=2099-01-01T00:00:00Z".to_owned())].into());
    let first = Arc::new(parse(pod("u1", "1")));
    let filtered = test.filter_among(&first, &all(), |_, _| answer(fits(9, 10)));
    assert_eq!(filtered.result.node_names, ["b", "machine"]);
    assert_eq!(filtered.result.failed_nodes, [("a".to_owned(), AVOIDED.to_owned())].into());
    test.now += 200 * MS;
    assert_eq!(test.filter("u2", "1", |_| fits(9, 10)), ["a"], "there is no other");
    test.state.set_avoid_table(&BTreeMap::new());
    test.now += 200 * MS;
    assert_eq!(test.filter_among(&first, &all(), |_, _| answer(fits(9, 10))).result.node_names, all());
}

#[test]
fn the_node_that_placement_has_chosen_is_not_asked_again() {
    let mut test = Test::new(Preference::default());
    let chosen: Arc<Pod> = Arc::new(parse(placed_pod("u1")));
    test.state.apply_nominated_pod(&chosen);
    let filtered = test.filter_among(&chosen, &all()[..1], |_, _| unreachable!());
    assert_eq!(filtered.result.node_names, ["a"]);
    assert!(test.state.held.is_held("u1"), "it counts for others");
    // Also after a trial, and while the watch has not shown that the gate was removed.
    let mut tried = placed_pod("u2");
    tried["status"]["conditions"] = json!([{
        "type": names::PLACED, "status": "Unknown", "reason": names::ON_TRIAL,
        "lastTransitionTime": "2026-11-18T20:00:00Z",
    }]);
    tried["spec"]["schedulingGates"] = json!([{"name": names::GATE}]);
    test.state.apply_nominated_pod(&parse(tried));
    let tried = Arc::new(parse(pod("u2", "1")));
    test.filter_among(&tried, &all()[..1], |_, _| unreachable!());
    // A nomination by kube-scheduler, for which others were preempted, is not one by placement.
    let mut preempting = pod("u3", "1");
    preempting["status"]["nominatedNodeName"] = json!("a");
    test.state.apply_nominated_pod(&parse(preempting.clone()));
    test.filter_among(&Arc::new(parse(preempting)), &all()[..1], |_, _| answer(fits(9, 10)));
    assert_eq!(test.asked, ["a"]);
}

#[test]
fn a_choice_that_placement_has_taken_back_does_not_count() {
    let mut test = Test::new(Preference::default());
    let placed: [Arc<Pod>; 3] = ["u1", "u2", "u3"].map(|uid| Arc::new(parse(placed_pod(uid))));
    for pod in &placed {
        test.state.apply_nominated_pod(pod);
    }
    test.state.apply_nominated_pod(&parse(pod("u1", "1")));
    test.state.remove_nominated_pod("u2");
    test.state.nominated_pods_listed(&HashSet::new());
    for pod in &placed {
        test.filter_among(pod, &all()[..1], |_, _| answer(refused("insufficient cpu", 4, false)));
        assert_eq!(test.asked, ["a"]);
        test.now += 200 * MS;
    }
}

#[test]
fn what_a_request_says_about_its_place_is_not_believed() {
    let mut test = Test::new(Preference::default());
    let forged = Arc::new(parse(placed_pod("u1")));
    let filtered =
        test.filter_among(&forged, &all()[..1], |_, _| answer(refused("insufficient cpu", 4, false)));
    assert_eq!((filtered.result.node_names, &test.asked), (Vec::new(), &vec!["a".to_owned()]));
    assert!(!test.state.held.is_held("u1"));
}

#[test]
fn a_node_with_as_many_pods_on_their_way_as_a_query_can_name_refuses() {
    let mut test = Test::new(Preference::default());
    for index in 0..MAX_HELD {
        test.state.apply_bound_pod(test.now, &bound(&format!("u{index:03}"), "1", "a"));
    }
    let pod = Arc::new(parse(pod("new", "1")));
    let filtered = test.filter_among(&pod, &all(), |name, query| {
        assert_eq!((name, query.held.len()), ("b", 0));
        answer(fits(9, 10))
    });
    assert_eq!(filtered.result.node_names, ["b", "machine"]);
    assert_eq!(filtered.result.failed_nodes, [("a".to_owned(), NO_SPACE.to_owned())].into());
    let check = test.state.preemption_check(&pod, "a", Vec::new());
    assert!(matches!(check, PreemptionCheck::NoSpace), "{check:?}");
    // A pod that was seen makes space.
    test.state.remove_bound_pod(&bound("u007", "1", "a"));
    test.now += 200 * MS;
    let filtered = test.filter_among(&pod, &all(), |_, _| answer(fits(9, 10)));
    assert_eq!(filtered.result.node_names, all());
}

#[test]
fn an_avoided_node_passes_again_when_its_time_is_over() {
    let mut test = Test::new(Preference::default());
    test.state.set_avoid_table(&[("avoid.team.rs".to_owned(), "a=2026-11-18T20:05:00Z".to_owned())].into());
    let pod = Arc::new(parse(pod("u1", "1")));
    let mut filter = |wall: &str| {
        test.now += 200 * MS;
        test.wall = wall.parse().unwrap();
        test.filter_among(&pod, &all(), |_, _| answer(fits(9, 10))).result.node_names
    };
    assert_eq!(filter("2026-11-18T20:04:59Z"), ["b", "machine"]);
    assert_eq!(filter("2026-11-18T20:05:00Z"), all());
}

#[test]
fn a_node_is_asked_once_in_a_call() {
    let mut test = Test::new(Preference::default());
    let pod: Arc<Pod> = Arc::new(parse(pod("u1", "1")));
    for verdict in [Some(fits(0, 10)), None] {
        test.now += 200 * MS;
        let mut call = test.state.begin(test.now, Arc::clone(&pod));
        let mut asked = 0;
        for _ in 0..5 {
            for Question { id, .. } in test.state.missing(test.now, &mut call, &all()).questions {
                asked += 1;
                test.state.answered(test.now, id, answer(verdict.clone()));
            }
        }
        assert_eq!(asked, 2, "{verdict:?}");
        let filtered = test.state.filter(test.clocks(), &call, all());
        assert_eq!(
            (filtered.result.node_names, filtered.unanswered),
            (all(), 2),
            "room for none is no answer"
        );
    }
}

#[test]
fn a_node_is_asked_again_if_a_pod_came_before_it_answered() {
    let mut test = Test::new(Preference::default());
    let names = &all()[..1];
    let mut call = test.state.begin(test.now, Arc::new(parse(pod("u1", "1"))));
    let [Question { id, .. }] = &test.state.missing(test.now, &mut call, names).questions[..] else {
        panic!("it is asked")
    };
    test.state.apply_bound_pod(test.now, &bound("u2", "2", "a"));
    test.state.answered(test.now, *id, answer(fits(1, 10)));
    let [Question { id, query, .. }] = &test.state.missing(test.now, &mut call, names).questions[..] else {
        panic!("it is asked again")
    };
    assert_eq!(held(query), ["u2"]);
    test.state.answered(test.now, *id, answer(refused("insufficient cpu", 4, false)));
    assert!(test.state.missing(test.now, &mut call, names).questions.is_empty());
    assert!(test.state.filter(test.clocks(), &call, names.to_vec()).result.node_names.is_empty());
}

#[test]
fn a_slow_node_is_waited_for_in_the_next_call_too() {
    let mut test = Test::new(Preference::default());
    let names = &all()[..1];
    let ask = |test: &mut Test, uid: &str, cpu: &str, takes: Duration| {
        let mut call = test.state.begin(test.now, Arc::new(parse(pod(uid, cpu))));
        let missing = test.state.missing(test.now, &mut call, names);
        let waits = missing.until.map(|until| until.saturating_sub(test.now));
        test.now += takes;
        for Question { id, .. } in missing.questions {
            test.state.answered(test.now, id, answer(fits(9, 10)));
        }
        waits
    };
    assert_eq!(ask(&mut test, "u1", "1", 60 * MS), Some(PATIENCE));
    assert_eq!(ask(&mut test, "u2", "2", 60 * MS), Some(PATIENCE));
    // A node that has made a call wait in vain is waited for again after a while only.
    assert_eq!(ask(&mut test, "u3", "3", 2 * PATIENCE), Some(PATIENCE));
    assert_eq!(ask(&mut test, "u4", "4", MS), Some(20 * MS));
}

#[test]
fn nothing_is_remembered_for_long() {
    let mut test = Test::new(Preference::default());
    for index in 0..100 {
        test.filter(&format!("u{index}"), &index.to_string(), |_| fits(1, 10));
    }
    test.state.apply_bound_pod(test.now, &bound("u1", "1", "a"));
    test.now += Duration::from_mins(3);
    test.state.begin(test.now, Arc::default());
    assert!(test.state.expected.is_empty());
    assert!(test.state.held.on("a").is_empty());
    assert!(test.state.answers.is_empty());
    test.state.nodes_listed(&HashSet::new());
    assert!(test.state.nodes.is_empty());
}

#[test]
fn preemption_asks_about_the_node_without_the_victims() {
    let mut test = Test::new(Preference::default());
    test.filter("u1", "1", |_| fits(1, 10));
    let pod = Arc::new(parse(pod("u2", "8")));
    let PreemptionCheck::Ask(node, query) = test.state.preemption_check(&pod, "a", vec!["v".into()]) else {
        panic!("a can be asked")
    };
    assert_eq!(node.metadata.name.as_deref(), Some("a"));
    assert_eq!((held(&query), query.pods.len()), (vec!["u1"], 1));
    assert_eq!(query.without, ["v".into()]);
    let check = test.state.preemption_check(&pod, "machine", Vec::new());
    assert!(matches!(check, PreemptionCheck::Passes), "{check:?}");
}
