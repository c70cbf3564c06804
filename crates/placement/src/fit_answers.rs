//! What nodes have answered about shapes of pods, and which questions are open.
//!
//! An answer is used until something changes on the node: the Node object, a pod that ends, or a pod of another shape that is placed there. A
//! node that changes all the time is asked once per period. One that does not answer delays nobody for longer than the patience, and only for
//! a quarter of the time; one that fails repeatedly is not asked for a while.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use vk_provider::{
    ability::{Cause, Verdict},
    placement::FitAnswer,
};

/// How long decisions wait for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);
/// How long they wait for a node that was just waited for.
const IMPATIENCE: Duration = Duration::from_millis(20);
/// For how many times as long as it took to answer a node is not waited for again.
const REST: u32 = 3;
/// A shape is asked about at most this often on each node.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);
/// An answer is not used for longer than this.
pub(crate) const MAX_AGE: Duration = Duration::from_mins(1);
/// After this many failures in a row a node is not asked for [`PAUSE`].
const FAILURES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(5);
/// Characters of a text from a node that are kept.
const MAX_CHARS: usize = 300;

/// How long answers hold, and how long they are waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerTimes {
    /// Decisions wait this long for an answer.
    pub(crate) patience: Duration,
    /// After an answer that took at least this long, the node is hardly waited for during a while.
    pub(crate) slow: Duration,
    /// A shape is asked about at most this often on each node.
    pub(crate) period: Duration,
    /// An answer is not used for longer than this.
    pub(crate) max_age: Duration,
}

/// The id of a question in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct QueryId(u64);

/// Answers by shape and node.
#[derive(Debug)]
pub(crate) struct FitAnswers {
    times: AnswerTimes,
    shapes: HashMap<Arc<str>, BTreeMap<Arc<str>, Answer>>,
    nodes: HashMap<Arc<str>, NodeRecord>,
    queries: HashMap<QueryId, Query>,
    last_id: u64,
}

/// A question in flight.
#[derive(Debug)]
struct Query {
    shape: Arc<str>,
    /// The number of pods.
    pods: usize,
    node: Arc<str>,
    sent: Duration,
    /// The node's state when the question was sent.
    state: NodeState,
}

/// The last answer of a node about a shape.
#[derive(Debug)]
struct Answer {
    verdict: Result<Verdict, String>,
    /// How many pods were placed on the node since.
    placed: u32,
    /// When the question was sent.
    asked: Duration,
    state: NodeState,
}

/// Counts what changes answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NodeState {
    /// Pods that we have placed there: answers do not include them.
    placed: u64,
    /// Everything else: answers may be outdated.
    changes: u64,
}

#[derive(Debug, Default)]
struct NodeRecord {
    state: NodeState,
    /// Before that, the node is hardly waited for.
    patient_from: Duration,
    /// Failures in a row.
    failures: u32,
    /// Decisions were made without its answer.
    was_silent: bool,
    paused_until: Duration,
    in_flight: BTreeMap<QueryId, Duration>,
}

/// What is known about a shape on a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Knowledge {
    /// A verdict that holds, and how many pods were placed since.
    Current(Verdict, u32),
    /// The question is in flight. It is waited for until then.
    Pending(Duration),
    /// The question may be asked from then on.
    Ask(Duration),
    /// The node does not answer, for this reason.
    Silent(String),
}

// === impl AnswerTimes ===

impl AnswerTimes {
    /// For decisions that can wait: answers hold until something changes.
    pub(crate) const GATE: Self =
        Self { patience: PATIENCE, slow: Duration::ZERO, period: PERIOD, max_age: MAX_AGE };
}

// === impl FitAnswers ===

impl FitAnswers {
    pub(crate) fn new(times: AnswerTimes) -> Self {
        let (shapes, nodes, queries) = Default::default();
        Self { times, shapes, nodes, queries, last_id: 0 }
    }

