//! `detach` with the controllers of a real lower cluster: nothing of the virtual node is left.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use vk_kube::{Client, Kind, Metrics, Objects, objects::Object};
use vk_provider_cluster::{
    detach::{DetachOptions, DetachReport, detach},
    names::{NODE, ORIGIN, ORIGIN_NAME, ORIGIN_NAMESPACE, ORIGIN_UID, OwnerId},
    owner_config_map,
};
use vk_testing::{ControlPlane, control_plane::Options, eventually};

const SOON: Duration = Duration::from_mins(1);
/// The namespaces of the first test.
const SPACES: [&str; 4] = ["alone", "both", "inhabited", "before"];
/// The kinds that are compared.
const KINDS: [&str; 7] =
    ["namespaces", "pods", "configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims", "services"];

static LOWER: OnceCell<ControlPlane> = OnceCell::const_new();

async fn lower() -> Client {
    let options = Options { scheduler: false, ..Options::with_controllers() };
    let plane = LOWER.get_or_init(|| async { ControlPlane::start(options).await.unwrap() }).await;
    Client::fixed(plane.admin().unwrap(), Metrics::default())
}

fn owner(origin: &str, node: &str) -> OwnerId {
    OwnerId { origin: origin.to_owned(), node: node.to_owned() }
}

fn options(lower: &Client, owner: &OwnerId) -> DetachOptions {
    DetachOptions {
        lower: lower.clone(),
        owner: owner.clone(),
        namespaces: None,
        keep_claims: false,
        dry_run: false,
        timeout: SOON,
    }
}

async fn create<K>(lower: &Client, namespace: &str, object: Value)
where
    K: Object + kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
{
    let object = serde_json::from_value(object).unwrap();
    Objects::<K>::namespaced(lower.clone(), namespace).create(&object).await.unwrap();
}

/// Creates everything that a virtual node has in a namespace: its owner ConfigMap, a pod, and its dependencies.
async fn furnish(lower: &Client, namespace: &str, owner: &OwnerId, shared: Option<&str>) {
    owner_config_map::ensure_namespace(lower, namespace, "above", owner).await.unwrap();
    let accounts: Objects<k8s_openapi::api::core::v1::ServiceAccount> =
        Objects::namespaced(lower.clone(), namespace);
    eventually("the namespace is furnished", SOON, || async {
        accounts.get("default").await.map_err(|error| error.to_string())?;
        let config_maps: Objects<ConfigMap> = Objects::namespaced(lower.clone(), namespace);
        config_maps.get("kube-root-ca.crt").await.map_err(|error| error.to_string())
    })
    .await;
    let controller = owner_config_map::ensure(lower, namespace, owner).await.unwrap();
    let plain = k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
        controller: None,
        ..controller.clone()
    };
    let name = |kind: &str| format!("{kind}-{}-{}", owner.origin, owner.node);
    let meta = |name: &str| {
        json!({
            "name": name, "labels": {ORIGIN: owner.origin}, "ownerReferences": [plain],
            "annotations": {ORIGIN_NAMESPACE: "above", ORIGIN_NAME: name},
        })
    };
    create::<ConfigMap>(lower, namespace, json!({"metadata": meta(&name("map")), "data": {"a": "1"}})).await;
    create::<Secret>(lower, namespace, json!({"metadata": meta(&name("secret")), "data": {"a": "MQ=="}}))
        .await;
    let mut claim = meta(&name("claim"));
    claim["annotations"][ORIGIN_UID] = json!("u");
    claim.as_object_mut().unwrap().remove("ownerReferences");
    let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}});
    create::<PersistentVolumeClaim>(lower, namespace, json!({"metadata": claim, "spec": spec})).await;
    let mut pod = meta(&name("pod"));
    pod["ownerReferences"] = json!([controller]);
    pod["labels"][NODE] = json!(owner.node_label());
    pod["labels"][ORIGIN_UID] = json!("u");
    let mut volumes = vec![
        json!({"name": "c", "persistentVolumeClaim": {"claimName": name("claim")}}),
        json!({"name": "m", "configMap": {"name": name("map")}}),
    ];
    volumes.extend(shared.map(|shared| json!({"name": "s", "configMap": {"name": shared}})));
    let spec = json!({"containers": [{"name": "c", "image": "i"}], "volumes": volumes, "automountServiceAccountToken": false});
    create::<Pod>(lower, namespace, json!({"metadata": pod, "spec": spec})).await;
}

