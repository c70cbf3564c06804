//! The real kubelet with its own containerd, as a node of the test control plane. Needs root: `make e2e-resolve`.
//!
//! Recordings contain the addresses of the machine, so these are fixed.

mod observe;

use std::{net::IpAddr, time::Duration};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::Api;
use vk_testing::{
    eventually,
    host::{Containerd, HostResources, Image, Kubelet, containerd, kubelet},
};

use super::{
    assert_as_meant,
    case::{Case, ENTRY_POINT, IMAGE, NODE},
    comparison::OurResolver,
    control_plane,
    recording::{self, Node, Recording},
};
/// Number of pods that are started concurrently; keeps two cores busy.
const AT_ONCE: usize = 12;
const SOON: Duration = Duration::from_mins(2);

/// Which machine it is.
const MACHINE: u8 = 211;
/// Prints the container's environment, arguments and files, one per line.
const LOOK: &str = include_str!("peer/look.sh");

/// Environment variable: record instead of comparing.
const RECORD: &str = "VK_RECORD";

#[tokio::test]
#[ignore = "needs root, containerd and the kubelet: make e2e-resolve"]
async fn the_real_kubelet_matches_the_recordings_and_our_resolver() {
    let machine = HostResources::numbered(MACHINE);
    let cluster = control_plane::control_plane().await;
    let client = cluster.admin().unwrap();
    let options = containerd::Options { images: vec![image()], ..containerd::Options::default() };
    let containerd = Containerd::start(machine, options).await;
    let options = kubelet::Options {
        node: NODE.to_owned(),
        features: control_plane::FEATURES.map(str::to_owned).to_vec(),
    };
    let controller = Kubelet::start(&containerd, &cluster, &options).await;
    let node = registered(&client).await;
    println!("{} on {}: {:?}", node.kubelet, node.runtime, node.allocatable);

    let ours = OurResolver::new(&cluster, node.clone());
    let seen: Vec<(Case, Recording, Vec<String>)> = stream::iter(Case::all())
        .map(|case| {
            let (cluster, client, controller, ours) = (&cluster, &client, &controller, &ours);
            async move {
                match control_plane::place(cluster, client, &case).await {
                    Ok(placed) => {
                        let recording = observe::observe(client, controller, placed.clone()).await;
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
        recording::remove_all();
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

/// The image of all pods. It prints its environment and arguments; `/stay` does not exit afterwards.
fn image() -> Image {
    Image::new(IMAGE)
        .entry_point(&[ENTRY_POINT])
        .file("/look", LOOK)
        .file(ENTRY_POINT, "#!/bin/sh\n. /look\n")
        .file("/stay", "#!/bin/sh\n. /look\nexec sleep 2147483647\n")
}

/// Waits for the node to be ready.
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
