//! What is read on behalf of pods, by the API server's own records.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, stream};
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{ConfigMap, Pod, Secret},
};
use kube::{
    Api, Resource,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};
use vk_testing::{
    ControlPlane,
    control_plane::{AUDIT_METADATA, Options},
    eventually,
};

use super::{
    fixture::{PodFixture, is_running},
    references::mounting,
};
use crate::harness::{SOON, Who};

const NAMESPACES: usize = 10;
const PODS: usize = 20;
const UNRELATED: usize = 1_000;

async fn create<K>(cluster: &ControlPlane, namespace: &str, object: Value)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let object: K = serde_json::from_value(object).unwrap();
    let api = Api::<K>::namespaced(cluster.admin().unwrap(), namespace);
    api.create(&PostParams::default(), &object).await.unwrap();
}

/// One of the pods, and the objects that it names.
fn pod(node: &str, index: usize) -> (Value, Vec<Value>, Vec<Value>) {
    let own = format!("own-{index}");
    let env = json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": own, "key": "a"}}}]);
    let from = json!([{"configMapRef": {"name": own}}]);
    let token = json!({"serviceAccountToken": {"path": "token", "audience": "vault"}});
    let projected = json!({"sources": [token, {"configMap": {"name": "all"}}]});
    let volumes = json!([
        {"name": "all", "projected": projected},
        {"name": "files", "secret": {"secretName": "all"}}
    ]);
    let container = json!({"name": "main", "image": "example.com/app:1", "env": env, "envFrom": from});
    let spec = json!({
        "nodeName": node,
        "automountServiceAccountToken": false,
        "containers": [container],
        "volumes": volumes,
    });
    let pod = json!({"metadata": {"name": format!("web-{index}")}, "spec": spec});
    let secret = json!({"metadata": {"name": own}, "stringData": {"a": "1"}});
    let map = json!({"metadata": {"name": own}, "data": {"b": "2"}});
    (pod, vec![secret], vec![map])
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn nothing_is_read_that_no_pod_refers_to_and_no_refusal_persists() {
    let options = Options { audit_policy: Some(AUDIT_METADATA.to_owned()), ..Options::default() };
    let cluster = ControlPlane::start(options).await.unwrap();
    let fixture = PodFixture::on(&cluster, Who::Node, "audit").await;
    let mut namespaces = Vec::new();
    for _ in 0..NAMESPACES {
        namespaces.push(cluster.namespace("audit").await.unwrap().name().to_owned());
    }
    let unrelated = stream::iter(0..UNRELATED).map(|index| {
        let secret = json!({"metadata": {"name": format!("unrelated-{index}")}, "stringData": {"a": "1"}});
        create::<Secret>(&cluster, &namespaces[index % NAMESPACES], secret)
    });
    unrelated.buffer_unordered(16).collect::<()>().await;
    let run = fixture.start(mounting(&fixture));
    let all = namespaces.iter().flat_map(|namespace| (0..PODS).map(move |index| (namespace, index)));
    let created = stream::iter(all).map(|(namespace, index)| {
        let (cluster, node) = (&cluster, &fixture.node);
        async move {
            let (pod, secrets, maps) = pod(node, index);
            // Half of the pods are there before what they need.
            if index % 2 == 0 {
                create::<Pod>(cluster, namespace, pod.clone()).await;
            }
            for secret in secrets {
                create::<Secret>(cluster, namespace, secret).await;
            }
            for map in maps {
                create::<ConfigMap>(cluster, namespace, map).await;
            }
            if index % 2 == 1 {
                create::<Pod>(cluster, namespace, pod).await;
            }
            if index == PODS / 2 {
                let all = json!({"metadata": {"name": "all"}});
                create::<Secret>(cluster, namespace, all.clone()).await;
                create::<ConfigMap>(cluster, namespace, all).await;
            }
        }
    });
    created.buffer_unordered(8).collect::<()>().await;
    let pods = Api::<Pod>::all(cluster.admin().unwrap());
    eventually("all pods run", SOON * 3, || async {
        let pods = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let running = pods.items.iter().filter(|pod| is_running(pod)).count();
        if running == NAMESPACES * PODS { Ok(()) } else { Err(format!("{running} run")) }
    })
    .await;
    run.stop().await;

    let named: BTreeSet<String> =
        (0..PODS).map(|index| format!("own-{index}")).chain(["all".to_owned()]).collect();
    let log = std::fs::read_to_string(cluster.audit_log().unwrap()).unwrap();
    let user = format!("system:node:{}", fixture.node);
    let mut reads = 0;
    let mut refused: BTreeMap<String, bool> = BTreeMap::new();
    for entry in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if entry["user"]["username"] != user.as_str() {
            continue;
        }
        let (verb, object) = (&entry["verb"], &entry["objectRef"]);
        let place = format!("{verb} {object}");
        let code = entry["responseStatus"]["code"].as_u64().unwrap_or(0);
        // The last word counts.
        refused.insert(place.clone(), code == 403);
        if object["resource"] == "secrets" || object["resource"] == "configmaps" {
            reads += 1;
            let name = object["name"].as_str().unwrap_or_default();
            assert!(named.contains(name), "{place}");
            assert!(namespaces.iter().any(|namespace| object["namespace"] == namespace.as_str()), "{place}");
        }
    }
    // Each object is read at least once.
    assert!(reads >= NAMESPACES * (2 * PODS + 2), "{reads}");
    refused.retain(|_, refused| *refused);
    assert!(refused.is_empty(), "{refused:#?}");
}
