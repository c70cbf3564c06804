//! Two processes that run the same node.

use std::time::Duration;

use rustix::process::Signal;
use vk_testing::{ControlPlane, eventually};

use super::{Process, SOON, becomes_ready, leases, node, ready, run};

/// The default lease is renewed every 10 s, which shows that the first process is alive.
const NOTICED: Duration = Duration::from_secs(15);

/// The holder of a node's lease.
async fn holder(cluster: &ControlPlane, node: &str) -> String {
    let lease = leases(cluster).get(node).await.unwrap();
    lease.metadata.annotations.unwrap_or_default().remove("virtual-kubelet.io/instance").unwrap_or_default()
}

/// Waits until a process has logged a text.
async fn says(process: &Process, words: &str) {
    eventually(&format!("the process says {words:?}"), SOON, || async {
        if process.stderr().contains(words) { Ok(()) } else { Err("it does not") }
    })
    .await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_second_process_gives_up_and_names_the_first() {
    let cluster = ControlPlane::shared().await;
    let mut first = run(cluster, &["--nodename", "wanted"]).start();
    let before = becomes_ready(cluster, "wanted").await;
    let mut second = run(cluster, &["--nodename", "wanted"]).start();
    let outcome = second.end(NOTICED).await;
    outcome.failed(1, &["node wanted is already run by", &format!("process {} ", first.pid()), "--nodename"]);

    assert!(first.is_running());
    let after = node(cluster, "wanted").await;
    assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert_eq!(ready(&after)["status"], "True");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn of_two_that_start_together_exactly_one_stays() {
    let cluster = ControlPlane::shared().await;
    let flags = ["--nodename", "contested", "--lease-duration", "4s"];
    let (mut one, mut other) = (run(cluster, &flags).start(), run(cluster, &flags).start());
    becomes_ready(cluster, "contested").await;
    eventually("one has given up", NOTICED, || {
        let running = [one.is_running(), other.is_running()];
        async move { if running == [true, true] { Err("both run") } else { Ok(()) } }
    })
    .await;
    let (mut winner, mut loser) = if one.is_running() { (one, other) } else { (other, one) };
    loser.end(SOON).await.failed(1, &["node contested", &format!("process {} ", winner.pid())]);
    assert!(winner.is_running());
    assert!(holder(cluster, "contested").await.contains(&format!("/{}/", winner.pid())));
    assert_eq!(ready(&node(cluster, "contested").await)["status"], "True");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_waiting_process_that_is_stopped_leaves_the_node_to_the_first() {
    let cluster = ControlPlane::shared().await;
    let first = run(cluster, &["--nodename", "kept"]).start();
    becomes_ready(cluster, "kept").await;
    let mut second = run(cluster, &["--nodename", "kept", "--shutdown-node", "delete"]).start();
    says(&second, "waiting to see whether it is alive").await;
    let outcome = second.stop(Duration::from_secs(5)).await;
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert_eq!(ready(&node(cluster, "kept").await)["status"], "True");
    assert!(holder(cluster, "kept").await.contains(&format!("/{}/", first.pid())));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_process_that_slept_through_its_lease_gives_way_to_its_successor() {
    let cluster = ControlPlane::shared().await;
    let flags = ["--nodename", "asleep", "--lease-duration", "4s"];
    let mut first = run(cluster, &flags).start();
    let before = becomes_ready(cluster, "asleep").await;
    first.signal(Signal::STOP);
    let mut second = run(cluster, &flags).start();
    let mark = format!("/{}/", second.pid());
    eventually("the second process has the lease", SOON, || async {
        let holder = holder(cluster, "asleep").await;
        if holder.contains(&mark) { Ok(()) } else { Err(holder) }
    })
    .await;

    first.signal(Signal::CONT);
    let outcome = first.end(NOTICED).await;
    outcome.failed(1, &["node asleep was taken over by", &format!("process {} ", second.pid())]);
    assert!(second.is_running());
    assert!(holder(cluster, "asleep").await.contains(&mark));
    let after = node(cluster, "asleep").await;
    assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert_eq!(ready(&after)["status"], "True", "the first one must not write that the node is shut down");
}
