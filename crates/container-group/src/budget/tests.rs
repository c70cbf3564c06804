use super::{
    buckets::{Buckets, Queue},
    *,
};

const SECOND: Duration = Duration::from_secs(1);

fn limits(per_second: f64, burst: f64) -> Limits {
    Limits { total: Rate { per_second, burst }, actions: BTreeMap::new() }
}

/// Everyone who gets a turn until then, with the time.
fn turns(
    buckets: &mut Buckets<&'static str>,
    from: Duration,
    until: Duration,
) -> Vec<(Duration, &'static str)> {
    let (mut now, mut turns) = (from, Vec::new());
    while now <= until {
        while let Some(who) = buckets.pop(now) {
            turns.push((now, who));
        }
        let Some(next) = buckets.next_turn(now) else { break };
        assert!(next > now, "the driver would spin");
        now = next;
    }
    turns
}

fn push(buckets: &mut Buckets<&'static str>, action: Action, count: usize) {
    (0..count).for_each(|_| buckets.push(Queue { action, is_lookup: false }, action.name()));
}

fn push_lookups(buckets: &mut Buckets<&'static str>, count: usize) {
    let queue = Queue { action: Action::Observe, is_lookup: true };
    (0..count).for_each(|_| buckets.push(queue, "lookup"));
}