    /// What is known about a shape on a node.
    pub(crate) fn knowledge(&self, now: Duration, shape: &str, node: &str) -> Knowledge {
        let none = NodeRecord::default();
        let record = self.nodes.get(node).unwrap_or(&none);
        let answer = self.shapes.get(shape).and_then(|answers| answers.get(node));
        if let Some(Answer { verdict: Ok(verdict), placed, asked, state }) = answer
            && state.placed == record.state.placed
            && now
                < *asked
                    + if state.changes == record.state.changes {
                        self.times.max_age
                    } else {
                        self.times.period
                    }
        {
            return Knowledge::Current(verdict.clone(), *placed);
        }
        let why = || match answer {
            Some(Answer { verdict: Err(error), .. }) => error.clone(),
            _ => "no answer yet".to_owned(),
        };
        // Another question that has been waited for in vain says enough about the node.
        if let Some(oldest) = record.in_flight.values().min() {
            let is_own = |id: &QueryId| self.queries.get(id).is_some_and(|query| *query.shape == *shape);
            let until =
                *oldest + if *oldest >= record.patient_from { self.times.patience } else { IMPATIENCE };
            if now >= until {
                return Knowledge::Silent(why());
            }
            if record.in_flight.keys().any(is_own) {
                return Knowledge::Pending(until);
            }
        }
        let due = answer.map_or(now, |answer| now.max(answer.asked + self.times.period));
        let has_failed = answer.is_some_and(|answer| answer.verdict.is_err());
        if now < record.paused_until || has_failed && now < due {
            return Knowledge::Silent(why());
        }
        Knowledge::Ask(due)
    }

    /// A question about a pod of this shape is sent.
    pub(crate) fn ask(&mut self, now: Duration, shape: &Arc<str>, node: &Arc<str>) -> QueryId {
        self.ask_about(now, shape, 1, node)
    }

    /// A question about so many pods is sent. They have one verdict together.
    pub(crate) fn ask_about(
        &mut self,
        now: Duration,
        shape: &Arc<str>,
        pods: usize,
        node: &Arc<str>,
    ) -> QueryId {
        self.last_id += 1;
        let id = QueryId(self.last_id);
        let record = self.nodes.entry(Arc::clone(node)).or_default();
        record.in_flight.insert(id, now);
        let (shape, node) = (Arc::clone(shape), Arc::clone(node));
        self.queries.insert(id, Query { shape, pods, node, sent: now, state: record.state });
        id
    }

    /// Whether the last question about a shape has failed.
    pub(crate) fn has_failed(&self, shape: &str, node: &str) -> bool {
        let answer = self.shapes.get(shape).and_then(|answers| answers.get(node));
        answer.is_some_and(|answer| answer.verdict.is_err())
    }

    /// Whether an answer about a shape is awaited.
    pub(crate) fn is_pending(&self, shape: &str) -> bool {
        self.queries.values().any(|query| *query.shape == *shape)
    }

    /// A decision is made without the answer of a node.
    pub(crate) fn report_silent(&mut self, node: &str) {
        if let Some(record) = self.nodes.get_mut(node) {
            record.was_silent = true;
        }
    }

    /// A question was answered, or has failed. Returns whether the node answers again, after decisions were made without it.
    pub(crate) fn answered(&mut self, now: Duration, id: QueryId, answer: Result<FitAnswer, String>) -> bool {
        let Some(Query { shape, pods, node, sent, state }) = self.queries.remove(&id) else { return false };
        let record = self.nodes.entry(Arc::clone(&node)).or_default();
        record.in_flight.remove(&id);
        let took = now.saturating_sub(sent);
        if took >= self.times.slow {
            record.patient_from = now + took.min(self.times.patience) * REST;
        }
        let verdict = answer.and_then(verdicts).and_then(|verdicts| together(verdicts, pods));
        let verdict = verdict.map_err(shortened);
        let answers_again = verdict.is_ok() && std::mem::take(&mut record.was_silent);
        if verdict.is_ok() {
            record.failures = 0;
        } else {
            record.failures += 1;
            if record.failures >= FAILURES {
                record.paused_until = now + PAUSE;
            }
        }
        let answers = self.shapes.entry(shape).or_default();
        // An older question may be answered after a newer one.
        if answers.get(&node).is_none_or(|known| known.asked <= sent) {
            answers.insert(node, Answer { verdict, placed: 0, asked: sent, state });
        }
        answers_again
    }

