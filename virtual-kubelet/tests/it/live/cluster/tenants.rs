//! Tenants are kept apart: a pod never gets an object of somebody else because it knows its name, and never more of the lower cluster
//! than the operator allows.

use serde_json::{Value, json};
use vk_testing::eventually;

use super::{
    cluster_pair::{ClusterPair, ORIGIN, TestNamespace, lower, upper},
    namespace_client::{NamespaceClient, TIMEOUT, text},
};

/// The first characters of the service account that pods have by default.
const OWN_ACCOUNT: &str = "vk-pods-";

/// Adds a reference to an object named `theirs` to a pod.
fn refer(pod: &mut Value, reference: &Value) {
    let spec = pod["spec"].as_object_mut().unwrap();
    for (field, value) in reference.as_object().unwrap() {
        match field.as_str() {
            "env" | "envFrom" => spec["containers"][0][field] = value.clone(),
            _ => drop(spec.insert(field.clone(), value.clone())),
        }
    }
}

/// Every way in which a pod can refer to a Secret, a ConfigMap or a claim, and the kind of the object.
fn references() -> Vec<(&'static str, &'static str, Value)> {
    let volume = |source: Value| {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        json!({"volumes": [volume]})
    };
    let env = |source: Value| json!({"env": [{"name": "A", "valueFrom": source}]});
    let key = json!({"name": "theirs", "key": "word"});
    let optional_key = json!({"name": "theirs", "key": "word", "optional": true});
    vec![
        ("secret-env", "secrets", env(json!({"secretKeyRef": key}))),
        ("secret-env-optional", "secrets", env(json!({"secretKeyRef": optional_key}))),
        ("map-env", "configmaps", env(json!({"configMapKeyRef": key}))),
        ("secret-from", "secrets", json!({"envFrom": [{"secretRef": {"name": "theirs"}}]})),
        (
            "map-from",
            "configmaps",
            json!({"envFrom": [{"configMapRef": {"name": "theirs", "optional": true}}]}),
        ),
        ("secret-volume", "secrets", volume(json!({"secret": {"secretName": "theirs"}}))),
        ("map-volume", "configmaps", volume(json!({"configMap": {"name": "theirs", "optional": true}}))),
        (
            "projected",
            "secrets",
            volume(json!({"projected": {"sources": [{"secret": {"name": "theirs", "optional": true}}]}})),
        ),
        ("pull", "secrets", json!({"imagePullSecrets": [{"name": "theirs"}]})),
        (
            "claim",
            "persistentvolumeclaims",
            volume(json!({"persistentVolumeClaim": {"claimName": "theirs"}})),
        ),
    ]
}

/// Creates objects of the lower cluster's own users.
async fn furnish_lower(below: &NamespaceClient<'_>, name: &str) {
    below.create("secrets", &json!({"metadata": {"name": name}, "stringData": {"word": "sesame"}})).await;
    below.create("configmaps", &json!({"metadata": {"name": name}, "data": {"word": "sesame"}})).await;
    let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}});
    below.create("persistentvolumeclaims", &json!({"metadata": {"name": name}, "spec": spec})).await;
}

