//! StatefulSets: ordering, and never two pods of one name.

use serde_json::json;
use tokio::time::Instant;
use vk_testing::ControlPlane;

use super::{
    backend_log::State,
    workload_test::{BRISK, WorkloadTest},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_set_comes_in_order_goes_in_reverse_and_no_two_pods_of_one_name_overlap() {
    let begun = Instant::now();
    let cluster = ControlPlane::shared_with_controllers().await;
    // Two nodes: the next one of a name may land elsewhere, where nobody can wait for the old one.
    let test = WorkloadTest::open(cluster, "stateful", 2, BRISK).await;
    let names = |numbers: &[usize]| numbers.iter().map(|number| format!("db-{number}")).collect::<Vec<_>>();
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
        "spec": {
            "replicas": 5,
            "serviceName": "db",
            "podManagementPolicy": "OrderedReady",
            "selector": {"matchLabels": {"app": "db"}},
            "template": test.template("db", &[("ready-delay", "150ms")]),
        },
    });
    test.apply(&set).await;
    test.kubectl(&["rollout", "status", "statefulset/db", "--timeout=180s"]).await;
    test.agreed(5).await;
    assert_eq!(test.log.order(0, State::is_alive), names(&[0, 1, 2, 3, 4]));
    // Each came when the one before it was ready.
    assert_eq!(test.log.most_starting("db-", 0), 1);

    // Replaced from the last to the first, each under its name.
    let then = test.log.now();
    test.kubectl(&["rollout", "restart", "statefulset/db"]).await;
    test.kubectl(&["rollout", "status", "statefulset/db", "--timeout=180s"]).await;
    test.agreed(5).await;
    let fresh = test.list().await.into_values().map(|pod| pod.metadata.uid.unwrap()).collect::<Vec<_>>();
    assert_eq!(test.log.order(then, |state| matches!(state, State::Ended(_))), names(&[4, 3, 2, 1, 0]));
    assert_eq!(test.created_once(), 10);

    // One that is deleted comes back under its name and another UID.
    test.kubectl(&["delete", "pod/db-2"]).await;
    test.see("statefulset/db", "all are ready again", |found| found["status"]["readyReplicas"] == 5).await;
    test.agreed(5).await;
    let again = test.list().await["db-2"].metadata.uid.clone().unwrap();
    assert!(!fresh.contains(&again));
    // And so does one with less time to stop.
    test.kubectl(&["delete", "pod/db-3", "--grace-period=3"]).await;
    test.see("statefulset/db", "all are ready again", |found| found["status"]["readyReplicas"] == 5).await;
    test.agreed(5).await;

    let then = test.log.now();
    test.kubectl(&["scale", "statefulset/db", "--replicas=1"]).await;
    test.agreed(1).await;
    assert_eq!(test.log.order(then, |state| matches!(state, State::Ended(_))), names(&[4, 3, 2, 1]));
    assert_eq!(test.log.codes("db-"), [0].into(), "somebody was killed");
    test.kubectl(&["delete", "statefulset/db"]).await;
    let pods = test.close().await;
    println!(
        "StatefulSet of 5: in order, replaced, two deleted, down to 1 in {:.1?}; {pods} pods",
        begun.elapsed()
    );
}
