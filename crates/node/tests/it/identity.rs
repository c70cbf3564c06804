//! What the API server says about a whole life.

use serde_json::Value;
use vk_provider::error::Kind;
use vk_provider_mock::{Call, Fault};
use vk_testing::{
    ControlPlane,
    control_plane::{AUDIT_METADATA, Options},
};

use crate::harness::{Bed, Setup, Who, capacity, is_ready, renewed};

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_node_is_refused_nothing_in_its_life() {
    let options = Options { audit_policy: Some(AUDIT_METADATA.to_owned()), ..Options::default() };
    let cluster = ControlPlane::start(options).await.unwrap();
    let bed = Bed::on(&cluster, Who::Node, "life");
    for _ in 0..2 {
        let agent = bed.start_ready(Setup::default().short_lease().label("example.com/a", "b")).await;
        agent.mock.set_capacity("cpu", "9".parse().unwrap());
        bed.see("a new capacity", |node| capacity(node, "cpu") == "9").await;
        agent.mock.faults().set(Call::Ping, Fault::error(Kind::Unavailable, "down"));
        bed.see("not ready", |node| !is_ready(node)).await;
        bed.see_event("NodeNotReady").await;
        agent.mock.faults().clear_all();
        bed.see("ready", is_ready).await;
        bed.see_event("NodeReady").await;
        let lease = bed.lease().await;
        bed.see_lease("a renewal", |now| renewed(now) > renewed(&lease)).await;
        bed.nodes.delete(&bed.name, &kube::api::DeleteParams::default()).await.unwrap();
        bed.see("ready", is_ready).await;
        agent.stop().await.unwrap();
    }

    let log = std::fs::read_to_string(cluster.audit_log().unwrap()).unwrap();
    let user = format!("system:node:{}", bed.name);
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
            // Not there yet, and there already, are answers and no refusals.
            code >= 400 && !matches!(code, 404 | 409)
        })
        .map(|entry| format!("{} {} {}", entry["verb"], entry["requestURI"], entry["responseStatus"]))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}
