//! The policy keeps new pods away from the nodes that the ConfigMap lists for their controller.

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Map, Value, json};
use vk_placement::{
    avoid::KEY_PREFIX,
    convert::{Settings, exemption},
    names,
    policy::{FailurePolicy, MAX_AVOIDED_NODES, NAME, admission_policy},
};
use vk_testing::{ControlPlane, control_plane::Options, eventually};

use crate::{foreign_webhook, generator, kubectl, properties::read};

const NAMESPACE: &str = "kube-system";
const SOON: Duration = Duration::from_secs(30);
const PARALLEL: usize = 8;
/// Generated pods.
const PODS: u64 = 100;
/// The UID of a controller without an entry.
const UNKNOWN: &str = "unknown";
const UNTIL: &str = "2026-11-18T20:05:00Z";

/// What the ConfigMap says about a controller, and the nodes that its pods avoid.
struct Entry {
    uid: &'static str,
    value: String,
    avoided: Vec<String>,
}

/// A pod of a controller.
fn pod_of(uid: &str, mut pod: Value) -> Value {
    let kind = pod["metadata"]["ownerReferences"][0]["kind"].as_str().unwrap_or("ReplicaSet").to_owned();
    let owner = json!({"apiVersion": "apps/v1", "kind": kind, "name": "web", "uid": uid, "controller": true});
    pod["metadata"]["name"] = json!("web");
    pod["metadata"]["ownerReferences"] = json!([owner]);
    pod
}

/// A pod that opted in.
fn plain_pod(uid: &str) -> Value {
    let spec =
        json!({"automountServiceAccountToken": false, "containers": [{"name": "main", "image": "none"}]});
    pod_of(uid, json!({"metadata": {"labels": {names::VIRTUAL_POD: "true"}}, "spec": spec}))
}

/// The spec and the annotations of the pod that the API server would create.
async fn create(cluster: &ControlPlane, pod: &Value) -> Result<Value, String> {
    let pods: Api<Pod> = Api::namespaced(cluster.admin().unwrap(), "default");
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let created = pods.create(&dry_run, &read(pod)).await.map_err(|error| format!("{error}: {pod}"))?;
    Ok(json!({"annotations": created.metadata.annotations, "spec": created.spec}))
}

/// Makes a pod prefer other nodes than these.
fn add_preference(created: &mut Value, nodes: &[String]) {
    let expression = json!({"key": "kubernetes.io/hostname", "operator": "NotIn", "values": nodes});
    let term = json!({"weight": 100, "preference": {"matchExpressions": [expression]}});
    let preferred =
        &mut created["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    if preferred.is_null() {
        *preferred = json!([]);
    }
    preferred.as_array_mut().unwrap().push(term);
}

