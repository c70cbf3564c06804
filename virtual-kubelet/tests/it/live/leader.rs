//! Several processes that run the same node with `--leader-elect`.

mod replicas;

use std::time::Duration;

use futures::future::join_all;
use kube::api::DeleteParams;
use rustix::process::Signal;
use tokio::time::Instant;
use vk_supervisor::Clock;
use vk_testing::{
    ControlPlane,
    control_plane::{AUDIT_METADATA, Options},
    eventually,
};

use self::replicas::Stage;
use super::{SOON, becomes_ready, get, leases, ports, run};

/// A short lease, where it is not its length that matters.
const SHORT: [&str; 2] = ["--lease-duration", "4s"];

async fn audited() -> ControlPlane {
    let options = Options { audit_policy: Some(AUDIT_METADATA.to_owned()), ..Options::default() };
    ControlPlane::start(options).await.unwrap()
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_leader_that_is_gone_for_good_is_succeeded_within_20_s_and_every_pod_goes_on() {
    let cluster = ControlPlane::start(Options::with_controllers()).await.unwrap();
    let stage = Stage::new(&cluster, "gone").await;
    let (mut leader, standby) = stage.start_both(&[]).await;
    for index in 0..10 {
        stage.create(&format!("pod-{index}"), &[]).await;
    }
    let before = stage.all_run(10).await;
    let lookout = stage.lookout();

    // Stopped and not killed: so the other cannot see its end, as if it had been on another machine.
    leader.process.signal(Signal::STOP);
    let begin = Instant::now();
    stage.create("late", &[]).await;
    stage.is_taken_by(&standby, Duration::from_secs(20)).await;
    let taken = begin.elapsed();
    let mut after = stage.all_run(11).await;
    let worked = begin.elapsed();
    assert!(worked < Duration::from_secs(20), "{worked:?}");
    assert!(taken > Duration::from_secs(10), "it must not take a lease that holds: {taken:?}");
    after.remove("late");
    assert_eq!(before, after, "the same containers, and none was restarted");
    assert_eq!(stage.nothing_was_made_twice(), 11);
    leader.process.kill();
    lookout.saw_nothing().await;
    println!("lease taken after {taken:.1?}, a pod that came meanwhile runs after {worked:.1?}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_leader_that_is_killed_on_the_same_machine_is_succeeded_at_once() {
    let stage = Stage::new(ControlPlane::shared().await, "killed").await;
    let (mut leader, standby) = stage.start_both(&[]).await;
    stage.create("pod", &[]).await;
    let before = stage.all_run(1).await;
    leader.process.kill();
    let begin = Instant::now();
    stage.is_taken_by(&standby, Duration::from_secs(5)).await;
    println!("lease taken {:.1?} after the kill", begin.elapsed());
    stage.create("late", &[]).await;
    let mut after = stage.all_run(2).await;
    after.remove("late");
    assert_eq!(before, after);
    stage.nothing_was_made_twice();

    // The one that comes back stands by.
    let again = stage.start(&[]);
    again.stands_by().await;
    assert_eq!((standby.leads("killed"), again.leads("killed")), (Ok(true), Ok(false)));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_leader_that_ends_in_order_hands_over_at_once_and_the_node_stays_ready() {
    let stage = Stage::new(ControlPlane::shared().await, "relay-race").await;
    let (mut leader, mut standby) = stage.start_both(&[]).await;
    for index in 0..5 {
        stage.create(&format!("pod-{index}"), &[]).await;
    }
    let before = stage.all_run(5).await;
    let lookout = stage.lookout();
    // As a roll-out does it: a new one comes, an old one goes, until all are new.
    for round in 0..3 {
        leader.process.signal(Signal::TERM);
        let begin = Instant::now();
        stage.is_taken_by(&standby, Duration::from_secs(5)).await;
        let took = begin.elapsed();
        println!("round {round}: lease taken {took:.2?} after SIGTERM");
        assert!(took < Duration::from_secs(3), "{took:?}");
        let outcome = leader.process.end(Duration::from_secs(10)).await;
        assert_eq!(outcome.code, 0, "{outcome:?}");
        eventually("the successor says so", SOON, || async {
            if standby.leads("relay-race")? { Ok(()) } else { Err("no".to_owned()) }
        })
        .await;
        leader = standby;
        standby = stage.start(&[]);
        standby.stands_by().await;
    }
    assert_eq!(before, stage.all_run(5).await);
    assert_eq!(stage.nothing_was_made_twice(), 5);
    lookout.saw_nothing().await;
    // One that stands by and is stopped changes nothing.
    assert_eq!(standby.process.stop(Duration::from_secs(5)).await.code, 0);
    assert!(stage.is_ready().await);
    assert_eq!(leader.leads("relay-race"), Ok(true));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_paused_leader_writes_nothing_when_it_goes_on_and_a_standby_only_looks_at_the_lease() {
    let cluster = audited().await;
    let stage = Stage::new(&cluster, "paused").await;
    let mut leader = stage.start(&SHORT);
    becomes_ready(&cluster, "paused").await;
    let old = stage.only_credential();
    // Pods that always have something to tell, so that it is paused in the midst of writing.
    for index in 0..20 {
        stage.create(&format!("busy-{index}"), &[("run-for", "100ms"), ("restart-backoff", "50ms")]).await;
    }
    let doomed = stage.create("doomed", &[]).await.metadata.name.unwrap();
    let mut standby = stage.start(&SHORT);
    standby.stands_by().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let wrote = stage.writes_of(&old).len();
    assert!(wrote > 100, "the leader was busy: {wrote}");
    for seen in stage.requests().iter().filter(|seen| seen.credential != old) {
        // The version, and the authority of those who may call its kubelet API, are no secrets and nothing of the node.
        let allowed = (seen.verb == "get" && ["leases", "configmaps", ""].contains(&seen.resource.as_str()))
            || seen.resource == "selfsubjectreviews";
        assert!(allowed, "a standby asked for {}", seen.text);
    }

    for round in 0..3 {
        leader.process.signal(Signal::STOP);
        let begin = Instant::now();
        // Whatever the old leader missed, it will see when it goes on.
        stage.create(&format!("missed-{round}"), &[]).await;
        if round == 0 {
            stage.pods.delete(&doomed, &DeleteParams::default()).await.unwrap();
        }
        stage.is_taken_by(&standby, SOON).await;
        println!("round {round}: lease of 4 s taken after {:.1?}", begin.elapsed());
        eventually("the successor has taken up the work", SOON, || async {
            let pod = stage.pods.get(&format!("missed-{round}")).await.map_err(|error| error.to_string())?;
            let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
            if phase == "Running" { Ok(()) } else { Err(phase) }
        })
        .await;

        let resumed = Clock::system().now();
        leader.process.signal(Signal::CONT);
        leader.stands_by().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let credential = if round % 2 == 0 { &old } else { &stage.other_credential(&old) };
        let wrote = stage.writes_of(credential);
        let late: Vec<_> =
            wrote.iter().filter(|seen| seen.received >= resumed).map(|seen| &seen.text).collect();
        assert!(late.is_empty(), "written after it went on: {late:#?}");
        assert!(leader.process.is_running() && standby.process.is_running());
        assert_eq!((leader.leads("paused"), standby.leads("paused")), (Ok(false), Ok(true)));
        assert!(stage.is_ready().await);
        (leader, standby) = (standby, leader);
    }
    assert_eq!(stage.nothing_was_made_twice(), 24);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_leader_that_is_paused_in_the_midst_of_a_burst_sends_nothing_of_it_when_it_goes_on() {
    const BURST: usize = 60;
    let cluster = audited().await;
    let stage = Stage::new(&cluster, "burst").await;
    let mut leader = stage.start(&SHORT);
    becomes_ready(&cluster, "burst").await;
    let first = stage.only_credential();
    let mut standby = stage.start(&SHORT);
    standby.stands_by().await;
    for round in 0..3 {
        let names: Vec<String> = (0..BURST).map(|index| format!("pod-{round}-{index}")).collect();
        let creating = join_all(names.iter().map(|name| stage.create(name, &[])));
        // Each time at another point of the burst.
        let some = BURST * round + BURST / 4 * (round + 1);
        let paused = async {
            stage.has_made(some).await;
            leader.process.signal(Signal::STOP);
        };
        futures::join!(creating, paused);
        stage.is_taken_by(&standby, SOON).await;
        let taken = Clock::system().now();
        stage.all_run(BURST * (round + 1)).await;

        leader.process.signal(Signal::CONT);
        leader.stands_by().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let credential = if round % 2 == 0 { &first } else { &stage.other_credential(&first) };
        let wrote = stage.writes_of(credential);
        let late: Vec<_> =
            wrote.iter().filter(|seen| seen.received >= taken).map(|seen| &seen.text).collect();
        println!(
            "round {round}: {} writes before the pause, {} after it",
            wrote.len() - late.len(),
            late.len()
        );
        assert!(late.is_empty(), "written after another took over: {late:#?}");
        (leader, standby) = (standby, leader);
    }
    assert_eq!(stage.nothing_was_made_twice(), BURST * 3);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn after_an_outage_longer_than_the_lease_exactly_one_leads() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let stage = Stage::new(&cluster, "outage").await;
    let (one, other) = stage.start_both(&SHORT).await;
    stage.create("pod", &[]).await;
    let before = stage.all_run(1).await;
    for hang in [true, false] {
        if hang {
            cluster.pause_api_server().await.unwrap();
        } else {
            cluster.kill_api_server().await.unwrap();
        }
        // Nobody can write that it leads; so nobody does.
        eventually("nobody leads", SOON, || async {
            let leads = [one.leads("outage")?, other.leads("outage")?];
            if leads == [false, false] { Ok(()) } else { Err(format!("{leads:?}")) }
        })
        .await;
        tokio::time::sleep(Duration::from_secs(6)).await;
        if hang {
            cluster.resume_api_server().await.unwrap();
        } else {
            cluster.start_api_server().await.unwrap();
        }
        let begin = Instant::now();
        eventually("one of them leads", SOON, || async {
            let leads = [one.leads("outage")?, other.leads("outage")?];
            if leads[0] == leads[1] { Err(format!("{leads:?}")) } else { Ok(()) }
        })
        .await;
        println!("one leads {:.1?} after the API server is back", begin.elapsed());
        becomes_ready(&cluster, "outage").await;
    }
    stage.create("late", &[]).await;
    let mut after = stage.all_run(2).await;
    after.remove("late");
    assert_eq!(before, after);
    stage.nothing_was_made_twice();
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn replicas_share_the_nodes_and_one_that_is_left_alone_leads_them_all() {
    let cluster = ControlPlane::shared().await;
    let names: Vec<String> = (0..4).map(|index| format!("shared-out-{index}")).collect();
    let start = |admin: u16| {
        let base = ports(4);
        let file = format!("nodes:\n- {{count: 4, namePattern: 'shared-out-{{}}', portBase: {base}}}\n");
        let listen = format!("127.0.0.1:{admin}");
        run(cluster, &["--no-port", "--leader-elect", "--metrics-addr", &listen, SHORT[0], SHORT[1]])
            .file(&file)
            .start()
    };
    let leading = |admin: u16| -> Result<Vec<bool>, String> {
        let (_, metrics) = get(admin, "/metrics")?;
        let leads = |name| metrics.contains(&format!("virtual_kubelet_node_leader{{node=\"{name}\"}} 1\n"));
        Ok(names.iter().map(leads).collect())
    };
    let (first, second) = (ports(1), ports(1));
    let (mut one, _other) = (start(first), start(second));
    eventually("each node has one leader", SOON, || async {
        let (ours, theirs) = (leading(first)?, leading(second)?);
        let each = ours.iter().zip(&theirs).all(|(ours, theirs)| ours != theirs);
        if each { Ok(()) } else { Err(format!("{ours:?} {theirs:?}")) }
    })
    .await;
    for name in &names {
        becomes_ready(cluster, name).await;
    }
    one.kill();
    eventually("the other leads them all", SOON, || async {
        let leads = leading(second)?;
        if leads.iter().all(|leads| *leads) { Ok(()) } else { Err(format!("{leads:?}")) }
    })
    .await;
    for name in &names {
        let lease = leases(cluster).get(name).await.unwrap();
        assert_eq!(lease.spec.unwrap().holder_identity.as_ref(), Some(name), "as kubectl shows it");
    }
}
