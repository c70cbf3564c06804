//! Copies of the objects that pods refer to. Foreign objects are never changed.

use serde_json::{Value, json};

use super::{
    cluster_pair::{ClusterPair, ORIGIN, TestNamespace, lower, upper},
    namespace_client::text,
};

/// A pod with a ConfigMap as files, a Secret as environment, and both in a projected volume.
fn reader(pair: &ClusterPair<'_>, name: &str, map: &str, secret: &str, optional: bool) -> Value {
    let mut pod = pair.pod(name);
    pod["spec"]["volumes"] = json!([
        {"name": "files", "configMap": {"name": map, "optional": optional}},
        {"name": "all", "projected": {"sources": [{"secret": {"name": secret, "optional": optional}}]}},
    ]);
    pod["spec"]["containers"][0]["env"] = json!([
        {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": secret, "key": "word", "optional": optional}}},
    ]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "files", "mountPath": "/files"}, {"name": "all", "mountPath": "/all"}]);
    pod
}

async fn furnish(namespace: &TestNamespace<'_>, map: &str, secret: &str) {
    let object =
        json!({"metadata": {"name": map, "labels": {"made-by": "hand"}}, "data": {"colour": "green"}});
    namespace.upper.create("configmaps", &object).await;
    let object = json!({"metadata": {"name": secret}, "stringData": {"word": "sesame"}});
    namespace.upper.create("secrets", &object).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn tensile_kube_edits_and_deletions_are_copied() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("edits").await;
    furnish(&namespace, "settings", "password").await;
    let (_, lower_pod) = namespace.run(&reader(pair, "reader", "settings", "password", false)).await;
    // References stay references: no lower pod contains the value.
    assert!(!lower_pod.to_string().contains("sesame"), "{lower_pod}");
    let map = namespace.lower.get("configmaps/settings").await;
    assert_eq!(map["data"]["colour"], "green");
    assert!(map["metadata"]["labels"].get(ORIGIN).is_some(), "{map}");

    namespace.upper.patch("configmaps/settings", &json!({"data": {"colour": null, "shape": "round"}})).await;
    let is_new = |map: &Value| map["data"] == json!({"shape": "round"});
    namespace.lower.wait_for("configmaps/settings", "has the new data and not the old", is_new).await;
    namespace.upper.patch("secrets/password", &json!({"stringData": {"word": "open"}})).await;
    namespace
        .lower
        .wait_for("secrets/password", "has the new word", |it| it["data"]["word"] == "b3Blbg==")
        .await;

    // While the pod runs, the name of a deleted object must not become free for somebody else's.
    namespace.upper.delete("configmaps/settings", None).await;
    let again = json!({"metadata": {"name": "settings"}, "data": {"colour": "blue"}});
    namespace.upper.create("configmaps", &again).await;
    namespace
        .lower
        .wait_for("configmaps/settings", "has come again", |map| map["data"]["colour"] == "blue")
        .await;
    // The pod kept running.
    let now = namespace.lower.get("pods/reader").await;
    assert_eq!(now["metadata"]["uid"], lower_pod["metadata"]["uid"]);
    namespace.upper.delete("configmaps/settings", None).await;
    namespace.remove("reader").await;
    namespace.lower.wait_deleted("configmaps/settings").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_missing_object_is_copied_when_it_appears() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("late").await;
    namespace.upper.create("pods", &reader(pair, "patient", "settings", "password", false)).await;
    namespace.upper.create("pods", &reader(pair, "careless", "maybe", "maybe", true)).await;
    // The pod is not created before its objects: while it waited in the lower cluster, anybody's object could take their names.
    let waits = |pod: &Value| pod["status"].to_string().contains("CreateContainerConfigError");
    namespace.upper.wait_for("pods/patient", "waits for its objects", waits).await;
    assert!(namespace.lower.find("pods/patient").await.is_none());
    namespace.upper.wait_running("careless").await;
    furnish(&namespace, "settings", "password").await;
    namespace.lower.wait_exists("configmaps/settings").await;
    namespace.lower.wait_exists("secrets/password").await;
    namespace.upper.wait_running("patient").await;
    // Empty objects hold the names of those that are optional.
    assert!(namespace.lower.get("configmaps/maybe").await.get("data").is_none());
    furnish(&namespace, "maybe", "maybe").await;
    namespace
        .lower
        .wait_for("configmaps/maybe", "has its data", |map| map["data"]["colour"] == "green")
        .await;
    namespace.lower.wait_for("secrets/maybe", "has its data", |it| it["data"]["word"] == "c2VzYW1l").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_replaced_immutable_object_is_replaced_in_the_lower_cluster() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("immutable").await;
    let made =
        |colour: &str| json!({"metadata": {"name": "stone"}, "immutable": true, "data": {"colour": colour}});
    namespace.upper.create("configmaps", &made("grey")).await;
    let mut pod = pair.pod("mason");
    pod["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "stone"}}]);
    namespace.run(&pod).await;
    let before = namespace.lower.get("configmaps/stone").await;
    assert_eq!(before["immutable"], true);
    namespace.upper.delete("configmaps/stone", None).await;
    namespace.upper.create("configmaps", &made("red")).await;
    let after =
        namespace.lower.wait_for("configmaps/stone", "is red", |map| map["data"]["colour"] == "red").await;
    assert_eq!(after["immutable"], true);
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn tensile_kube_foreign_lower_objects_are_neither_changed_nor_deleted() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("foreign").await;
    namespace.prepare_lower(&json!({})).await;
    let there = json!({"metadata": {"name": "settings"}, "data": {"colour": "black"}});
    namespace.lower.create("configmaps", &there).await;
    let there = json!({"metadata": {"name": "password"}, "stringData": {"word": "theirs"}});
    namespace.lower.create("secrets", &there).await;
    let before = super::snapshot::ClusterSnapshot::of(pair.lower, Some(&namespace.lower.namespace)).await;

    furnish(&namespace, "settings", "password").await;
    namespace.upper.create("pods", &reader(pair, "reader", "settings", "password", false)).await;
    let told = namespace.upper.wait_event("reader", &["NameConflict", "not a copy of ours"]).await;
    assert_eq!(told["type"], "Warning", "{told}");
    namespace.upper.patch("configmaps/settings", &json!({"data": {"colour": "white"}})).await;
    namespace.upper.delete("secrets/password", None).await;
    // When another object was copied, those edits were seen too.
    let other = json!({"metadata": {"name": "other"}, "data": {"a": "b"}});
    namespace.upper.create("configmaps", &other).await;
    let mut pod = pair.pod("later");
    pod["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "other"}}]);
    namespace.run(&pod).await;
    namespace.upper.patch("configmaps/other", &json!({"data": {"a": "c"}})).await;
    namespace.lower.wait_for("configmaps/other", "is edited", |map| map["data"]["a"] == "c").await;
    namespace.remove("reader").await;
    let after = super::snapshot::ClusterSnapshot::of(pair.lower, Some(&namespace.lower.namespace)).await;
    before.assert_same_for_others(&after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn accounts_and_tokens_belong_to_the_lower_cluster() {
    let (upper, lower) = (upper().await, lower().await);
    let named = json!({"apiAccess": "lower", "serviceAccounts": {"builder": "lower-builder"}});
    let pair = &ClusterPair::open(upper, lower, "accounts", 1, named, &[]).await;
    let namespace = pair.test_namespace("account").await;
    let registry = json!({"metadata": {"name": "registry"}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": "{\"auths\":{}}"}});
    namespace.upper.create("secrets", &registry).await;
    let account = json!({"metadata": {"name": "builder"}, "imagePullSecrets": [{"name": "registry"}]});
    namespace.upper.create("serviceaccounts", &account).await;
    let mut pod = pair.pod("worker");
    pod["spec"]["serviceAccountName"] = json!("builder");
    pod["spec"]["automountServiceAccountToken"] = json!(true);
    let (upper, lower_pod) = namespace.run(&pod).await;
    assert_eq!(lower_pod["spec"]["serviceAccountName"], "lower-builder");
    let account = namespace.lower.get("serviceaccounts/lower-builder").await;
    assert!(account["metadata"]["labels"].get(ORIGIN).is_some(), "{account}");
    assert_eq!(namespace.lower.get("secrets/registry").await["type"], "kubernetes.io/dockerconfigjson");
    let volume = |pod: &Value| {
        let all = pod["spec"]["volumes"].as_array().cloned().unwrap_or_default();
        let names: Vec<String> = all.iter().map(|volume| text(&volume["name"]).to_owned()).collect();
        names.into_iter().find(|name| name.starts_with("kube-api-access-"))
    };
    // The lower API server creates its own token, and that of the upper one is not copied.
    assert!(volume(&lower_pod).is_some() && volume(&lower_pod) != volume(&upper), "{lower_pod}");
}
