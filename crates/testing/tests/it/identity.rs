//! Who a client is, and what it may do.

use std::os::unix::fs::PermissionsExt;

use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenRequest, TokenRequestSpec, TokenReview};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use vk_testing::{ControlPlane, kubectl};

fn node(name: &str) -> Node {
    serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap()
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_node_may_create_itself_and_no_other() {
    let cluster = ControlPlane::shared().await;
    let nodes = Api::<Node>::all(cluster.node_client("mine").unwrap());
    nodes.create(&PostParams::default(), &node("mine")).await.unwrap();

    let refused = nodes.create(&PostParams::default(), &node("another")).await.unwrap_err();
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert!(status.is_forbidden(), "{status:?}");
    assert!(status.message.contains("is not allowed to modify node"), "{status:?}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_client_has_the_user_and_groups_that_were_asked_for() {
    let cluster = ControlPlane::shared().await;
    let client = cluster.client_for("jane", &["readers", "writers"]).unwrap();
    let review = Api::<SelfSubjectReview>::all(client)
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .unwrap();
    let info = review.status.unwrap().user_info.unwrap();
    assert_eq!(info.username.as_deref(), Some("jane"));
    assert_eq!(info.groups.unwrap(), ["readers", "writers", "system:authenticated"]);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_written_kubeconfig_is_private_and_works_with_kubectl() {
    let cluster = ControlPlane::shared().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jane.kubeconfig");
    cluster.write_kubeconfig(&path, "jane", &[]).unwrap();
    for file in [path.as_path(), cluster.admin_kubeconfig()] {
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    let flag = format!("--kubeconfig={}", path.display());
    let jane = kubectl(cluster, [flag.as_str(), "auth", "whoami", "--output=name"]).await.unwrap();
    assert!(jane.success(), "{}", jane.stderr);
    let forbidden = kubectl(cluster, [flag.as_str(), "get", "nodes"]).await.unwrap();
    assert!(forbidden.stderr.contains("User \"jane\" cannot list"), "{}", forbidden.stderr);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_api_server_signs_tokens_and_accepts_them() {
    let cluster = ControlPlane::shared().await;
    let client = cluster.admin().unwrap();
    let namespace = cluster.namespace("tokens").await.unwrap();
    let request = TokenRequest { spec: Some(TokenRequestSpec::default()), ..TokenRequest::default() };
    let token = Api::<ServiceAccount>::namespaced(client.clone(), namespace.name())
        .create_token_request("default", &PostParams::default(), &request)
        .await
        .unwrap()
        .status
        .unwrap()
        .token;
    let review: TokenReview = serde_json::from_value(json!({ "spec": { "token": token } })).unwrap();
    let review = Api::<TokenReview>::all(client).create(&PostParams::default(), &review).await.unwrap();
    let user = review.status.unwrap().user.unwrap().username.unwrap();
    assert_eq!(user, format!("system:serviceaccount:{namespace}:default"));
}
