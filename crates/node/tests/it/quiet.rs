//! Nothing to say.

use std::time::Duration;

use crate::harness::{Bed, Setup, Who, renewed, under_both_identities_at_once};

under_both_identities_at_once!(a_quiet_node_writes_nothing_but_its_lease);

async fn a_quiet_node_writes_nothing_but_its_lease(who: Who) {
    let bed = Bed::shared(who, "quiet").await;
    let agent = bed.start_ready(Setup::default().short_lease()).await;
    let lease = bed.see_lease("an owner", |lease| crate::harness::owner(lease).is_some()).await;
    let node = bed.node().await;
    let calls = |verbs: [&str; 4]| verbs.map(|verb| agent.requests(verb, "nodes", None));
    let verbs = ["get", "create", "patch", "patch_status"];
    let before = calls(verbs);
    let later = renewed(&lease) + Duration::from_secs(5);
    bed.see_lease("five seconds of renewals", |lease| renewed(lease) > later).await;
    assert_eq!(bed.node().await.metadata.resource_version, node.metadata.resource_version);
    assert_eq!(calls(verbs), before, "{verbs:?}");
    let renewals = agent.requests("patch", "leases", Some("ok"));
    assert!((4..=9).contains(&renewals), "{renewals}");
    assert_eq!(agent.requests("get", "leases", None), 1);
}