/// Creates foreign objects.
async fn strangers(lower: &Client, namespace: &str) {
    create::<ConfigMap>(lower, namespace, json!({"metadata": {"name": "theirs"}, "data": {"a": "1"}})).await;
    create::<Secret>(lower, namespace, json!({"metadata": {"name": "theirs"}})).await;
    let port = json!({"ports": [{"port": 80}]});
    create::<Service>(lower, namespace, json!({"metadata": {"name": "theirs"}, "spec": port})).await;
    let labels = json!({"virtual-pod": "true", NODE: "a"});
    let spec = json!({"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": false});
    create::<Pod>(lower, namespace, json!({"metadata": {"name": "theirs", "labels": labels}, "spec": spec}))
        .await;
}

/// All stored objects, by kind, namespace and name.
async fn dump(lower: &Client) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for kind in KINDS {
        let listing: Value = lower.read(kind, &format!("/api/v1/{kind}")).await.unwrap();
        for item in listing["items"].as_array().unwrap() {
            let meta = &item["metadata"];
            let text = |key: &str| meta[key].as_str().unwrap_or_default().to_owned();
            let (namespace, name) = (text("namespace"), text("name"));
            if !SPACES.contains(&if kind == "namespaces" { name.as_str() } else { namespace.as_str() }) {
                continue;
            }
            all.insert(format!("{kind} {namespace}/{name}"), item.to_string());
        }
    }
    all
}

/// Fails with the names of the differences, because the whole dump would be too much to read.
#[track_caller]
fn assert_same(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>, why: &str) {
    let lacks = |a: &BTreeMap<String, String>, b: &BTreeMap<String, String>| -> Vec<String> {
        a.iter().filter(|(key, value)| b.get(*key) != Some(*value)).map(|(key, _)| key.clone()).collect()
    };
    let (left, right) = (lacks(one, other), lacks(other, one));
    assert!(left.is_empty() && right.is_empty(), "{why}: {left:?} {right:?}");
}

