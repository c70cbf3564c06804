use super::{buckets::Buckets, *};

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
    (0..count).for_each(|_| buckets.push(action, action.name()));
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
    assert!((45..=65).contains(&within(5, 15)), "half at first: {}", within(5, 15));
    assert!(within(60, 70) > within(5, 15) && within(60, 70) < 95, "then more: {}", within(60, 70));
    assert!(within(300, 310) >= 99, "then all: {}", within(300, 310));
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
