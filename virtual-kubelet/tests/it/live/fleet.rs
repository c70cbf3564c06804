//! Several nodes in one process.

use std::collections::BTreeSet;
use std::time::Duration;

use vk_testing::{ControlPlane, eventually, kubectl};

use super::{SOON, becomes_ready, exists, kubelet_port, node, ports, ready, run};

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn each_of_many_nodes_has_its_own_size_and_port() {
    let cluster = ControlPlane::shared().await;
    let (port, base) = (ports(3), ports(5));
    let file = format!(
        "port: {port}\nnodes:\n\
         - {{name: fleet-a, providerConfig: {{cpu: '2'}}}}\n\
         - {{name: fleet-b, providerConfig: {{cpu: '4'}}}}\n\
         - {{name: fleet-c, providerConfig: {{cpu: '8'}}}}\n\
         - {{count: 5, namePattern: 'fleet-small-{{}}', portBase: {base}, labels: {{size: small}}}}\n"
    );
    let mut process = run(cluster, &["--no-port"]).file(&file).start();
    let mut seen = BTreeSet::new();
    for (name, cpu) in [("fleet-a", "2"), ("fleet-b", "4"), ("fleet-c", "8")] {
        let node = becomes_ready(cluster, name).await;
        assert_eq!(node["status"]["capacity"]["cpu"], cpu, "{name}");
        seen.insert(kubelet_port(&node));
    }
    for index in 0..5 {
        let node = becomes_ready(cluster, &format!("fleet-small-{index}")).await;
        assert_eq!(node["metadata"]["labels"]["size"], "small");
        assert_eq!(kubelet_port(&node), u64::from(base) + index);
        seen.insert(kubelet_port(&node));
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
    assert!(seen.contains(&port.into()), "{seen:?}");

    let before = node(cluster, "fleet-small-3").await;
    let deleted = kubectl(cluster, ["delete", "node", "fleet-small-3"]).await.unwrap();
    assert!(deleted.success(), "{deleted:?}");
    eventually("the deleted node comes back", SOON, || async {
        if !exists(cluster, "fleet-small-3").await {
            return Err("it is not there".to_owned());
        }
        let node = node(cluster, "fleet-small-3").await;
        let fresh = node["metadata"]["uid"] != before["metadata"]["uid"];
        if fresh && ready(&node)["status"] == "True" { Ok(()) } else { Err(ready(&node).to_string()) }
    })
    .await;

    assert_eq!(process.stop(Duration::from_secs(10)).await.code, 0);
    for name in ["fleet-a", "fleet-b", "fleet-c", "fleet-small-0", "fleet-small-3", "fleet-small-4"] {
        assert_eq!(ready(&node(cluster, name).await)["reason"], "NodeShutdown", "{name}");
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn no_node_is_touched_when_another_cannot_be_started() {
    let cluster = ControlPlane::shared().await;
    // One that is refused at once, and one that is waited for while the others could be registered.
    for (name, config, code, words) in [
        ("wrong", "{cpu: lots}", 2, ["node wrong", "cpu", "lots"]),
        ("absent", "{backend: nowhere.sock}", 1, ["node absent", "provider mock", "nowhere.sock"]),
    ] {
        let port = ports(4);
        let file = format!(
            "port: {port}\nnodes:\n\
             - {{count: 3, namePattern: 'spared-{{}}'}}\n\
             - {{name: {name}, providerConfig: {config}}}\n"
        );
        let run = run(cluster, &["--no-port", "--startup-timeout", "1s"]).file(&file);
        run.start().end(SOON).await.failed(code, &words);
        for name in ["spared-0", "spared-2", name] {
            assert!(!exists(cluster, name).await, "{name}");
        }
    }
}
