//! A node without changes.

use std::time::Duration;

use crate::harness::{NodeTest, Setup, Who, renewed, under_both_identities_at_once};

under_both_identities_at_once!(an_idle_node_writes_only_its_lease);

async fn an_idle_node_writes_only_its_lease(who: Who) {
    let test = NodeTest::shared(who, "quiet").await;
    let controller = test.start_ready(Setup::default().short_lease()).await;
    let lease = test.wait_for_lease("an owner", |lease| crate::harness::owner(lease).is_some()).await;
    let node = test.node().await;
    let calls = |verbs: [&str; 4]| verbs.map(|verb| controller.requests(verb, "nodes", None));
    let verbs = ["get", "create", "patch", "patch_status"];
    let before = calls(verbs);
    let later = renewed(&lease) + Duration::from_secs(5);
    test.wait_for_lease("five seconds of renewals", |lease| renewed(lease) > later).await;
    assert_eq!(test.node().await.metadata.resource_version, node.metadata.resource_version);
    assert_eq!(calls(verbs), before, "{verbs:?}");
    let renewals = controller.requests("patch", "leases", Some("ok"));
    assert!((4..=9).contains(&renewals), "{renewals}");
    assert_eq!(controller.requests("get", "leases", None), 1);
}
