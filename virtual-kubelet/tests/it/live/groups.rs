//! `virtual-kubelet groups` with the pods of a real API server.

use std::path::Path;

use k8s_openapi::api::core::v1::{Namespace as NamespaceObject, Pod};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use tempfile::TempDir;
use vk_testing::ControlPlane;

use crate::{Outcome, vk};

fn groups(kubeconfig: &Path, script: &str, arguments: &[&str]) -> Outcome {
    let kubeconfig = kubeconfig.to_str().unwrap();
    let fixed =
        ["groups", "--provider", "mock", "--provider-config", "mock.yaml", "--kubeconfig", kubeconfig];
    let run = vk(&[&fixed[..], arguments].concat());
    run.write("mock.yaml", script);
    run.run()
}

async fn create_pod(cluster: &ControlPlane, namespace: &str) -> String {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {
            "schedulerName": "nobody",
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "example.com/app:1"}],
        },
    }))
    .unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.admin().unwrap(), namespace);
    pods.create(&PostParams::default(), &pod).await.unwrap().metadata.uid.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn groups_without_pods_are_orphaned_and_only_they_are_removed() {
    let cluster = ControlPlane::shared().await;
    let (folder, namespace) = (TempDir::new().unwrap(), cluster.namespace("groups").await.unwrap());
    let ns = namespace.name();
    let uid = create_pod(cluster, ns).await;
    // The second had the name of the pod; it is another pod. The cluster of both is the UID of kube-system.
    let script = format!(
        "groups:\n- {{id: g-live, node: lost-and-found, pod: {{namespace: {ns}, name: web, uid: {uid}}}}}\n\
         - {{id: g-lost, node: lost-and-found, pod: {{namespace: {ns}, name: web, uid: 00000000-0000-0000-0000-000000000001}}, cpu: '4', memory: 8Gi, \
         pricePerHour: 0.2448, begin: 2026-01-01T00:00:00Z}}\n"
    );
    let admin = cluster.admin_kubeconfig();
    let text = groups(admin, &script, &[]).ok();
    let line = |id: &str| text.lines().find(|line| line.contains(id)).unwrap().to_owned();
    assert!(line("g-live").contains(&format!("{ns}/web")) && !line("g-live").contains("orphaned"), "{text}");
    assert!(line("g-lost").contains("(none)"), "{text}");
    assert!(line("g-lost").ends_with("orphaned: pod does not exist"), "{text}");
    assert!(text.contains("\norphaned: 1 group, 0.2448 USD/h, "), "{text}");

    let json: Value =
        serde_json::from_str(&groups(admin, &script, &["--orphaned", "-o", "json"]).ok()).unwrap();
    assert_eq!(json["groups"].as_array().unwrap().len(), 1, "{json}");
    assert_eq!(
        (&json["groups"][0]["id"], &json["groups"][0]["podExists"]),
        (&json!("g-lost"), &json!(false))
    );
    let systems: Api<NamespaceObject> = Api::all(cluster.admin().unwrap());
    let system = systems.get("kube-system").await.unwrap().metadata.uid.unwrap();
    assert_eq!(json["groups"][0]["cluster"], system, "the cluster is known by the UID of kube-system");

    groups(admin, &script, &["--remove", "g-live"])
        .refused(1, &[&["g-live", &format!("{ns}/web"), "exists", "delete the pod"]]);
    groups(admin, &script, &["--remove", "g-lost", "--remove", "g-live"]).refused(1, &[&["g-live"]]);
    assert_eq!(groups(admin, &script, &["--remove", "g-lost"]).ok(), "removed g-lost\n");

    // The groups of another cluster: its pods cannot be in this API server.
    let other = script.replace(
        "node: lost-and-found,",
        "node: lost-and-found, cluster: 99999999-0000-0000-0000-000000000000,",
    );
    groups(admin, &other, &["--remove", "g-lost"]).refused(1, &[&["g-lost is not removed", cluster.url()]]);
    let named = script
        .replace(&uid, "00000000-0000-0000-0000-000000000002")
        .replace("node: lost-and-found,", "node: lost-and-found, cluster: shop,");
    groups(admin, &named, &["--remove", "g-lost"]).refused(1, &[&["g-lost is not removed", "cluster shop"]]);

    // Who may not list pods learns nothing about orphans.
    let path = folder.path().join("nobody");
    cluster.write_kubeconfig(&path, "nobody", &[]).unwrap();
    let seen = groups(&path, &script, &[]);
    assert_eq!(seen.code, 0, "{seen:#?}");
    assert!(!seen.stdout.contains("orphaned") && seen.stderr.contains("must be permitted"), "{seen:#?}");
    groups(&path, &script, &["--remove", "g-lost"])
        .refused(1, &[&["g-lost is not removed", "cannot list the pods"]]);
}