    /// A pod of this shape was placed on a node: answers about it hold for one pod less, those about other shapes no longer.
    pub(crate) fn placed(&mut self, shape: &str, node: &Arc<str>) {
        let record = self.nodes.entry(Arc::clone(node)).or_default();
        let before = record.state.placed;
        record.state.placed += 1;
        let answer = self.shapes.get_mut(shape).and_then(|answers| answers.get_mut(node));
        if let Some(answer) = answer.filter(|answer| answer.state.placed == before) {
            answer.state.placed = record.state.placed;
            answer.placed += 1;
        }
    }

    /// Something changed on a node: what it answered before holds no longer.
    pub(crate) fn node_changed(&mut self, node: &str) {
        if let Some(record) = self.nodes.get_mut(node) {
            record.state.changes += 1;
        }
    }

    /// Forgets a node that was deleted. Answers to questions in flight are ignored.
    pub(crate) fn forget_node(&mut self, node: &str) {
        self.nodes.remove(node);
        self.queries.retain(|_, query| *query.node != *node);
        for answers in self.shapes.values_mut() {
            answers.remove(node);
        }
    }

    /// Forgets an answer: it is asked for again.
    pub(crate) fn discard(&mut self, shape: &str, node: &str) {
        if let Some(answers) = self.shapes.get_mut(shape) {
            answers.remove(node);
        }
    }

    /// Whether no answer is remembered.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    /// Forgets answers that are not used any more because of their age.
    pub(crate) fn forget_old(&mut self, now: Duration) {
        let max_age = self.times.max_age;
        self.shapes.retain(|_, answers| {
            answers.retain(|_, answer| now < answer.asked + max_age);
            !answers.is_empty()
        });
    }

    /// Forgets all shapes but these.
    pub(crate) fn retain_shapes(&mut self, is_used: impl Fn(&str) -> bool) {
        self.shapes.retain(|shape, _| is_used(shape));
    }
}

/// The verdicts of an answer. An error if they contradict themselves.
pub(crate) fn verdicts(answer: FitAnswer) -> Result<Vec<Verdict>, String> {
    if answer.verdicts.iter().any(|verdict| matches!(verdict, Verdict::Fits { room: 0, .. })) {
        return Err("the node says that a pod fits, and that it has room for none".to_owned());
    }
    Ok(answer.verdicts)
}

/// As much of a text from a node as is shown. It is kept for each shape of pods.
pub(crate) fn shortened(text: String) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}