fn nodes(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn entries() -> Vec<Entry> {
    let entry = |uid, value: &str, avoided: &[&str]| Entry {
        uid,
        value: value.replace('@', UNTIL),
        avoided: nodes(avoided),
    };
    let many: Vec<String> = (0..MAX_AVOIDED_NODES * 5).map(|number| format!("node-{number:04}")).collect();
    let long = |name: &String| format!("{name}={UNTIL}");
    vec![
        entry("two", "vk-b=@,vk-a=@", &["vk-a", "vk-b"]),
        entry("one", "vk-a=@", &["vk-a"]),
        entry("twice", "vk-a=@, vk-a = @,", &["vk-a"]),
        entry("dots", "vk-a.example.com=@", &["vk-a.example.com"]),
        // None of this is an entry.
        entry("no-equals", "x", &[]),
        entry("empty", "", &[]),
        entry("equals", "=", &[]),
        entry("commas", ",,", &[]),
        entry("too-many-equals", "vk-a=@=@", &[]),
        // Nobody would remove it.
        entry("no-time", "vk-a=soon,vk-a=,vk-a=300", &[]),
        entry("no-node", "A_=@,a b=@,-=@,ä=@,'=@,\"]=@, =@", &[]),
        entry("too-long", &format!("{}=@", "n".repeat(64)), &[]),
        entry("among-others", "x,vk-a=@,=@,,No_Node=@,vk-b=@,=", &["vk-a", "vk-b"]),
        // CEL that costs too much would refuse the pod.
        Entry {
            uid: "many",
            value: many.iter().map(long).collect::<Vec<_>>().join(","),
            avoided: many[..MAX_AVOIDED_NODES].to_vec(),
        },
        entry("many-commas", &",".repeat(100_000), &[]),
        entry("many-equals", &"=".repeat(100_000), &[]),
        entry("many-short", &"a=@,".repeat(5_000), &["a"]),
        entry("endless-node", &format!("{}=@", "n".repeat(100_000)), &[]),
        entry("endless-time", &format!("vk-a={}", "9".repeat(100_000)), &[]),
    ]
}

async fn record(cluster: &ControlPlane, entries: &[Entry]) {
    let data = entries.iter().map(|entry| (format!("{KEY_PREFIX}default.{}", entry.uid), json!(entry.value)));
    let patch = json!({"data": data.collect::<Map<_, _>>()});
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin().unwrap(), NAMESPACE);
    maps.patch(NAME, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    eventually("the policy sees the entries", SOON, || async {
        let created = create(cluster, &plain_pod(entries[0].uid)).await?;
        if created["spec"]["affinity"].is_null() { Err("not yet".to_owned()) } else { Ok(()) }
    })
    .await;
}

/// Pods of every entry avoid its nodes, and are created whatever it says.
async fn check_entries(cluster: &ControlPlane, entries: &[Entry]) {
    let without = create(cluster, &plain_pod(UNKNOWN)).await.unwrap();
    assert_eq!(without["spec"]["affinity"], Value::Null);
    for entry in entries {
        let mut expected = without.clone();
        if !entry.avoided.is_empty() {
            add_preference(&mut expected, &entry.avoided);
        }
        assert_eq!(create(cluster, &plain_pod(entry.uid)).await, Ok(expected), "{}", entry.uid);
    }
}

/// The preference is all that an entry changes in a generated pod, and the last that is appended.
async fn check_generated_pods(cluster: &ControlPlane, entry: &Entry) {
    let compared = stream::iter(0..PODS).map(async |seed| {
        let pod = generator::pod(seed);
        let mut expected = create(cluster, &pod_of(UNKNOWN, pod.clone())).await.unwrap();
        let is_converted = pod["metadata"]["labels"][names::VIRTUAL_POD] == "true"
            && exemption(&read(&pod), "default").is_none();
        if is_converted {
            add_preference(&mut expected, &entry.avoided);
        }
        assert_eq!(create(cluster, &pod_of(entry.uid, pod)).await, Ok(expected), "seed {seed}");
        usize::from(is_converted)
    });
    let converted: Vec<usize> = compared.buffered(PARALLEL).collect().await;
    let converted: usize = converted.iter().sum();
    assert!(converted > 40, "{converted} of {PODS} pods are converted");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make test"]
async fn new_pods_prefer_other_nodes_than_those_recorded_for_their_controller() {
    let cluster = &ControlPlane::start(Options::default()).await.unwrap();
    kubectl::apply(cluster, &admission_policy(&Settings::default(), NAMESPACE, FailurePolicy::Fail)).await;
    let entries = entries();
    record(cluster, &entries).await;
    check_entries(cluster, &entries).await;
    check_generated_pods(cluster, &entries[0]).await;

    // The same UID in another namespace means another controller.
    let elsewhere = BTreeMap::from([(format!("{KEY_PREFIX}other.{UNKNOWN}"), "vk-a=2026-11-18T20:05:00Z")]);
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin().unwrap(), NAMESPACE);
    let patch = Patch::Merge(json!({"data": elsewhere}));
    maps.patch(NAME, &PatchParams::default(), &patch).await.unwrap();
    check_entries(cluster, &entries[..1]).await;

    // Only the controller counts, not another owner.
    let mut other = plain_pod(entries[0].uid);
    other["metadata"]["ownerReferences"][0]["controller"] = json!(false);
    assert_eq!(create(cluster, &other).await.unwrap()["spec"]["affinity"], Value::Null);

    // The policy runs again after a webhook that adds a constraint, and adds nothing twice.
    let foreign = foreign_webhook::start(cluster).await;
    kubectl::apply(cluster, &foreign_webhook::configuration(&foreign, cluster.ca_pem()).to_string()).await;
    let without = eventually("the policy is invoked again", SOON, || async {
        let created = create(cluster, &plain_pod(UNKNOWN)).await?;
        if created["annotations"][names::LOWER_NODES] == "late=x" {
            Ok(created)
        } else {
            Err(created.to_string())
        }
    })
    .await;
    let mut expected = without;
    add_preference(&mut expected, &entries[0].avoided);
    assert_eq!(create(cluster, &plain_pod(entries[0].uid)).await, Ok(expected));
}
