//! StatefulSets: order, and never two of one name.

use serde_json::json;
use tokio::time::Instant;
use vk_testing::ControlPlane;

use super::{
    chronicle::State,
    site::{BRISK, Site},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_set_comes_in_order_goes_in_reverse_and_no_two_pods_of_one_name_overlap() {
    let begun = Instant::now();
    let cluster = ControlPlane::shared_with_controllers().await;
    // Two nodes: the next one of a name may land elsewhere, where nobody can wait for the old one.
    let site = Site::open(cluster, "stateful", 2, BRISK).await;
    let names = |numbers: &[usize]| numbers.iter().map(|number| format!("db-{number}")).collect::<Vec<_>>();
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
        "spec": {
            "replicas": 5,
            "serviceName": "db",
            "podManagementPolicy": "OrderedReady",
            "selector": {"matchLabels": {"app": "db"}},
            "template": site.template("db", &[("ready-delay", "150ms")]),
        },
    });
    site.apply(&set).await;
    site.kubectl(&["rollout", "status", "statefulset/db", "--timeout=180s"]).await;
    site.agreed(5).await;
    assert_eq!(site.chronicle.order(0, State::is_alive), names(&[0, 1, 2, 3, 4]));
    // Each came when the one before it was ready.
    assert_eq!(site.chronicle.most_starting("db-", 0), 1);

    // Replaced from the last to the first, each under its name.
    let then = site.chronicle.now();
    site.kubectl(&["rollout", "restart", "statefulset/db"]).await;
    site.kubectl(&["rollout", "status", "statefulset/db", "--timeout=180s"]).await;
    site.agreed(5).await;
    let fresh = site.list().await.into_values().map(|pod| pod.metadata.uid.unwrap()).collect::<Vec<_>>();
    assert_eq!(site.chronicle.order(then, |state| matches!(state, State::Ended(_))), names(&[4, 3, 2, 1, 0]));
    assert_eq!(site.created_once(), 10);

    // One that is deleted comes back under its name and another UID.
    site.kubectl(&["delete", "pod/db-2"]).await;
    site.see("statefulset/db", "all are ready again", |found| found["status"]["readyReplicas"] == 5).await;
    site.agreed(5).await;
    let again = site.list().await["db-2"].metadata.uid.clone().unwrap();
    assert!(!fresh.contains(&again));
    // And so does one with less time to stop.
    site.kubectl(&["delete", "pod/db-3", "--grace-period=3"]).await;
    site.see("statefulset/db", "all are ready again", |found| found["status"]["readyReplicas"] == 5).await;
    site.agreed(5).await;

    let then = site.chronicle.now();
    site.kubectl(&["scale", "statefulset/db", "--replicas=1"]).await;
    site.agreed(1).await;
    assert_eq!(site.chronicle.order(then, |state| matches!(state, State::Ended(_))), names(&[4, 3, 2, 1]));
    assert_eq!(site.chronicle.codes("db-"), [0].into(), "somebody was killed");
    site.kubectl(&["delete", "statefulset/db"]).await;
    let pods = site.close().await;
    println!(
        "StatefulSet of 5: in order, replaced, two deleted, down to 1 in {:.1?}; {pods} pods",
        begun.elapsed()
    );
}