/// The verdict about pods that go to a node together: it fits if all fit.
fn together(mut verdicts: Vec<Verdict>, pods: usize) -> Result<Verdict, String> {
    let (given, fit) = (verdicts.len(), verdicts.iter().filter(|verdict| verdict.fits()).count());
    if given < pods || given == 0 {
        return Err(format!("the node gave {given} verdicts about {pods} pods"));
    }
    if pods == 1 {
        return Ok(verdicts.swap_remove(0));
    }
    let mut together = Verdict::Fits { room: 1, fullness: 0 };
    for verdict in verdicts {
        together = match (together, verdict) {
            (_, Verdict::Refused { mut why, lasting }) => {
                why.insert(0, Cause { text: format!("room for {fit} of {pods} pods"), nodes: 0 });
                return Ok(Verdict::Refused { why, lasting });
            }
            (Verdict::Fits { room, fullness: one }, Verdict::Fits { fullness: other, .. }) => {
                Verdict::Fits { room, fullness: one.max(other) }
            }
            (Verdict::Fits { .. }, unknown) => unknown,
            (together, _) => together,
        };
    }
    Ok(together)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: &str = "shape";
    const SECOND: Duration = Duration::from_secs(1);

    struct Test {
        answers: FitAnswers,
        now: Duration,
        node: Arc<str>,
    }

    impl Test {
        fn new() -> Self {
            Self { answers: FitAnswers::new(AnswerTimes::GATE), now: SECOND, node: "vk".into() }
        }

        fn knowledge(&self) -> Knowledge {
            self.answers.knowledge(self.now, SHAPE, &self.node)
        }

        fn ask(&mut self) -> QueryId {
            self.answers.ask(self.now, &SHAPE.into(), &self.node)
        }

        fn fits(&mut self, id: QueryId) {
            let verdicts = vec![Verdict::Fits { room: 5, fullness: 10 }];
            self.answers.answered(self.now, id, Ok(FitAnswer { verdicts, best_nodes: None }));
        }

        fn fails(&mut self, id: QueryId) {
            self.answers.answered(self.now, id, Err("broken".to_owned()));
        }
    }

    fn current(placed: u32) -> Knowledge {
        Knowledge::Current(Verdict::Fits { room: 5, fullness: 10 }, placed)
    }

    #[test]
    fn an_answer_holds_until_the_node_changes_and_for_a_minute_at_most() {
        let mut test = Test::new();
        assert_eq!(test.knowledge(), Knowledge::Ask(SECOND));
        let id = test.ask();
        assert_eq!(test.knowledge(), Knowledge::Pending(SECOND + PATIENCE));
        test.fits(id);
        assert_eq!(test.knowledge(), current(0));
        test.now = MAX_AGE;
        assert_eq!(test.knowledge(), current(0));
        test.now = MAX_AGE + SECOND;
        assert_eq!(test.knowledge(), Knowledge::Ask(test.now));
        let id = test.ask();
        test.fits(id);
        test.answers.node_changed("vk");
        assert_eq!(test.knowledge(), current(0), "it is asked at most once a second");
        test.now += PERIOD;
        assert_eq!(test.knowledge(), Knowledge::Ask(test.now));
    }

    #[test]
    fn an_answer_to_a_question_that_was_asked_before_a_change_holds_for_a_second() {
        let mut test = Test::new();
        let id = test.ask();
        test.answers.node_changed("vk");
        test.fits(id);
        assert_eq!(test.knowledge(), current(0));
        test.now += PERIOD;
        assert_eq!(test.knowledge(), Knowledge::Ask(test.now));
    }

    #[test]
    fn an_answer_to_a_question_that_was_asked_before_a_pod_was_placed_does_not_hold() {
        let mut test = Test::new();
        let (id, node) = (test.ask(), Arc::clone(&test.node));
        test.answers.placed("other", &node);
        test.fits(id);
        assert_eq!(test.knowledge(), Knowledge::Ask(SECOND + PERIOD));
    }

    #[test]
    fn a_slow_node_is_waited_for_a_quarter_of_the_time() {
        let mut test = Test::new();
        let id = test.ask();
        test.now += PATIENCE / 2;
        assert_eq!(test.knowledge(), Knowledge::Pending(SECOND + PATIENCE));
        test.fits(id);
        let answered = test.now;
        test.answers.ask(test.now, &"other".into(), &Arc::clone(&test.node));
        let knowledge = |test: &Test| test.answers.knowledge(test.now, "other", "vk");
        assert_eq!(knowledge(&test), Knowledge::Pending(answered + IMPATIENCE));
        test.now += IMPATIENCE;
        assert_eq!(knowledge(&test), Knowledge::Silent("no answer yet".to_owned()));
    }

    #[test]
    fn own_pods_count_down_and_those_of_other_shapes_end_an_answer() {
        let mut test = Test::new();
        let id = test.ask();
        test.fits(id);
        let node = Arc::clone(&test.node);
        test.answers.placed(SHAPE, &node);
        test.answers.placed(SHAPE, &node);
        assert_eq!(test.knowledge(), current(2));
        test.answers.placed("other", &node);
        assert_eq!(test.knowledge(), Knowledge::Ask(SECOND + PERIOD));
    }

    #[test]
    fn a_node_that_hangs_is_waited_for_once() {
        let mut test = Test::new();
        let id = test.ask();
        test.now += PATIENCE;
        assert_eq!(test.knowledge(), Knowledge::Silent("no answer yet".to_owned()));
        let other = test.answers.knowledge(test.now, "other", "vk");
        assert_eq!(other, Knowledge::Silent("no answer yet".to_owned()), "no other shape waits");
        test.fits(id);
        assert_eq!(test.knowledge(), current(0), "a late answer counts");
    }

    #[test]
    fn a_node_that_fails_three_times_is_not_asked_for_five_seconds() {
        let mut test = Test::new();
        for _ in 0..3 {
            assert!(matches!(test.knowledge(), Knowledge::Ask(_)));
            let id = test.ask();
            test.fails(id);
            assert_eq!(test.knowledge(), Knowledge::Silent("broken".to_owned()), "nobody waits for it");
            test.now += PERIOD;
        }
        assert_eq!(test.knowledge(), Knowledge::Silent("broken".to_owned()));
        test.now += PAUSE;
        let id = test.ask();
        test.fits(id);
        assert_eq!(test.knowledge(), current(0));
    }

    #[test]
    fn pods_fit_together_if_each_of_them_fits() {
        let fits = |fullness| Verdict::Fits { room: 9, fullness };
        let (refused, unknown) = (Verdict::refused("insufficient cpu", false), Verdict::unknown("spread"));
        let all = vec![fits(10), fits(30), fits(20)];
        assert_eq!(together(all, 3), Ok(Verdict::Fits { room: 1, fullness: 30 }));
        let some = together(vec![fits(10), unknown.clone(), refused, fits(20)], 4).unwrap();
        assert_eq!(some.to_string(), "room for 2 of 4 pods; insufficient cpu");
        assert_eq!(together(vec![fits(10), unknown.clone(), fits(20)], 3), Ok(unknown));
        let few = together(vec![fits(10), fits(20)], 3);
        assert_eq!(few, Err("the node gave 2 verdicts about 3 pods".to_owned()));
    }

    #[test]
    fn room_for_none_is_no_answer() {
        let mut test = Test::new();
        let id = test.ask();
        let verdicts = vec![Verdict::Fits { room: 0, fullness: 10 }];
        test.answers.answered(test.now, id, Ok(FitAnswer { verdicts, best_nodes: None }));
        let Knowledge::Silent(why) = test.knowledge() else { panic!("{:?}", test.knowledge()) };
        assert!(why.contains("room for none"), "{why}");
    }

    #[test]
    fn a_deleted_node_and_an_unused_shape_leave_nothing() {
        let mut test = Test::new();
        let id = test.ask();
        test.answers.forget_node("vk");
        test.fits(id);
        assert!(test.answers.nodes.is_empty() && test.answers.shapes.is_empty());
        let id = test.ask();
        test.fits(id);
        test.answers.retain_shapes(|_| false);
        assert!(test.answers.shapes.is_empty() && test.answers.queries.is_empty());
    }

    #[test]
    fn a_remembered_error_is_small() {
        let mut test = Test::new();
        let id = test.ask();
        test.answers.answered(test.now, id, Err("x".repeat(4000)));
        let Knowledge::Silent(why) = test.knowledge() else { panic!("{:?}", test.knowledge()) };
        assert_eq!(why.len(), 300);
    }
}