/// Waits until a pod says that it waits because of a name, and checks that nothing runs.
async fn waits_for_name(namespace: &TestNamespace<'_>, pod: &str) {
    let held = |pod: &Value| {
        pod["status"]["reason"] == "NameConflict"
            && pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "NameConflict"
    };
    eventually(&format!("{pod} waits"), TIMEOUT, || async {
        let upper = namespace.upper.get(&format!("pods/{pod}")).await;
        let lower = namespace.lower.find(&format!("pods/{pod}")).await;
        assert!(lower.is_none(), "{pod} was created below: {}", upper["spec"]);
        if held(&upper) { Ok(()) } else { Err(upper["status"].to_string()) }
    })
    .await;
    let upper = namespace.upper.get(&format!("pods/{pod}")).await;
    assert_eq!(upper["status"]["phase"], "Pending");
    let told = namespace.upper.wait_event(pod, &["NameConflict"]).await;
    assert_eq!((text(&told["reason"]), text(&told["type"])), ("NameConflict", "Warning"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_pod_never_gets_an_object_that_only_the_lower_cluster_has() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("theirs").await;
    namespace.prepare_lower(&json!({})).await;
    furnish_lower(&namespace.lower, "theirs").await;
    let before = namespace.lower.get("secrets/theirs").await;
    for (name, _, reference) in references() {
        let mut pod = pair.pod(name);
        refer(&mut pod, &reference);
        // The scheduler waits for claims that do not exist.
        pod["spec"]["nodeName"] = json!(pair.node);
        namespace.upper.create("pods", &pod).await;
    }
    for (name, ..) in references() {
        waits_for_name(&namespace, name).await;
    }
    assert_eq!(namespace.lower.get("secrets/theirs").await, before);

    // The pods run when the name is free. Those that need the object wait for it.
    for kind in ["secrets", "configmaps"] {
        namespace.lower.delete(&format!("{kind}/theirs"), None).await;
    }
    for name in ["secret-env-optional", "map-from", "map-volume", "projected", "pull"] {
        namespace.upper.wait_running(name).await;
    }
    let needs = |pod: &Value| pod["status"].to_string().contains("CreateContainerConfigError");
    for name in ["secret-env", "secret-volume", "map-env"] {
        namespace.upper.wait_for(&format!("pods/{name}"), "waits for the object", needs).await;
        assert!(namespace.lower.find(&format!("pods/{name}")).await.is_none(), "{name}");
    }
    let ours = json!({"metadata": {"name": "theirs"}, "stringData": {"word": "ours"}});
    namespace.upper.create("secrets", &ours).await;
    namespace
        .upper
        .create("configmaps", &json!({"metadata": {"name": "theirs"}, "data": {"word": "ours"}}))
        .await;
    for name in ["secret-env", "secret-from", "secret-volume", "map-env"] {
        namespace.upper.wait_running(name).await;
    }
    assert_eq!(namespace.lower.get("secrets/theirs").await["data"]["word"], "b3Vycw==");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_pod_waits_while_a_foreign_object_has_the_name_of_its_copy() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("same").await;
    namespace.prepare_lower(&json!({})).await;
    furnish_lower(&namespace.lower, "theirs").await;
    let ours = json!({"metadata": {"name": "theirs"}, "stringData": {"word": "ours"}});
    namespace.upper.create("secrets", &ours).await;
    let mut pod = pair.pod("reader");
    refer(&mut pod, &json!({"envFrom": [{"secretRef": {"name": "theirs"}}]}));
    namespace.upper.create("pods", &pod).await;
    waits_for_name(&namespace, "reader").await;
    namespace.lower.delete("secrets/theirs", None).await;
    namespace.upper.wait_running("reader").await;
    assert_eq!(namespace.lower.get("secrets/theirs").await["data"]["word"], "b3Vycw==");
}

/// Two upper clusters with the same namespace: what one copies, the other cannot read, neither before nor after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn upper_clusters_that_share_a_lower_one_never_get_each_others_objects() {
    let (upper, lower) = (upper().await, lower().await);
    let one = ClusterPair::open(upper, lower, "tenant-one", 1, json!({"origin": "one"}), &[]).await;
    let two = ClusterPair::open(upper, lower, "tenant-two", 1, json!({"origin": "two"}), &[]).await;
    let namespace = one.test_namespace("shared").await;
    // The upper cluster of this test stands for both: the second process finds the Secret of the first below.
    let secret = |name: &str| json!({"metadata": {"name": name}, "stringData": {"word": "one"}});
    namespace.upper.create("secrets", &secret("first")).await;
    let reader = |pair: &ClusterPair<'_>, name: &str, secret: &str, optional: bool| {
        let mut pod = pair.pod(name);
        refer(&mut pod, &json!({"envFrom": [{"secretRef": {"name": secret, "optional": optional}}]}));
        pod
    };
    namespace.upper.create("pods", &reader(&one, "owner", "first", false)).await;
    namespace.upper.wait_running("owner").await;
    assert_eq!(namespace.lower.get("secrets/first").await["metadata"]["labels"][ORIGIN], "one");
    namespace.upper.create("pods", &reader(&two, "thief", "first", false)).await;
    waits_for_name(&namespace, "thief").await;

    // An optional reference holds its name: the other cluster's copy cannot take it later.
    namespace.upper.create("pods", &reader(&two, "trap", "later", true)).await;
    namespace.upper.wait_running("trap").await;
    let held = namespace.lower.get("secrets/later").await;
    assert_eq!((&held["metadata"]["labels"][ORIGIN], held.get("data")), (&json!("two"), None), "{held}");
    namespace.upper.create("pods", &reader(&one, "late", "later", true)).await;
    waits_for_name(&namespace, "late").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_name_is_held_until_the_last_pod_that_refers_to_it_is_gone() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("held").await;
    let secret = json!({"metadata": {"name": "word"}, "stringData": {"word": "ours"}});
    namespace.upper.create("secrets", &secret).await;
    let mut pod = pair.pod("reader");
    refer(&mut pod, &json!({"envFrom": [{"secretRef": {"name": "word"}}]}));
    namespace.run(&pod).await;
    namespace.upper.delete("secrets/word", None).await;
    // When a later deletion was seen, this one was.
    namespace.upper.create("secrets", &json!({"metadata": {"name": "mark"}, "stringData": {"a": "b"}})).await;
    let mut other = pair.pod("other");
    refer(&mut other, &json!({"envFrom": [{"secretRef": {"name": "mark", "optional": true}}]}));
    namespace.run(&other).await;
    namespace.upper.delete("secrets/mark", None).await;
    namespace.lower.wait_for("secrets/mark", "is emptied", |it| it.get("data").is_none()).await;
    let taken = namespace.lower.try_create("secrets", &secret).await;
    assert!(taken.is_err_and(|error| error.to_string().contains("already exists")));
    // A new pod waits for the object as it would for any that is missing.
    let mut late = pair.pod("late");
    refer(&mut late, &json!({"envFrom": [{"secretRef": {"name": "word"}}]}));
    namespace.upper.create("pods", &late).await;
    let needs = |pod: &Value| pod["status"].to_string().contains("CreateContainerConfigError");
    namespace.upper.wait_for("pods/late", "waits for the object", needs).await;
    assert!(namespace.lower.find("pods/late").await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_pod_never_runs_as_a_lower_account_that_its_user_named() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("named").await;
    namespace.prepare_lower(&json!({})).await;
    for client in [&namespace.upper, &namespace.lower] {
        client.create("serviceaccounts", &json!({"metadata": {"name": "deployer"}})).await;
    }
    let mut pod = pair.pod("climber");
    pod["spec"]["serviceAccountName"] = json!("deployer");
    pod["spec"]["automountServiceAccountToken"] = json!(true);
    let (_, lower_pod) = namespace.run(&pod).await;
    let account = text(&lower_pod["spec"]["serviceAccountName"]).to_owned();
    assert!(account.starts_with(OWN_ACCOUNT), "it runs as {account}");
    assert_eq!(lower_pod["spec"]["automountServiceAccountToken"], false);
    let mounts = lower_pod["spec"]["containers"][0]["volumeMounts"].to_string();
    assert!(!mounts.contains("serviceaccount"), "{mounts}");
    let account = namespace.lower.get(&format!("serviceaccounts/{account}")).await;
    assert!(account["metadata"]["labels"].get(ORIGIN).is_some(), "{account}");

    // Nor by asking for it.
    let mut pod = pair.pod("asker");
    pod["metadata"]["annotations"] = json!({"multicluster.virtual-kubelet.io/api-access": "lower"});
    namespace.upper.create("pods", &pod).await;
    let failed = namespace.upper.wait_phase("asker", "Failed").await;
    assert!(text(&failed["status"]["message"]).contains("allow.apiAccess"), "{}", failed["status"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn pods_choose_in_the_lower_cluster_only_what_the_operator_allows() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("limits").await;
    let class = format!("urgent-{}", namespace.upper.namespace);
    for client in [&namespace.upper, &namespace.lower] {
        client.create("priorityclasses", &json!({"metadata": {"name": class}, "value": 1000})).await;
    }
    for (name, field, value) in [
        ("scheduler", "schedulerName", json!("somebody")),
        ("priority", "priorityClassName", json!(class)),
        ("runtime", "runtimeClassName", json!("somebody")),
    ] {
        let mut pod = pair.pod(name);
        let said = json!({field: value}).to_string();
        pod["metadata"]["annotations"] = json!({"multicluster.virtual-kubelet.io/lower": said});
        namespace.upper.create("pods", &pod).await;
        let failed = namespace.upper.wait_phase(name, "Failed").await;
        let message = text(&failed["status"]["message"]);
        assert!(message.contains(field) && message.contains("`allow."), "{message}");
        assert!(namespace.lower.find(&format!("pods/{name}")).await.is_none());
    }
    let mut pod = pair.pod("broad");
    pod["spec"]["priorityClassName"] = json!(class);
    pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    let (_, lower_pod) = namespace.run(&pod).await;
    assert!(lower_pod["spec"].get("priorityClassName").is_none(), "{}", lower_pod["spec"]);
    let tolerations = lower_pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    assert!(tolerations.iter().all(|one| one["key"].is_string()), "{tolerations:?}");
    for client in [&namespace.upper, &namespace.lower] {
        client.delete(&format!("priorityclasses/{class}"), None).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn pods_have_no_access_to_lower_hosts_unless_the_operator_allows_it() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("hosts").await;
    for (name, part, words) in [
        ("path", json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), "hostPath"),
        ("network", json!({"hostNetwork": true}), "hostNetwork"),
    ] {
        let mut pod = pair.pod(name);
        refer(&mut pod, &part);
        namespace.upper.create("pods", &pod).await;
        let failed = namespace.upper.wait_phase(name, "Failed").await;
        let message = text(&failed["status"]["message"]);
        assert!(message.contains(words) && message.contains("hostAccess"), "{message}");
    }
    let mut pod = pair.pod("capable");
    pod["spec"]["containers"][0]["securityContext"] = json!({"capabilities": {"add": ["SYS_ADMIN"]}});
    namespace.upper.create("pods", &pod).await;
    let failed = namespace.upper.wait_phase("capable", "Failed").await;
    assert!(text(&failed["status"]["message"]).contains("SYS_ADMIN"), "{}", failed["status"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn labels_and_annotations_of_a_secret_stay_in_the_upper_cluster() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("labels").await;
    let metadata = json!({"name": "cluster", "labels": {"argocd.argoproj.io/secret-type": "cluster"}, "annotations": {"a": "b"}});
    namespace
        .upper
        .create("secrets", &json!({"metadata": metadata, "stringData": {"server": "https://x"}}))
        .await;
    let mut pod = pair.pod("reader");
    refer(&mut pod, &json!({"envFrom": [{"secretRef": {"name": "cluster"}}]}));
    namespace.run(&pod).await;
    let copy = namespace.lower.get("secrets/cluster").await;
    let labels: Vec<&String> = copy["metadata"]["labels"].as_object().unwrap().keys().collect();
    assert_eq!(labels, [ORIGIN]);
    assert!(copy["metadata"]["annotations"].get("a").is_none(), "{copy}");
}