fn count(turns: &[(Duration, &'static str)], action: Action) -> usize {
    turns.iter().filter(|(_, who)| *who == action.name()).count()
}

#[test]
fn calls_begin_at_the_rate_after_the_burst() {
    let mut buckets = Buckets::new(&limits(10.0, 20.0));
    push(&mut buckets, Action::Create, 1000);
    let turns = turns(&mut buckets, Duration::ZERO, 50 * SECOND);
    assert_eq!(turns.iter().filter(|(at, _)| at.is_zero()).count(), 20);
    assert!((515..=520).contains(&turns.len()), "{}", turns.len());
}

#[test]
fn deletes_come_before_creates() {
    let mut buckets = Buckets::new(&limits(10.0, 1.0));
    push(&mut buckets, Action::Create, 50);
    push(&mut buckets, Action::Delete, 50);
    let turns = turns(&mut buckets, Duration::ZERO, Duration::from_millis(4_900));
    assert_eq!((count(&turns, Action::Delete), count(&turns, Action::Create)), (turns.len(), 0));
}

#[test]
fn polls_never_starve_and_their_share_is_not_lost() {
    let mut buckets = Buckets::new(&limits(10.0, 1.0));
    push(&mut buckets, Action::Create, 500);
    push(&mut buckets, Action::Changes, 500);
    let both = turns(&mut buckets, Duration::ZERO, 20 * SECOND);
    let polls = count(&both, Action::Changes);
    assert!((39..=43).contains(&polls) && both.len() >= 198, "{polls} of {}", both.len());
    let mut buckets = Buckets::new(&limits(10.0, 1.0));
    push(&mut buckets, Action::Create, 500);
    assert!(turns(&mut buckets, Duration::ZERO, 20 * SECOND).len() >= 198);
}

/// When somebody gets the first turn, while 500 creates take what the polls leave.
fn first_turn(fill: impl FnOnce(&mut Buckets<&'static str>), who: &str) -> Option<Duration> {
    let mut buckets = Buckets::new(&limits(10.0, 1.0));
    push(&mut buckets, Action::Create, 500);
    fill(&mut buckets);
    let turns = turns(&mut buckets, Duration::ZERO, 20 * SECOND);
    turns.iter().find(|(_, other)| *other == who).map(|(at, _)| *at)
}

#[test]
fn many_lookups_hold_up_neither_lists_nor_changes_details_or_the_quota() {
    for action in [Action::Observe, Action::Changes, Action::Detail, Action::Probe] {
        let fill = |buckets: &mut Buckets<&'static str>| {
            push_lookups(buckets, 500);
            push(buckets, action, 1);
        };
        let waited = first_turn(fill, action.name());
        // Polls have two calls a second.
        assert!(waited.is_some_and(|waited| waited <= 2 * SECOND), "{}: {waited:?}", action.name());
    }
}

#[test]
fn many_lists_do_not_hold_up_lookups() {
    let fill = |buckets: &mut Buckets<&'static str>| {
        push(buckets, Action::Observe, 500);
        push_lookups(buckets, 1);
    };
    let waited = first_turn(fill, "lookup");
    assert!(waited.is_some_and(|waited| waited <= 2 * SECOND), "{waited:?}");
}

#[test]
fn many_creates_do_not_hold_up_updates_and_many_logs_no_commands() {
    for (many, other) in [(Action::Create, Action::Update), (Action::Logs, Action::Exec)] {
        let mut buckets = Buckets::new(&limits(10.0, 1.0));
        push(&mut buckets, many, 500);
        push(&mut buckets, other, 1);
        let turns = turns(&mut buckets, Duration::ZERO, SECOND);
        assert_eq!(count(&turns, other), 1, "{turns:?}");
    }
}

#[test]
fn nodes_get_turns_for_the_same_action_in_the_order_of_arrival() {
    let mut buckets = Buckets::new(&limits(1.0, 1.0));
    for node in ["a", "b", "c"] {
        buckets.push(Queue { action: Action::Changes, is_lookup: false }, node);
    }
    let turns = turns(&mut buckets, Duration::ZERO, 3 * SECOND);
    assert_eq!(turns.iter().map(|(_, who)| *who).collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[test]
fn an_action_has_its_own_limit_and_does_not_hold_up_the_others() {
    let rate = Rate { per_second: 1.0, burst: 1.0 };
    let limits = Limits { actions: [(Action::Delete, rate)].into(), ..limits(10.0, 1.0) };
    let mut buckets = Buckets::new(&limits);
    push(&mut buckets, Action::Delete, 100);
    push(&mut buckets, Action::Create, 100);
    let turns = turns(&mut buckets, Duration::ZERO, 5 * SECOND);
    assert!((5..=6).contains(&count(&turns, Action::Delete)), "{turns:?}");
    assert!(count(&turns, Action::Create) >= 43, "{turns:?}");
}

#[test]
fn a_throttled_action_is_halved_waits_as_asked_and_recovers_gradually() {
    let mut buckets = Buckets::new(&limits(10.0, 10.0));
    buckets.throttled(Duration::ZERO, Action::Create, Some(3 * SECOND));
    push(&mut buckets, Action::Create, 10_000);
    push(&mut buckets, Action::Delete, 5);
    let turns = turns(&mut buckets, Duration::ZERO, 400 * SECOND);
    let creates: Vec<_> = turns.iter().filter(|(_, who)| *who == "create").collect();
    assert!(turns[0].0.is_zero(), "deletes go on");
    assert!(creates[0].0 >= 3 * SECOND, "{:?}", creates[0]);
    let within = |from: u32, to: u32| {
        creates.iter().filter(|(at, _)| *at >= from * SECOND && *at < to * SECOND).count()
    };
    assert!((30..=42).contains(&within(3, 9)), "half at first: {}", within(3, 9));
    assert!(within(18, 28) > within(5, 15) && within(18, 28) < 98, "then more: {}", within(18, 28));
    assert!(within(60, 70) >= 99, "then all: {}", within(60, 70));
}

#[test]
fn a_burst_of_throttled_calls_halves_the_rate_once() {
    let mut buckets = Buckets::new(&limits(10.0, 10.0));
    (0..20).for_each(|_| buckets.throttled(Duration::ZERO, Action::Create, None));
    push(&mut buckets, Action::Create, 100);
    assert!(turns(&mut buckets, Duration::ZERO, 4 * SECOND).len() >= 18);
}

#[test]
fn the_estimated_wait_takes_into_account_that_a_halved_rate_recovers() {
    let mut buckets = Buckets::new(&limits(10.0, 1.0));
    for second in 0..10 {
        buckets.throttled(second * SECOND, Action::Create, None);
    }
    push(&mut buckets, Action::Create, 1000);
    let wait = buckets.estimated_wait(10 * SECOND, Action::Create);
    assert!((100 * SECOND..=165 * SECOND).contains(&wait), "{wait:?}");
}

#[test]
fn throttling_never_stops_an_action_for_good() {
    let mut buckets = Buckets::new(&limits(10.0, 10.0));
    (0..100).for_each(|_| buckets.throttled(Duration::ZERO, Action::Create, None));
    push(&mut buckets, Action::Create, 1);
    assert_eq!(turns(&mut buckets, Duration::ZERO, 20 * SECOND).len(), 1);
}

#[test]
fn the_estimated_wait_counts_those_ahead() {
    let mut buckets = Buckets::new(&limits(10.0, 1.0));
    assert_eq!(buckets.estimated_wait(Duration::ZERO, Action::Create), Duration::ZERO);
    push(&mut buckets, Action::Create, 1000);
    let wait = buckets.estimated_wait(Duration::ZERO, Action::Create);
    assert_eq!(wait, 100 * SECOND);
    assert!(buckets.estimated_wait(Duration::ZERO, Action::Delete).is_zero());
}

#[tokio::test(start_paused = true)]
async fn callers_of_one_account_share_the_budget_and_who_gives_up_loses_the_place() {
    let supervisor = Supervisor::new();
    let budget = Budget::new(&limits(1.0, 1.0), &supervisor);
    let start = Instant::now();
    let other = budget.clone();
    other.acquire(Action::Create).await;
    let given_up = tokio::time::timeout(SECOND / 2, budget.acquire(Action::Create)).await;
    assert!(given_up.is_err());
    budget.acquire(Action::Create).await;
    let waited = start.elapsed();
    assert!(waited >= SECOND && waited < 2 * SECOND, "{waited:?}");
    assert!(supervisor.shut_down(SECOND).await);
}

#[test]
fn nobody_can_make_calls_wait_for_hours() {
    for asked in [Duration::from_hours(1), Duration::MAX] {
        let mut buckets = Buckets::new(&limits(10.0, 10.0));
        buckets.throttled(SECOND, Action::Changes, Some(asked));
        push(&mut buckets, Action::Changes, 1);
        let turns = turns(&mut buckets, SECOND, Duration::from_mins(6));
        assert_eq!(turns.len(), 1, "{asked:?}");
        assert!(turns[0].0 > LONGEST_DELAY, "{turns:?}");
    }
}