/// The keys of a dump that a report names.
fn named(report: &DetachReport) -> Vec<String> {
    let key = |item: &vk_provider_cluster::detach::LowerObject| {
        let kind = format!("{}s", item.kind.to_lowercase());
        format!("{kind} {}/{}", item.namespace.clone().unwrap_or_default(), item.name)
    };
    report.removed.iter().map(key).collect()
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn detach_removes_all_objects_of_a_node_and_no_others() {
    let lower = &lower().await;
    let [a, b, stranger] = [owner("up", "a"), owner("up", "b"), owner("other", "a")];
    furnish(lower, "alone", &a, None).await;
    furnish(lower, "both", &a, None).await;
    furnish(lower, "both", &b, Some("map-up-a")).await;
    furnish(lower, "both", &stranger, None).await;
    furnish(lower, "inhabited", &a, None).await;
    strangers(lower, "inhabited").await;
    strangers(lower, "both").await;
    // A namespace that existed before must not be removed.
    create_namespace(lower, "before").await;
    furnish(lower, "before", &a, None).await;
    let before = dump(lower).await;

    let planned = detach(&DetachOptions { dry_run: true, ..options(lower, &a) }).await.unwrap();
    assert_same(&dump(lower).await, &before, "nothing is touched by looking");
    let report = detach(&options(lower, &a)).await.unwrap();
    assert_eq!(report.removed, planned.removed, "what was said is what was done");

    let gone = named(&report);
    for key in [
        "namespaces /alone",
        "pods alone/pod-up-a",
        "configmaps alone/map-up-a",
        "secrets both/secret-up-a",
        "persistentvolumeclaims both/claim-up-a",
        "persistentvolumeclaims before/claim-up-a",
        "pods inhabited/pod-up-a",
    ] {
        assert!(gone.iter().any(|one| one == key), "{key} in {gone:?}");
    }
    let mut expected = before.clone();
    // Deleting a namespace deletes its default objects.
    expected.retain(|key, _| !gone.contains(key) && !key.contains(" alone/"));
    let mut after = dump(lower).await;
    let handovers = "configmaps both/map-up-a";
    let (was, is) = (expected.remove(handovers).unwrap(), after.remove(handovers).unwrap());
    let [was, is] = [was, is].map(|text| serde_json::from_str::<Value>(&text).unwrap());
    assert_eq!((&is["data"], &is["metadata"]["labels"]), (&was["data"], &was["metadata"]["labels"]));
    assert_eq!(is["metadata"]["ownerReferences"].as_array().unwrap().len(), 1);
    assert_eq!(
        is["metadata"]["ownerReferences"][0]["name"],
        owner_config_map::name(&b),
        "the other node needs it"
    );
    assert_same(&after, &expected, "byte for byte");

    let why: BTreeMap<String, &str> =
        report.left.iter().map(|(item, why)| (item.to_string(), why.as_str())).collect();
    assert!(why["Namespace inhabited"].contains("theirs"), "{why:?}");
    assert!(why["Namespace both"].contains("virtual node b"), "{why:?}");
    assert!(why["PersistentVolumeClaim both/claim-up-b"].contains("virtual node b"), "{why:?}");
    assert!(!why.contains_key("Namespace before"), "{why:?}");

    let again = detach(&options(lower, &a)).await.unwrap();
    assert_eq!(again.removed, [], "there is nothing left to do");
    after.insert(handovers.to_owned(), is.to_string());
    assert_same(&dump(lower).await, &after, "nothing is touched by doing it again");
}

async fn create_namespace(lower: &Client, name: &str) {
    let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    let namespaces: Objects<k8s_openapi::api::core::v1::Namespace> = Objects::all(lower.clone());
    namespaces.create(&namespace).await.unwrap();
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn objects_that_cannot_be_deleted_are_named_and_claims_can_be_kept() {
    let lower = &lower().await;
    let owner = owner("held", "a");
    furnish(lower, "held", &owner, None).await;
    let pods: Objects<Pod> = Objects::namespaced(lower.clone(), "held");
    let hold = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    let held = hold(json!(["example.com/hold"]));
    pods.patch("pod-held-a", vk_kube::Patch::Merge(&held)).await.unwrap();
    let quick =
        DetachOptions { timeout: Duration::from_secs(3), keep_claims: true, ..options(lower, &owner) };
    let error = detach(&quick).await.unwrap_err();
    assert_eq!(error.kind, Kind::Timeout);
    assert!(error.message.contains("Pod held/pod-held-a"), "{error}");
    pods.patch("pod-held-a", vk_kube::Patch::Merge(&hold(Value::Null))).await.unwrap();

    let claims: Objects<PersistentVolumeClaim> = Objects::namespaced(lower.clone(), "held");
    let report = detach(&DetachOptions { keep_claims: true, ..options(lower, &owner) }).await.unwrap();
    assert!(claims.get("claim-held-a").await.is_ok());
    let why: Vec<String> = report.left.iter().map(|(item, why)| format!("{item}: {why}")).collect();
    assert!(why.contains(&"PersistentVolumeClaim held/claim-held-a: claims are kept".to_owned()), "{why:?}");
    assert!(
        why.iter().any(|line| line.starts_with("Namespace held: it contains PersistentVolumeClaim")),
        "{why:?}"
    );
    let report =
        detach(&DetachOptions { namespaces: Some(vec!["held".to_owned()]), ..options(lower, &owner) })
            .await
            .unwrap();
    let removed: Vec<String> = report.removed.iter().map(ToString::to_string).collect();
    assert_eq!(removed, ["Namespace held", "PersistentVolumeClaim held/claim-held-a"]);
}
