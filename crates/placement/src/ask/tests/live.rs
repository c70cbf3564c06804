//! Tokens for nodes with a real API server.

use std::{fs, path::Path, time::Duration};

use serde_json::{Value, json};
use vk_kube::Identity;
use vk_provider::placement::TOKEN_AUDIENCE;
use vk_server::auth::{ApiReviewer, Reviewer as _};
use vk_testing::{ControlPlane, eventually};

use super::*;
use crate::{ask::service_account::is_only_for, rbac};

const SOON: Duration = Duration::from_secs(30);

async fn kubectl(cluster: &ControlPlane, arguments: &[&str]) -> String {
    let output = vk_testing::kubectl(cluster, arguments).await.unwrap();
    assert!(output.success(), "kubectl {arguments:?}: {output:?}");
    output.stdout.trim().to_owned()
}

/// Creates the objects of these kinds among the manifests of placement. They belong to the namespace.
async fn apply(cluster: &ControlPlane, folder: &Path, namespace: &str, kinds: &[&str]) {
    let manifests = rbac::manifests(namespace);
    let all = manifests.split("\n---\n").map(|document| serde_saphyr::from_str::<Value>(document).unwrap());
    let items: Vec<Value> = all.filter(|object| kinds.contains(&object["kind"].as_str().unwrap())).collect();
    assert_eq!(items.len(), kinds.len());
    let file = folder.join("objects.json");
    fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).unwrap();
    kubectl(cluster, &["apply", "-f", file.to_str().unwrap()]).await;
}

/// A client of the API server with this token.
async fn connect(cluster: &ControlPlane, folder: &Path, supervisor: &Supervisor, token: &str) -> Client {
    let path = folder.join("kubeconfig");
    cluster.write_token_kubeconfig(&path, token).unwrap();
    let options = ClientOptions { kubeconfig: Some(path), server: None };
    options.connect(supervisor, Metrics::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make test"]
async fn a_node_gets_a_token_that_the_api_server_accepts_for_nothing() {
    let cluster = ControlPlane::shared().await;
    let (folder, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (namespace, supervisor) = (cluster.namespace("asking").await.unwrap(), Supervisor::new());
    let namespace = namespace.name();
    let user = rbac::user(namespace);
    apply(cluster, folder.path(), namespace, &["ServiceAccount"]).await;
    let own_token = kubectl(cluster, &["-n", namespace, "create", "token", rbac::NAME]).await;
    let own = connect(cluster, folder.path(), &supervisor, &own_token).await;
    assert_eq!(Identity::fetch(&own).await.unwrap().user, user);
    let node = FakeNode::start(ServingPair::new(), StatusCode::OK, ANSWER).await;
    let fit_client = FitClient::new(own, AskLimits::default());

    let error = fit_client.ask(&node.object(), &question()).await.unwrap_err().to_string();
    for part in [namespace, "cannot create resource", "create serviceaccounts/token", "placement print rbac"]
    {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!((node.requests(), node.connections()), (Vec::new(), 0));

    // What `placement print rbac` has in this namespace is enough.
    apply(cluster, folder.path(), namespace, &["Role", "RoleBinding"]).await;
    eventually("the node is asked", SOON, || async {
        fit_client.ask(&node.object(), &question()).await.map_err(|error| error.to_string())
    })
    .await;
    let [token] = &node.tokens()[..] else { panic!("{:?}", node.tokens()) };
    assert_ne!(*token, own_token);
    assert!(is_only_for(token, TOKEN_AUDIENCE) && !is_only_for(&own_token, TOKEN_AUDIENCE));

    let stolen = connect(cluster, other.path(), &supervisor, token).await;
    assert_eq!(Identity::fetch(&stolen).await.unwrap_err().kind, vk_kube::Kind::Unauthorized);

    // A kubelet API learns the account from it where it asks for the audience, and nowhere else.
    let admin = Client::fixed(cluster.admin().unwrap(), Metrics::default());
    let reviewer = ApiReviewer::new(&admin);
    let reviewed = async |token: &str, audience: Option<&str>| {
        reviewer.review_token(token, audience).await.unwrap().map(|user| user.name)
    };
    assert_eq!(reviewed(token, Some(TOKEN_AUDIENCE)).await, Some(user.clone()));
    assert_eq!(reviewed(token, None).await, None);
    assert_eq!(reviewed(&own_token, Some(TOKEN_AUDIENCE)).await, None);
    assert_eq!(reviewed(&own_token, None).await, Some(user));
}
