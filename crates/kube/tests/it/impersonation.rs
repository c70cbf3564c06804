//! A client that impersonates a node.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::Api;
use serde_json::json;
use vk_kube::{Client, Identity, Kind, Metrics, Objects, access::may_impersonate};
use vk_testing::{ControlPlane, eventually, kubectl};

const SOON: Duration = Duration::from_secs(10);

/// A user who may only impersonate one node.
async fn impersonator(cluster: &ControlPlane, user: &str, node: &str) -> Client {
    let rules = json!([
        {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": [format!("system:node:{node}")]},
        {"apiGroups": [""], "resources": ["groups"], "verbs": ["impersonate"], "resourceNames": ["system:nodes", "system:authenticated"]},
    ]);
    let role: k8s_openapi::api::rbac::v1::ClusterRole =
        serde_json::from_value(json!({"metadata": {"name": user}, "rules": rules})).unwrap();
    Api::all(cluster.admin().unwrap()).create(&kube::api::PostParams::default(), &role).await.unwrap();
    let role = format!("--clusterrole={user}");
    let bound =
        kubectl(cluster, ["create", "clusterrolebinding", user, &role, &format!("--user={user}")]).await;
    assert!(bound.as_ref().unwrap().success(), "{bound:?}");
    let client = Client::fixed(cluster.client_for(user, &[]).unwrap(), Metrics::default());
    eventually("the role is in force", SOON, || async {
        let allowed = may_impersonate(&client, Some(node)).await.map_err(|error| error.to_string())?;
        if allowed { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    client
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_impersonating_client_is_the_node_and_sees_only_what_its_pods_refer_to() {
    let cluster = ControlPlane::shared().await;
    let namespace = cluster.namespace("impersonation").await.unwrap();
    let admin = Client::fixed(cluster.admin().unwrap(), Metrics::default());
    let secrets = |client: &Client| Objects::<Secret>::namespaced(client.clone(), namespace.name());
    for name in ["used", "unused"] {
        let secret = json!({"metadata": {"name": name}, "stringData": {"a": "b"}});
        secrets(&admin).create(&serde_json::from_value(secret).unwrap()).await.unwrap();
    }
    let pods: Objects<Pod> = Objects::namespaced(admin.clone(), namespace.name());
    let pod = json!({"metadata": {"name": "reader"}, "spec": {
        "nodeName": "masked", "automountServiceAccountToken": false,
        "containers": [{"name": "main", "image": "i", "envFrom": [{"secretRef": {"name": "used"}}]}],
    }});
    pods.create(&serde_json::from_value(pod).unwrap()).await.unwrap();

    let process = impersonator(cluster, "masker", "masked").await;
    let node = process.impersonating("masked");
    let who = Identity::fetch(&node).await.unwrap();
    assert_eq!(who.node(), Some("masked"), "{who:?}");
    assert_eq!(Identity::fetch(&process).await.unwrap().user, "masker", "the client itself is unchanged");

    // The authorizer sees the pod a moment later.
    eventually("the node sees its pod's Secret", SOON, || async {
        secrets(&node).get("used").await.map_err(|error| error.to_string())
    })
    .await;
    let refused = secrets(&node).get("unused").await.unwrap_err();
    assert!(
        refused.kind == Kind::Forbidden && refused.message.contains("no relationship found"),
        "{refused}"
    );
    let refused = secrets(&process).get("used").await.unwrap_err();
    assert!(refused.kind == Kind::Forbidden && refused.message.contains("\"masker\""), "{refused}");

    // Lists use the same identity.
    let maps: Objects<ConfigMap> = Objects::namespaced(node.clone(), namespace.name());
    let refused = maps.list(&vk_kube::Selector::default()).await.unwrap_err();
    assert!(refused.message.contains("system:node:masked"), "{refused}");

    // It cannot impersonate another node.
    assert!(!may_impersonate(&process, Some("another")).await.unwrap());
    assert!(!may_impersonate(&process, None).await.unwrap());
    let refused = Identity::fetch(&process.impersonating("another")).await.unwrap_err();
    assert!(refused.kind == Kind::Forbidden && refused.message.contains("cannot impersonate"), "{refused}");
}
