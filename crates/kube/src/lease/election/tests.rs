//! Replicas against a fake API server, in paused time.

mod fake_server;

use std::pin::pin;

use http::Method;
use jiff::Timestamp;
use serde_json::json;
use tokio::task::JoinSet;

use self::fake_server::{Connection, FakeServer};
use super::*;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "component";
const TIMES: LeaseTimes = LeaseTimes::LEADER_ELECTION;
const PERIOD: Duration = Duration::from_secs(2);
/// For the calls between a decision and its effect.
const CALLS: Duration = Duration::from_millis(100);
const STEP: Duration = Duration::from_millis(10);

/// A candidate that runs in the background.
struct Replica {
    name: String,
    fence: Fence,
    leading: watch::Receiver<bool>,
    supervisor: Supervisor,
    paused: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

struct ElectionTest {
    server: FakeServer,
    clock: Clock,
    replicas: Vec<Replica>,
}

/// Runs a future that does not move on while it is paused.
async fn pausable(run: impl Future<Output = ()>, mut paused: watch::Receiver<bool>) {
    let mut run = pin!(run);
    loop {
        tokio::select! {
            biased;
            _ = paused.wait_for(|paused| *paused) => {}
            () = &mut run => return,
        }
        // If the test has ended, the process stays paused.
        if paused.wait_for(|paused| !paused).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Replica {
    fn is_leader(&self) -> bool {
        *self.leading.borrow()
    }

    fn has_ended(&mut self) -> bool {
        self.tasks.try_join_next().is_some_and(|ended| ended.is_ok())
    }
}

impl ElectionTest {
    fn new() -> Self {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        Self { server: FakeServer::default(), clock: Clock::following_tokio(start), replicas: Vec::new() }
    }

    fn start(&mut self) {
        let name = format!("host-{}", self.replicas.len());
        let (fence, supervisor) = (Fence::new(self.clock.clone()), Supervisor::new());
        let (sender, leading) = watch::channel(false);
        let (paused, receiver) = watch::channel(false);
        let election = Election {
            client: self.server.client(&name, &fence),
            namespace: NAMESPACE.to_owned(),
            name: NAME.to_owned(),
            // Without a boot ID nobody can know that it is dead.
            instance: format!("{name}///1/0").parse().unwrap(),
            times: TIMES,
            clock: self.clock.clone(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(pausable(election.run(fence.clone(), sender, supervisor.clone()), receiver));
        self.replicas.push(Replica { name, fence, leading, supervisor, paused, tasks });
    }

    /// Two replicas of which the first leads.
    async fn with_leader_and_standby() -> Self {
        let mut test = Self::new();
        test.start();
        test.wait_for("a leader", CALLS, |test| test.replicas[0].is_leader()).await;
        test.start();
        test.wait(Duration::from_secs(20)).await;
        assert_eq!(test.leaders(), [0]);
        test
    }

    /// Waits until something is so, and returns for how long. Never may two replicas write at once.
    async fn wait_for(&self, what: &str, limit: Duration, condition: impl Fn(&Self) -> bool) -> Duration {
        let begin = Instant::now();
        while !condition(self) {
            assert!(begin.elapsed() <= limit, "{what}: not within {limit:?}");
            tokio::time::sleep(STEP).await;
            let permitted: Vec<&str> =
                self.replicas.iter().filter(|one| one.fence.is_open()).map(|one| one.name.as_str()).collect();
            assert!(permitted.len() <= 1, "{permitted:?} may write");
            let violations = self.server.violations();
            assert!(violations.is_empty(), "{violations:#?}");
        }
        begin.elapsed()
    }

    async fn wait(&self, time: Duration) {
        let end = Instant::now() + time;
        self.wait_for("time passes", time + STEP, |_| Instant::now() >= end).await;
    }

    fn leaders(&self) -> Vec<usize> {
        let leads = |one: &usize| self.replicas[*one].is_leader();
        let leaders: Vec<usize> = (0..self.replicas.len()).filter(leads).collect();
        assert!(leaders.iter().all(|one| self.replicas[*one].fence.is_open()), "a leader may write");
        leaders
    }

    fn set_connection(&self, replica: usize, connection: Connection) {
        self.server.set_connection(&self.replicas[replica].name, connection);
    }

    /// The time since the lease was renewed.
    fn lease_age(&self) -> Duration {
        let renewed = self.server.lease().spec.unwrap().renew_time.unwrap().0;
        self.clock.now().duration_since(renewed).try_into().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_two_replicas_leads_and_the_lease_names_it() {
    let test = ElectionTest::with_leader_and_standby().await;
    let lease = test.server.lease();
    let spec = lease.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("host-0///1/0"));
    assert_eq!(spec.lease_duration_seconds, Some(15));
    assert_eq!((lease.metadata.annotations, lease.metadata.owner_references), (None, None));

    let begin = Instant::now();
    while begin.elapsed() < Duration::from_mins(5) {
        assert_eq!(test.leaders(), [0], "without faults the leader stays");
        test.wait(STEP).await;
    }
    let requests = test.server.requests("host-0");
    assert_eq!(requests[..2], [Method::GET, Method::POST]);
    assert!(requests[2..].iter().all(|method| method == Method::PATCH), "{requests:?}");
    assert!(test.server.requests("host-1").iter().all(|method| method == Method::GET));
}

#[tokio::test(start_paused = true)]
async fn after_the_leader_died_the_other_leads_when_the_lease_has_expired() {
    for moment in 0..4 {
        let test = ElectionTest::with_leader_and_standby().await;
        test.wait(Duration::from_secs(moment)).await;
        let (age, silent) = (test.lease_age(), &test.replicas[0]);
        silent.paused.send_replace(true);
        // A standby sees a renewal up to a period late, and acts with its next read.
        let limit = TIMES.duration + PERIOD * 2 + CALLS;
        let waited = test.wait_for("another leader", limit, |test| test.replicas[1].is_leader()).await;
        let total = waited + age;
        assert!(total >= TIMES.duration && total <= limit, "{total:?} after the last renewal");

        // It was not dead but paused: it learns that it leads no more.
        assert!(!silent.fence.is_open() && silent.is_leader(), "it does not know yet");
        silent.paused.send_replace(false);
        test.wait(CALLS).await;
        assert_eq!(test.leaders(), [1]);
        test.wait(Duration::from_mins(1)).await;
        assert_eq!(test.leaders(), [1]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_stopped_hands_over_at_once() {
    let mut test = ElectionTest::with_leader_and_standby().await;
    test.replicas[0].supervisor.stop();
    test.wait_for("another leader", PERIOD + CALLS, |test| test.replicas[1].is_leader()).await;
    assert!(test.replicas[0].has_ended() && !test.replicas[0].is_leader());
    assert_eq!(test.leaders(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_is_stopped_leaves_the_lease_alone() {
    let mut test = ElectionTest::with_leader_and_standby().await;
    test.replicas[1].supervisor.stop();
    test.wait(CALLS).await;
    assert!(test.replicas[1].has_ended());
    assert!(test.server.requests("host-1").iter().all(|method| method == Method::GET));
    assert_eq!(test.leaders(), [0]);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_hangs_closes_the_fence_before_the_lease_can_be_taken() {
    for broken in [Connection::DropsRequests, Connection::DropsAnswers] {
        let mut test = ElectionTest::with_leader_and_standby().await;
        let age = test.lease_age();
        test.set_connection(0, broken);
        let closed = |test: &ElectionTest| !test.replicas[0].fence.is_open();
        let open = test.wait_for("a closed fence", TIMES.renew_deadline, closed).await;
        assert!(open + age <= TIMES.renew_deadline + STEP * 2, "{broken:?}: {open:?} from an age of {age:?}");
        test.wait(STEP).await;
        assert!(!test.replicas[0].is_leader(), "{broken:?}");

        let limit = TIMES.duration + PERIOD * 2;
        let gap = test.wait_for("another leader", limit, |test| test.replicas[1].is_leader()).await;
        assert!(gap + CALLS + TIMES.renew_deadline >= TIMES.duration, "{broken:?}: {gap:?}");
        test.set_connection(0, Connection::Healthy);
        test.wait(Duration::from_mins(1)).await;
        assert_eq!(test.leaders(), [1], "{broken:?}");
        assert!(!test.replicas[0].has_ended(), "{broken:?}: it stands by");
    }
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_that_outlasts_the_lease_one_replica_leads_again() {
    let test = ElectionTest::with_leader_and_standby().await;
    for replica in 0..2 {
        test.set_connection(replica, Connection::DropsRequests);
    }
    test.wait(Duration::from_mins(2)).await;
    assert!(test.leaders().is_empty());
    for replica in 0..2 {
        test.set_connection(replica, Connection::Healthy);
    }
    // A call that hangs, and the pause before the next attempt.
    let limit = TIMES.renew_deadline / 3 + TIMES.duration / 6 + CALLS;
    test.wait_for("a leader", limit, |test| test.leaders().len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_was_taken_away_stands_by_and_can_lead_again() {
    let test = ElectionTest::with_leader_and_standby().await;
    test.server.edit(&json!({"spec": {"holderIdentity": "elsewhere///7/0"}}));
    let limit = TIMES.renew_interval() * 2;
    test.wait_for("no leader", limit, |test| test.leaders().is_empty()).await;
    let limit = TIMES.duration + PERIOD * 2;
    test.wait_for("a leader", limit, |test| test.leaders().len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_during_a_renewal_closes_the_fence_at_once_and_gives_up_the_release_after_a_few_seconds() {
    let mut test = ElectionTest::with_leader_and_standby().await;
    test.set_connection(0, Connection::DropsRequests);
    test.wait_for("a renewal", TIMES.duration / 3, |test| test.lease_age() > TIMES.duration / 3).await;
    test.replicas[0].supervisor.stop();
    test.wait(STEP).await;
    assert!(!test.replicas[0].fence.is_open() && !test.replicas[0].is_leader(), "closed at once");
    test.wait(RELEASE_TIMEOUT + CALLS).await;
    assert!(test.replicas[0].has_ended());
}

#[tokio::test(start_paused = true)]
async fn an_election_that_is_dropped_leads_no_more() {
    let mut test = ElectionTest::with_leader_and_standby().await;
    test.replicas[0].tasks.shutdown().await;
    assert!(!test.replicas[0].fence.is_open() && !test.replicas[0].is_leader());
}
