//! Conflicts between processes for the lease of a node.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;
use vk_kube::{
    Instance,
    lease::{INSTANCE_ANNOTATION, LeaseConflict, LeaseLock},
};

use crate::harness::{
    NodeTest, Setup, Who, holder, is_ready, label, renewed, taints, uid, under_both_identities,
    under_both_identities_at_once,
};

under_both_identities!(
    a_restarted_process_takes_over_the_same_node,
    the_lease_of_a_dead_process_is_taken_over_at_once,
    a_process_that_lost_its_lease_gives_up,
);
under_both_identities_at_once!(
    a_stale_lease_is_taken_over_after_its_duration,
    a_second_process_gives_up_and_does_not_disturb_the_first
);

async fn a_restarted_process_takes_over_the_same_node(who: Who) {
    let test = NodeTest::shared(who, "killed").await;
    let controller = test.start_ready(Setup::default()).await;
    test.kubectl(&["label", "node", &test.name, "example.com/theirs=label"]).await;
    test.kubectl(&["taint", "node", &test.name, "example.com/theirs=taint:NoSchedule"]).await;
    let before = test.node().await;
    controller.kill().await;
    assert!(is_ready(&test.node().await), "no process is left to change it");

    let controller = test.start_ready(Setup::default()).await;
    controller.mock.set_capacity("cpu", "5".parse().unwrap());
    let after = test.wait_for("a new capacity", |node| crate::harness::capacity(node, "cpu") == "5").await;
    assert_eq!(uid(&after), uid(&before));
    assert_eq!(after.metadata.labels, before.metadata.labels);
    assert_eq!(after.metadata.annotations, before.metadata.annotations);
    assert_eq!(after.spec, before.spec);
    let since = |node| crate::harness::condition(node, "Ready").unwrap().last_transition_time.clone();
    assert_eq!(since(&after), since(&before), "it stayed Ready");
}

async fn the_lease_of_a_dead_process_is_taken_over_at_once(who: Who) {
    let test = NodeTest::shared(who, "dead").await;
    // Our PID with another start time: a process of this machine that is dead.
    let this = Instance::current().to_string();
    let (rest, start) = this.rsplit_once('/').unwrap();
    let gone: Instance = format!("{rest}/{}", start.parse::<u64>().unwrap() + 1).parse().unwrap();
    let controller = test.start_ready(Setup { instance: gone.clone(), ..Setup::default() }).await;
    let before = test.node().await;
    assert_eq!(holder(&test.lease().await), Some(gone.to_string().as_str()));
    controller.kill().await;

    let begin = Instant::now();
    let _controller = test.start_ready(Setup::default()).await;
    assert!(begin.elapsed() < Duration::from_secs(20), "the lease lasts 40 s: {:?}", begin.elapsed());
    assert_eq!(holder(&test.lease().await), Some(this.as_str()));
    assert_eq!(uid(&test.node().await), uid(&before));
}

async fn a_second_process_gives_up_and_does_not_disturb_the_first(who: Who) {
    let test = NodeTest::shared(who, "second").await;
    let first = test.start_ready(Setup::default().short_lease()).await;
    let (node, lease) = (test.node().await, test.lease().await);
    let mut second = test.start(Setup::default().label("example.com/second", "x").short_lease().elsewhere());
    let refused = second.end().await.unwrap_err();
    let LeaseConflict::InUse { lock, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*lock, LeaseLock::Node(test.name.clone()));
    let text = refused.to_string();
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");

    let now = test.lease().await;
    assert_eq!(holder(&now), holder(&lease));
    assert!(renewed(&now) > renewed(&lease), "the second saw a renewal");
    assert_eq!(test.node().await.metadata.resource_version, node.metadata.resource_version);
    test.wait_for_lease("renewals go on", |later| renewed(later) > renewed(&now)).await;
    assert!(first.is_running());
    // Its own, if the answer to a renewal is late.
    let own = first.requests("patch", "leases", Some("Timeout"));
    assert!(first.requests("patch", "leases", Some("Conflict")) <= own);
    assert_eq!(second.requests("patch", "nodes", None) + second.requests("patch", "leases", None), 0);
}

async fn a_stale_lease_is_taken_over_after_its_duration(who: Who) {
    let test = NodeTest::shared(who, "stale").await;
    let first =
        test.start_ready(Setup::default().short_lease().elsewhere().label("example.com/ours", "a")).await;
    test.kubectl(&["taint", "node", &test.name, "example.com/theirs=taint:NoSchedule"]).await;
    first.kill().await;
    let (node, lease) = (test.node().await, test.lease().await);
    assert!(holder(&lease).unwrap().starts_with("elsewhere/"));

    let _second = test.start_ready(Setup::default().label("example.com/ours", "b")).await;
    let taken = test.lease().await;
    assert_eq!(holder(&taken), Some(Instance::current().to_string().as_str()));
    let waited = renewed(&taken).duration_since(renewed(&lease)).as_secs_f64();
    assert!((3.9..9.0).contains(&waited), "{waited}");
    let now = test.node().await;
    assert_eq!(uid(&now), uid(&node));
    assert_eq!(label(&now, "example.com/ours"), Some("b"));
    assert_eq!(taints(&now), taints(&node));
}

async fn a_process_that_lost_its_lease_gives_up(who: Who) {
    let test = NodeTest::shared(who, "lost").await;
    let mut controller = test.start_ready(Setup::default().short_lease()).await;
    let thief = "elsewhere/boot/pid:[1]/4711/1";
    let body = json!({"metadata": {"annotations": {INSTANCE_ANNOTATION: thief}}});
    test.leases.patch(&test.name, &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
    let lost = controller.end().await.unwrap_err();
    assert!(matches!(&lost, LeaseConflict::Lost { holder, .. } if holder.contains("elsewhere")), "{lost}");
    assert_eq!(holder(&test.lease().await), Some(thief), "a lost lease is not released");
    assert!(is_ready(&test.node().await), "the Node is not changed either");
}
