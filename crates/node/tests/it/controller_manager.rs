//! The node with the real controller-manager.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;
use vk_testing::ControlPlane;

use crate::harness::{NodeTest, Setup, Who, has_taint, is_ready};

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_ready_node_stays_ready_and_without_taints() {
    let cluster = ControlPlane::shared_with_controllers().await;
    let lives = [Who::Admin, Who::Node].map(|who| async move {
        let test = NodeTest::on(cluster, who, "managed");
        let _controller = test.start_ready(Setup::default()).await;
        let untainted = |node: &_| {
            !has_taint(node, "node.kubernetes.io/not-ready")
                && !has_taint(node, "node.kubernetes.io/unreachable")
        };
        test.wait_for("ready and schedulable", |node| is_ready(node) && untainted(node)).await;
        let end = Instant::now() + Duration::from_secs(16);
        let mut pace = tokio::time::interval(Duration::from_millis(500));
        while Instant::now() < end {
            pace.tick().await;
            let node = test.node().await;
            assert!(is_ready(&node) && untainted(&node), "{node:?}");
        }
    });
    join_all(lives.map(Box::pin)).await;
}
