//! The real kubelet, on a containerd of its own, as a node of the test control plane. Needs root: `make e2e-resolve`.
//!
//! Both run in PID and mount namespaces of their own, so that whatever they started or mounted ends with them. What they
//! leave outside of those (a bridge, cgroups, kernel settings) is put back by [`machine`].

mod agent;
mod image;
mod machine;
mod observe;
mod runtime;

use std::{net::IpAddr, time::Duration};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::Api;
use vk_testing::eventually;

use super::{
    assert_as_meant,
    case::{Case, NODE},
    ours::Ours,
    recording::{self, Node, Recording},
    stage,
};
use agent::Agent;
use machine::Machine;
use runtime::Runtime;

/// Pods that are started at once: enough to keep two cores busy.
const AT_ONCE: usize = 12;
const SOON: Duration = Duration::from_mins(2);

/// Set to record, in place of comparing with what was recorded.
const RECORD: &str = "VK_RECORD";

#[tokio::test]
#[ignore = "needs root, containerd and the kubelet: make e2e-resolve"]
async fn the_real_kubelet_gives_what_was_recorded_and_what_ours_gives() {
    let machine = Machine::prepare();
    let cluster = stage::control_plane().await;
    let client = cluster.admin().unwrap();
    let runtime = Runtime::start(&machine).await;
    let agent = Agent::start(&machine, &runtime, &cluster);
    let node = registered(&client).await;
    println!("{} on {}: {:?}", node.kubelet, node.runtime, node.allocatable);

    let ours = Ours::new(&cluster, node.clone());
    let seen: Vec<(Case, Recording, Vec<String>)> = stream::iter(Case::all())
        .map(|case| {
            let (cluster, client, agent, ours) = (&cluster, &client, &agent, &ours);
            async move {
                match stage::place(cluster, client, &case).await {
                    Ok(placed) => {
                        let recording = observe::observe(client, agent, placed.clone()).await;
                        let differences = ours.differences(placed, &recording).await;
                        (case, recording, differences)
                    }
                    Err(refused) => {
                        let recording = Recording { refused: Some(refused), ..Recording::default() };
                        (case, recording, Vec::new())
                    }
                }
            }
        })
        .buffered(AT_ONCE)
        .collect()
        .await;
    ours.stop().await;

    if std::env::var_os(RECORD).is_some_and(|value| !value.is_empty()) {
        node.save();
        recording::forget();
        for (case, recording, _) in &seen {
            recording.save(&case.name);
        }
        println!("recorded {} cases", seen.len());
    }
    let same_machine = Node::load().allocatable == node.allocatable;
    let mut other = Vec::new();
    for (case, recording, _) in &seen {
        if (same_machine || !case.depends_on_the_machine()) && *recording != Recording::load(&case.name) {
            other.push(format!("{}: {}", case.name, serde_json::to_string_pretty(recording).unwrap()));
        }
    }
    assert!(other.is_empty(), "{} cases are not as recorded:\n{}", other.len(), other.join("\n"));
    println!("the kubelet: {} cases are as recorded", seen.len());
    let found: Vec<_> = seen.into_iter().map(|(case, _, differences)| (case.name, differences)).collect();
    assert_as_meant(&found);
    println!("ours: {} cases are as the kubelet's", found.len());
}

/// The node, as soon as it is ready.
async fn registered(client: &kube::Client) -> Node {
    let nodes: Api<KubeNode> = Api::all(client.clone());
    let node = eventually("the kubelet's node is Ready", SOON, || async {
        let node = nodes.get(NODE).await.map_err(|error| error.to_string())?;
        let conditions =
            node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        match conditions.iter().find(|condition| condition.type_ == "Ready") {
            Some(ready) if ready.status == "True" => Ok(node),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let status = node.status.unwrap();
    let info = status.node_info.unwrap();
    let addresses = status.addresses.unwrap_or_default();
    Node {
        kubelet: info.kubelet_version,
        runtime: info.container_runtime_version,
        addresses: addresses
            .iter()
            .filter(|address| address.type_ == "InternalIP")
            .map(|address| address.address.parse::<IpAddr>().unwrap())
            .collect(),
        allocatable: status
            .allocatable
            .unwrap_or_default()
            .into_iter()
            .map(|(name, amount)| (name, amount.0))
            .collect(),
    }
}
