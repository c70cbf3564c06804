//! What pods refer to: copied down, kept as it is above, and never at the cost of what is there already.

use serde_json::{Value, json};

use super::{
    rig::{ORIGIN, Rig, Room},
    side::text,
};

/// A pod that has a ConfigMap as files and a Secret as environment, and both once more in a projected volume.
fn reader(rig: &Rig<'_>, name: &str, map: &str, secret: &str, optional: bool) -> Value {
    let mut pod = rig.pod(name);
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

async fn furnish(room: &Room<'_>, map: &str, secret: &str) {
    let object =
        json!({"metadata": {"name": map, "labels": {"made-by": "hand"}}, "data": {"colour": "green"}});
    room.above.create("configmaps", &object).await;
    let object = json!({"metadata": {"name": secret}, "stringData": {"word": "sesame"}});
    room.above.create("secrets", &object).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn tensile_kube_edits_and_deletions_above_reach_the_copies_below() {
    let rig = Rig::common().await;
    let room = rig.room("edits").await;
    furnish(&room, "settings", "password").await;
    let (_, twin) = room.run(&reader(rig, "reader", "settings", "password", false)).await;
    // References stay references: the value is in no lower pod.
    assert!(!twin.to_string().contains("sesame"), "{twin}");
    let map = room.below.get("configmaps/settings").await;
    assert_eq!(
        (&map["data"]["colour"], &map["metadata"]["labels"]["made-by"]),
        (&json!("green"), &json!("hand"))
    );
    assert!(map["metadata"]["labels"].get(ORIGIN).is_some(), "{map}");

    room.above.patch("configmaps/settings", &json!({"data": {"colour": null, "shape": "round"}})).await;
    let is_new = |map: &Value| map["data"] == json!({"shape": "round"});
    room.below.see("configmaps/settings", "has the new data and not the old", is_new).await;
    room.above.patch("secrets/password", &json!({"stringData": {"word": "open"}})).await;
    room.below.see("secrets/password", "has the new word", |it| it["data"]["word"] == "b3Blbg==").await;

    room.above.delete("configmaps/settings", None).await;
    room.below.goes("configmaps/settings").await;
    let again = json!({"metadata": {"name": "settings"}, "data": {"colour": "blue"}});
    room.above.create("configmaps", &again).await;
    room.below.see("configmaps/settings", "has come again", |map| map["data"]["colour"] == "blue").await;
    // The pod went on meanwhile.
    let now = room.below.get("pods/reader").await;
    assert_eq!(now["metadata"]["uid"], twin["metadata"]["uid"]);
    room.remove("reader").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn what_is_not_there_yet_is_brought_down_when_it_comes() {
    let rig = Rig::common().await;
    let room = rig.room("late").await;
    room.above.create("pods", &reader(rig, "patient", "settings", "password", false)).await;
    room.above.create("pods", &reader(rig, "careless", "maybe", "maybe", true)).await;
    // Made all the same: the lower kubelet waits as every kubelet does.
    room.below.comes("pods/patient").await;
    room.above.runs("careless").await;
    furnish(&room, "settings", "password").await;
    room.below.comes("configmaps/settings").await;
    room.below.comes("secrets/password").await;
    room.above.runs("patient").await;
    assert!(room.below.find("configmaps/maybe").await.is_none());
    furnish(&room, "maybe", "maybe").await;
    room.below.comes("configmaps/maybe").await;
    room.below.comes("secrets/maybe").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn an_immutable_object_that_is_replaced_above_is_replaced_below() {
    let rig = Rig::common().await;
    let room = rig.room("immutable").await;
    let made =
        |colour: &str| json!({"metadata": {"name": "stone"}, "immutable": true, "data": {"colour": colour}});
    room.above.create("configmaps", &made("grey")).await;
    let mut pod = rig.pod("mason");
    pod["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "stone"}}]);
    room.run(&pod).await;
    let before = room.below.get("configmaps/stone").await;
    assert_eq!(before["immutable"], true);
    room.above.delete("configmaps/stone", None).await;
    room.above.create("configmaps", &made("red")).await;
    let after = room.below.see("configmaps/stone", "is red", |map| map["data"]["colour"] == "red").await;
    assert_eq!(after["immutable"], true);
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn tensile_kube_objects_of_others_below_are_used_and_neither_changed_nor_deleted() {
    let rig = Rig::common().await;
    let room = rig.room("foreign").await;
    room.prepare_below(&json!({})).await;
    let there = json!({"metadata": {"name": "settings"}, "data": {"colour": "black"}});
    room.below.create("configmaps", &there).await;
    let there = json!({"metadata": {"name": "password"}, "stringData": {"word": "theirs"}});
    room.below.create("secrets", &there).await;
    let before = super::dump::Dump::of(rig.lower, Some(&room.below.namespace)).await;

    furnish(&room, "settings", "password").await;
    let (upper, _) = room.run(&reader(rig, "reader", "settings", "password", false)).await;
    let told = room.above.told("reader", &["settings"]).await;
    assert_eq!(told["type"], "Warning", "{told}");
    assert_eq!(told["involvedObject"]["uid"], upper["metadata"]["uid"]);
    room.above.patch("configmaps/settings", &json!({"data": {"colour": "white"}})).await;
    room.above.delete("secrets/password", None).await;
    // Something else that has to be copied, after which those edits were seen too.
    let other = json!({"metadata": {"name": "other"}, "data": {"a": "b"}});
    room.above.create("configmaps", &other).await;
    let mut pod = rig.pod("later");
    pod["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "other"}}]);
    room.run(&pod).await;
    room.above.patch("configmaps/other", &json!({"data": {"a": "c"}})).await;
    room.below.see("configmaps/other", "is edited", |map| map["data"]["a"] == "c").await;
    room.remove("reader").await;
    let after = super::dump::Dump::of(rig.lower, Some(&room.below.namespace)).await;
    before.assert_same_for_others(&after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn accounts_pull_secrets_and_tokens_below_are_the_lower_clusters() {
    let rig = Rig::common().await;
    let room = rig.room("account").await;
    let registry = json!({"metadata": {"name": "registry"}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": "{\"auths\":{}}"}});
    room.above.create("secrets", &registry).await;
    let account = json!({"metadata": {"name": "builder"}, "imagePullSecrets": [{"name": "registry"}]});
    room.above.create("serviceaccounts", &account).await;
    let mut pod = rig.pod("worker");
    pod["spec"]["serviceAccountName"] = json!("builder");
    pod["spec"]["automountServiceAccountToken"] = json!(true);
    let (upper, twin) = room.run(&pod).await;
    assert_eq!(twin["spec"]["serviceAccountName"], "builder");
    let account = room.below.get("serviceaccounts/builder").await;
    assert!(account["metadata"]["labels"].get(ORIGIN).is_some(), "{account}");
    assert_eq!(room.below.get("secrets/registry").await["type"], "kubernetes.io/dockerconfigjson");
    let volume = |pod: &Value| {
        let all = pod["spec"]["volumes"].as_array().cloned().unwrap_or_default();
        let names: Vec<String> = all.iter().map(|volume| text(&volume["name"]).to_owned()).collect();
        names.into_iter().find(|name| name.starts_with("kube-api-access-"))
    };
    // The lower API server makes its own, and the upper one's does not come.
    assert!(volume(&twin).is_some() && volume(&twin) != volume(&upper), "{twin}");
}
