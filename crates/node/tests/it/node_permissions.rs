//! Permissions that a node identity needs.

use serde_json::Value;
use vk_provider::error::Kind;
use vk_provider_mock::{Call, Fault};
use vk_testing::{
    ControlPlane,
    control_plane::{AUDIT_METADATA, Options},
};

use crate::harness::{NodeTest, Setup, Who, capacity, is_ready, renewed};

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn no_request_of_a_node_identity_is_rejected() {
    let options = Options { audit_policy: Some(AUDIT_METADATA.to_owned()), ..Options::default() };
    let cluster = ControlPlane::start(options).await.unwrap();
    let test = NodeTest::on(&cluster, Who::Node, "life");
    for _ in 0..2 {
        let controller = test.start_ready(Setup::default().short_lease().label("example.com/a", "b")).await;
        controller.mock.set_capacity("cpu", "9".parse().unwrap());
        test.wait_for("a new capacity", |node| capacity(node, "cpu") == "9").await;
        controller.mock.faults().set(Call::Ping, Fault::error(Kind::Unavailable, "down"));
        test.wait_for("not ready", |node| !is_ready(node)).await;
        test.wait_for_event("NodeNotReady").await;
        controller.mock.faults().clear_all();
        test.wait_for("ready", is_ready).await;
        test.wait_for_event("NodeReady").await;
        let lease = test.lease().await;
        test.wait_for_lease("a renewal", |now| renewed(now) > renewed(&lease)).await;
        test.nodes.delete(&test.name, &kube::api::DeleteParams::default()).await.unwrap();
        test.wait_for("ready", is_ready).await;
        controller.stop().await.unwrap();
    }

    let log = std::fs::read_to_string(cluster.audit_log().unwrap()).unwrap();
    let user = format!("system:node:{}", test.name);
    let entries: Vec<Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|entry| entry["user"]["username"] == user.as_str())
        .collect();
    assert!(entries.len() > 20, "{}", entries.len());
    let refused: Vec<String> = entries
        .iter()
        .filter(|entry| {
            let code = entry["responseStatus"]["code"].as_u64().unwrap_or(0);
            // Not found and already exists are normal.
            code >= 400 && !matches!(code, 404 | 409)
        })
        .map(|entry| format!("{} {} {}", entry["verb"], entry["requestURI"], entry["responseStatus"]))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}
