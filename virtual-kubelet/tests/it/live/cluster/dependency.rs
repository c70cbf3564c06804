//! Objects that pods refer to: copied to the lower cluster, kept in sync, and never overwriting existing objects.

use serde_json::{Value, json};

use super::{
    cluster_namespace::text,
    cluster_pair::{ClusterPair, NamespacePair, ORIGIN},
};

/// A pod that has a ConfigMap as files and a Secret as environment, and both once more in a projected volume.
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

async fn furnish(namespaces: &NamespacePair<'_>, map: &str, secret: &str) {
    let object =
        json!({"metadata": {"name": map, "labels": {"made-by": "hand"}}, "data": {"colour": "green"}});
    namespaces.above.create("configmaps", &object).await;
    let object = json!({"metadata": {"name": secret}, "stringData": {"word": "sesame"}});
    namespaces.above.create("secrets", &object).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn tensile_kube_edits_and_deletions_above_reach_the_copies_below() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("edits").await;
    furnish(&namespaces, "settings", "password").await;
    let (_, twin) = namespaces.run(&reader(pair, "reader", "settings", "password", false)).await;
    // References stay references: the value is in no lower pod.
    assert!(!twin.to_string().contains("sesame"), "{twin}");
    let map = namespaces.below.get("configmaps/settings").await;
    assert_eq!(
        (&map["data"]["colour"], &map["metadata"]["labels"]["made-by"]),
        (&json!("green"), &json!("hand"))
    );
    assert!(map["metadata"]["labels"].get(ORIGIN).is_some(), "{map}");

    namespaces.above.patch("configmaps/settings", &json!({"data": {"colour": null, "shape": "round"}})).await;
    let is_new = |map: &Value| map["data"] == json!({"shape": "round"});
    namespaces.below.see("configmaps/settings", "has the new data and not the old", is_new).await;
    namespaces.above.patch("secrets/password", &json!({"stringData": {"word": "open"}})).await;
    namespaces.below.see("secrets/password", "has the new word", |it| it["data"]["word"] == "b3Blbg==").await;

    namespaces.above.delete("configmaps/settings", None).await;
    namespaces.below.goes("configmaps/settings").await;
    let again = json!({"metadata": {"name": "settings"}, "data": {"colour": "blue"}});
    namespaces.above.create("configmaps", &again).await;
    namespaces
        .below
        .see("configmaps/settings", "has come again", |map| map["data"]["colour"] == "blue")
        .await;
    // The pod went on meanwhile.
    let now = namespaces.below.get("pods/reader").await;
    assert_eq!(now["metadata"]["uid"], twin["metadata"]["uid"]);
    namespaces.remove("reader").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn what_is_not_there_yet_is_brought_down_when_it_comes() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("late").await;
    namespaces.above.create("pods", &reader(pair, "patient", "settings", "password", false)).await;
    namespaces.above.create("pods", &reader(pair, "careless", "maybe", "maybe", true)).await;
    // Made all the same: the lower kubelet waits as every kubelet does.
    namespaces.below.comes("pods/patient").await;
    namespaces.above.runs("careless").await;
    furnish(&namespaces, "settings", "password").await;
    namespaces.below.comes("configmaps/settings").await;
    namespaces.below.comes("secrets/password").await;
    namespaces.above.runs("patient").await;
    assert!(namespaces.below.find("configmaps/maybe").await.is_none());
    furnish(&namespaces, "maybe", "maybe").await;
    namespaces.below.comes("configmaps/maybe").await;
    namespaces.below.comes("secrets/maybe").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn an_immutable_object_that_is_replaced_above_is_replaced_below() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("immutable").await;
    let made =
        |colour: &str| json!({"metadata": {"name": "stone"}, "immutable": true, "data": {"colour": colour}});
    namespaces.above.create("configmaps", &made("grey")).await;
    let mut pod = pair.pod("mason");
    pod["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "stone"}}]);
    namespaces.run(&pod).await;
    let before = namespaces.below.get("configmaps/stone").await;
    assert_eq!(before["immutable"], true);
    namespaces.above.delete("configmaps/stone", None).await;
    namespaces.above.create("configmaps", &made("red")).await;
    let after =
        namespaces.below.see("configmaps/stone", "is red", |map| map["data"]["colour"] == "red").await;
    assert_eq!(after["immutable"], true);
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn tensile_kube_objects_of_others_below_are_used_and_neither_changed_nor_deleted() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("foreign").await;
    namespaces.prepare_below(&json!({})).await;
    let there = json!({"metadata": {"name": "settings"}, "data": {"colour": "black"}});
    namespaces.below.create("configmaps", &there).await;
    let there = json!({"metadata": {"name": "password"}, "stringData": {"word": "theirs"}});
    namespaces.below.create("secrets", &there).await;
    let before = super::object_dump::ObjectDump::of(pair.lower, Some(&namespaces.below.namespace)).await;

    furnish(&namespaces, "settings", "password").await;
    let (upper, _) = namespaces.run(&reader(pair, "reader", "settings", "password", false)).await;
    let told = namespaces.above.told("reader", &["settings"]).await;
    assert_eq!(told["type"], "Warning", "{told}");
    assert_eq!(told["involvedObject"]["uid"], upper["metadata"]["uid"]);
    namespaces.above.patch("configmaps/settings", &json!({"data": {"colour": "white"}})).await;
    namespaces.above.delete("secrets/password", None).await;
    // Something else that has to be copied, after which those edits were seen too.
    let other = json!({"metadata": {"name": "other"}, "data": {"a": "b"}});
    namespaces.above.create("configmaps", &other).await;
    let mut pod = pair.pod("later");
    pod["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "other"}}]);
    namespaces.run(&pod).await;
    namespaces.above.patch("configmaps/other", &json!({"data": {"a": "c"}})).await;
    namespaces.below.see("configmaps/other", "is edited", |map| map["data"]["a"] == "c").await;
    namespaces.remove("reader").await;
    let after = super::object_dump::ObjectDump::of(pair.lower, Some(&namespaces.below.namespace)).await;
    before.assert_same_for_others(&after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn accounts_pull_secrets_and_tokens_below_are_the_lower_clusters() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("account").await;
    let registry = json!({"metadata": {"name": "registry"}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": "{\"auths\":{}}"}});
    namespaces.above.create("secrets", &registry).await;
    let account = json!({"metadata": {"name": "builder"}, "imagePullSecrets": [{"name": "registry"}]});
    namespaces.above.create("serviceaccounts", &account).await;
    let mut pod = pair.pod("worker");
    pod["spec"]["serviceAccountName"] = json!("builder");
    pod["spec"]["automountServiceAccountToken"] = json!(true);
    let (upper, twin) = namespaces.run(&pod).await;
    assert_eq!(twin["spec"]["serviceAccountName"], "builder");
    let account = namespaces.below.get("serviceaccounts/builder").await;
    assert!(account["metadata"]["labels"].get(ORIGIN).is_some(), "{account}");
    assert_eq!(namespaces.below.get("secrets/registry").await["type"], "kubernetes.io/dockerconfigjson");
    let volume = |pod: &Value| {
        let all = pod["spec"]["volumes"].as_array().cloned().unwrap_or_default();
        let names: Vec<String> = all.iter().map(|volume| text(&volume["name"]).to_owned()).collect();
        names.into_iter().find(|name| name.starts_with("kube-api-access-"))
    };
    // The lower API server makes its own, and the upper one's does not come.
    assert!(volume(&twin).is_some() && volume(&twin) != volume(&upper), "{twin}");
}
