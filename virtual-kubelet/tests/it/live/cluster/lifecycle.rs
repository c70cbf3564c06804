//! The lifecycle of upper pods, depending on their lower pods.

use serde_json::{Value, json};
use vk_testing::eventually;

use super::{
    cluster_pair::{ClusterPair, NODE, ORIGIN_UID, SCHEDULED, TestNamespace, lower, upper},
    namespace_client::{TIMEOUT, condition, text},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_pod_deleted_in_the_lower_cluster_fails_and_is_replaced() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("lost").await;
    let bare = pair.pod("bare");
    namespace.run(&bare).await;
    let deployment = json!({"metadata": {"name": "web"}, "spec": {"replicas": 1,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": pair.pod_spec()}}});
    namespace.upper.create("deployments", &deployment).await;
    namespace.upper.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]).await;
    let of_web = |pods: Vec<Value>| pods.into_iter().filter(|pod| pod["metadata"]["labels"]["app"] == "web");
    let name = of_web(namespace.upper.list("pods").await).next().unwrap()["metadata"]["name"].clone();
    for pod in ["bare", text(&name)] {
        namespace.lower.delete(&format!("pods/{pod}"), Some(0)).await;
    }
    let failed = namespace.upper.wait_phase("bare", "Failed").await;
    assert_eq!(failed["status"]["reason"], "LowerPodDeleted", "{}", failed["status"]);
    assert_eq!(condition(&failed, "Ready")["status"], "False");
    let state = &failed["status"]["containerStatuses"][0]["state"];
    assert!(state["terminated"].is_object(), "liqo 598: nothing seems to run: {state}");
    assert!(namespace.lower.find("pods/bare").await.is_none(), "it comes not again");
    eventually("another one runs on both sides", TIMEOUT, || async {
        let other = |pod: &Value| pod["metadata"]["name"] != name && pod["status"]["phase"] == "Running";
        let above = of_web(namespace.upper.list("pods").await).find(other).ok_or("there is none above")?;
        let lower_pod = namespace.lower.find(&format!("pods/{}", text(&above["metadata"]["name"]))).await;
        let lower_pod = lower_pod.ok_or("there is none below")?;
        if lower_pod["metadata"]["labels"][ORIGIN_UID] == above["metadata"]["uid"] {
            Ok(())
        } else {
            Err("another")
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_lower_pod_that_loses_our_labels_runs_on_and_gets_them_back() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("unlabelled").await;
    let (_, below) = namespace.run(&pair.pod("bare")).await;
    let labels = below["metadata"]["labels"].as_object().unwrap();
    let ours = labels.keys().filter(|key| key.starts_with("multicluster.virtual-kubelet.io/"));
    let removed: serde_json::Map<String, Value> = ours.map(|key| (key.clone(), Value::Null)).collect();
    namespace.lower.patch("pods/bare", &json!({"metadata": {"labels": removed}})).await;
    namespace.upper.wait_event("bare", &["LowerLabelsRestored"]).await;
    let restored = namespace.lower.find("pods/bare").await.unwrap();
    assert_eq!(restored["metadata"]["uid"], below["metadata"]["uid"]);
    assert_eq!(restored["metadata"]["labels"], below["metadata"]["labels"]);
    let above = namespace.upper.find("pods/bare").await.unwrap();
    assert_eq!(above["status"]["phase"], "Running", "{}", above["status"]);
    namespace.remove("bare").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_1804_and_3096_a_finished_pod_is_not_run_again() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("finished").await;
    let mut template = json!({"metadata": {"annotations": {"mock.virtual-kubelet.io/run-for": "200ms"}},
        "spec": pair.pod_spec()});
    template["spec"]["restartPolicy"] = json!("Never");
    let job = json!({"metadata": {"name": "once"}, "spec": {"completions": 2, "backoffLimit": 0, "template": template}});
    namespace.upper.create("jobs", &job).await;
    namespace.upper.kubectl(&["wait", "--for=condition=Complete", "job/once", "--timeout=60s"]).await;
    let pods = namespace.upper.list("pods").await;
    assert_eq!(pods.len(), 2, "{pods:?}");
    for pod in &pods {
        let name = text(&pod["metadata"]["name"]);
        // Kept until the upper pod is deleted, so that its log can be read.
        let lower_pod = namespace.lower.get(&format!("pods/{name}")).await;
        assert_eq!(lower_pod["status"]["phase"], "Succeeded");
        namespace.lower.delete(&format!("pods/{name}"), Some(0)).await;
    }
    // A later pod proves that those deletions were seen.
    namespace.run(&pair.pod("later")).await;
    for pod in &pods {
        let name = text(&pod["metadata"]["name"]);
        let now = namespace.upper.get(&format!("pods/{name}")).await;
        assert_eq!(
            (&now["status"]["phase"], &now["metadata"]["uid"]),
            (&json!("Succeeded"), &pod["metadata"]["uid"])
        );
        assert!(namespace.lower.find(&format!("pods/{name}")).await.is_none(), "{name} runs again below");
    }
    assert_eq!(namespace.upper.get("jobs/once").await["status"]["succeeded"], 2);
    // They can be deleted although there is no lower pod.
    namespace.upper.delete("jobs/once", None).await;
    for pod in &pods {
        namespace.upper.wait_deleted(&format!("pods/{}", text(&pod["metadata"]["name"]))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_604_an_unschedulable_pod_shows_the_reason_and_can_be_deleted() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("homeless").await;
    let mut pod = pair.pod("homeless");
    let nowhere = json!({"nodeSelector": {"no": "where"}});
    pod["metadata"]["annotations"] = json!({"multicluster.virtual-kubelet.io/lower": nowhere.to_string()});
    namespace.upper.create("pods", &pod).await;
    let told = namespace
        .upper
        .wait_for("pods/homeless", "is told what the lower scheduler says", |pod| {
            condition(pod, SCHEDULED)["status"] == "False"
        })
        .await;
    let scheduled = condition(&told, SCHEDULED);
    assert_eq!(scheduled["reason"], "Unschedulable");
    assert!(text(&scheduled["message"]).contains("node affinity/selector"), "{scheduled}");
    assert_eq!(condition(&told, "PodScheduled")["status"], "True", "above it has its node");
    assert_eq!(told["status"]["phase"], "Pending");
    let waiting = &told["status"]["containerStatuses"][0]["state"]["waiting"];
    assert_eq!(waiting["reason"], "LowerUnschedulable", "kubectl shows it: {waiting}");
    namespace.upper.wait_event("homeless", &["nodes are available"]).await;
    namespace.remove("homeless").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_598_deletion_completes_at_any_time() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("ends").await;
    // Before the watch reports the pod.
    for number in 0..10 {
        let name = format!("pods/at-once-{number}");
        namespace.upper.create("pods", &pair.pod(&format!("at-once-{number}"))).await;
        if number % 2 == 0 {
            namespace
                .upper
                .wait_for(&name, "has its node", |pod| pod["spec"].get("nodeName").is_some())
                .await;
        }
        namespace.upper.delete(&name, (number % 3 == 0).then_some(0)).await;
    }
    for number in 0..10 {
        let name = format!("pods/at-once-{number}");
        namespace.upper.wait_deleted(&name).await;
        namespace.lower.wait_deleted(&name).await;
    }
    // While it runs, with force, and after its lower pod is gone.
    for pod in ["runs", "forced", "halved"] {
        namespace.run(&pair.pod(pod)).await;
    }
    namespace.remove("runs").await;
    namespace.upper.delete("pods/forced", Some(0)).await;
    namespace.lower.wait_deleted("pods/forced").await;
    namespace.lower.delete("pods/halved", Some(0)).await;
    namespace.upper.delete("pods/halved", None).await;
    namespace.upper.wait_deleted("pods/halved").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_721_terminating_containers_are_reported_individually() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("gradual").await;
    let mut pod = pair.pod("slow");
    pod["metadata"]["annotations"] = json!({"mock.virtual-kubelet.io/stop-delay": "3s"});
    pod["spec"]["terminationGracePeriodSeconds"] = json!(20);
    namespace.run(&pod).await;
    namespace.upper.delete("pods/slow", None).await;
    let going = namespace
        .upper
        .wait_for("pods/slow", "is being deleted", |pod| pod["metadata"].get("deletionTimestamp").is_some())
        .await;
    assert_eq!(going["status"]["phase"], "Running");
    namespace
        .lower
        .wait_for("pods/slow", "is being deleted", |pod| pod["metadata"].get("deletionTimestamp").is_some())
        .await;
    let lower_pod = namespace.lower.get("pods/slow").await;
    let grace = lower_pod["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap();
    assert!((10..=20).contains(&grace), "what is left of the grace: {grace}");
    namespace.upper.wait_deleted("pods/slow").await;
    assert!(namespace.lower.find("pods/slow").await.is_none(), "it was removed before its lower pod");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_lower_replica_set_does_not_adopt_pods() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("adoption").await;
    let (_, lower_pod) = namespace.run(&pair.pod("ours")).await;
    let owners = lower_pod["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    assert!(
        owners.iter().any(|owner| owner["controller"] == true && owner["kind"] == "ConfigMap"),
        "{owners:?}"
    );
    // It selects our pod and wants no replicas.
    let set = json!({"metadata": {"name": "greedy"}, "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "ours"}},
        "template": {"metadata": {"labels": {"app": "ours"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}}});
    namespace.lower.create("replicasets", &set).await;
    namespace
        .lower
        .wait_for("replicasets/greedy", "was looked at", |set| set["status"]["observedGeneration"] == 1)
        .await;
    let now = namespace.lower.wait_running("ours").await;
    assert_eq!(now["metadata"]["uid"], lower_pod["metadata"]["uid"]);
    assert_eq!(now["metadata"]["ownerReferences"], lower_pod["metadata"]["ownerReferences"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn pods_of_kube_system_and_daemon_sets_are_not_offloaded() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("stay").await;
    let set = json!({"metadata": {"name": "agent"}, "spec": {"selector": {"matchLabels": {"app": "agent"}},
        "template": {"metadata": {"labels": {"app": "agent"}}, "spec": pair.pod_spec()}}});
    namespace.upper.create("daemonsets", &set).await;
    let pod = eventually("the DaemonSet has its pod", TIMEOUT, || async {
        let pods = namespace.upper.list("pods").await;
        pods.first().map(|pod| text(&pod["metadata"]["name"]).to_owned()).ok_or("it has none")
    })
    .await;
    namespace.upper.wait_event(&pod, &["DaemonSet"]).await;
    let system = super::namespace_client::NamespaceClient::new(pair.upper, "kube-system");
    let mut own = pair.pod(&format!("system-{}", namespace.upper.namespace));
    own["metadata"]["namespace"] = json!("kube-system");
    let name = text(&own["metadata"]["name"]).to_owned();
    system.create("pods", &own).await;
    system.wait_event(&name, &["kube-system"]).await;
    // Later pods run.
    namespace.run(&pair.pod("later")).await;
    assert!(namespace.lower.find(&format!("pods/{pod}")).await.is_none());
    let below = super::namespace_client::NamespaceClient::new(pair.lower, "kube-system");
    assert!(below.find(&format!("pods/{name}")).await.is_none());
    for (client, name) in [(&namespace.upper, &pod), (&system, &name)] {
        assert_eq!(client.get(&format!("pods/{name}")).await["status"]["phase"], "Pending");
    }
    system.delete(&format!("pods/{name}"), Some(0)).await;
    namespace.upper.delete("daemonsets/agent", None).await;
    namespace.upper.wait_deleted(&format!("pods/{pod}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn deleting_an_upper_namespace_deletes_its_lower_pods() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("leaves").await;
    for pod in ["one", "two"] {
        namespace.run(&pair.pod(pod)).await;
    }
    namespace.upper.delete(&format!("namespaces/{}", namespace.upper.namespace), None).await;
    namespace.upper.wait_deleted(&format!("namespaces/{}", namespace.upper.namespace)).await;
    for pod in ["one", "two"] {
        assert!(namespace.lower.find(&format!("pods/{pod}")).await.is_none(), "{pod} is left below");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn deleting_the_owner_config_map_removes_everything_but_claims() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("anchor").await;
    let map = json!({"metadata": {"name": "settings"}, "data": {"a": "b"}});
    namespace.upper.create("configmaps", &map).await;
    let mut pod = pair.pod("held");
    pod["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "settings"}}]);
    namespace.run(&pod).await;
    let maps = namespace.lower.list("configmaps").await;
    let anchor =
        maps.iter().map(|map| text(&map["metadata"]["name"])).find(|name| name.starts_with("vk-anchor-"));
    namespace.lower.delete(&format!("configmaps/{}", anchor.unwrap()), None).await;
    namespace.lower.wait_deleted("pods/held").await;
    // It ended with the exit code of its container: 0 after SIGTERM.
    namespace.upper.wait_phase("held", "Succeeded").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn changes_of_the_upper_pod_are_applied_and_those_of_others_stay() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("changes").await;
    let (_, lower_pod) = namespace.run(&pair.pod("web")).await;
    assert_eq!(lower_pod["metadata"]["labels"][NODE], json!(pair.node));
    namespace.lower.patch("pods/web", &json!({"metadata": {"labels": {"theirs": "stays"}}})).await;
    let change = json!({"metadata": {"labels": {"ours": "new"}}, "spec": {"activeDeadlineSeconds": 3600}});
    namespace.upper.patch("pods/web", &change).await;
    namespace.upper.kubectl(&["set", "image", "pod/web", "main=example.com/app:2"]).await;
    let now = namespace
        .lower
        .wait_for("pods/web", "has all changes", |pod| {
            pod["spec"]["containers"][0]["image"] == "example.com/app:2"
                && pod["spec"]["activeDeadlineSeconds"] == 3600
                && pod["metadata"]["labels"]["ours"] == "new"
        })
        .await;
    assert_eq!(now["metadata"]["labels"]["theirs"], "stays");
    assert_eq!(now["metadata"]["uid"], lower_pod["metadata"]["uid"]);
    namespace.upper.patch("pods/web", &json!({"metadata": {"labels": {"ours": null}}})).await;
    let gone = |pod: &Value| pod["metadata"]["labels"].get("ours").is_none();
    let now = namespace.lower.wait_for("pods/web", "has lost the label", gone).await;
    assert_eq!(now["metadata"]["labels"]["theirs"], "stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_1194_a_pod_on_a_lost_lower_node_fails_after_the_timeout() {
    let (upper, lower) = (upper().await, lower().await);
    let pair = ClusterPair::open(upper, lower, "nodeless", 1, json!({"lostAfterSeconds": 3}), &[]).await;
    let namespace = pair.test_namespace("nodeless").await;
    namespace.run(&pair.pod("marooned")).await;
    lose_node(&pair, &namespace, &["marooned"]).await;
    let failed = namespace.upper.wait_phase("marooned", "Failed").await;
    assert_eq!(failed["status"]["reason"], "LowerNodeLost", "{}", failed["status"]);
    assert!(
        namespace.lower.find("pods/marooned").await.is_some(),
        "nothing is deleted by force unless it is asked for"
    );
}

/// Stops the lower node without ending these pods. The lower controllers report the node as lost, as they would after some time.
async fn lose_node(pair: &ClusterPair<'_>, namespace: &TestNamespace<'_>, pods: &[&str]) {
    pair.stop_lower_nodes();
    let node = format!("nodes/{}", pair.lower_node(0));
    for pod in pods {
        namespace.lower.delete(&format!("pods/{pod}"), Some(1)).await;
    }
    let mut now = namespace.lower.get(&node).await;
    for condition in now["status"]["conditions"].as_array_mut().unwrap() {
        if condition["type"] == "Ready" {
            condition["status"] = json!("Unknown");
            condition["reason"] = json!("NodeStatusUnknown");
        }
    }
    namespace.lower.replace(&format!("{node}/status"), &now).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_stateful_set_gets_no_second_pod_while_the_containers_of_the_first_may_run() {
    let (upper, lower) = (upper().await, lower().await);
    let pair = ClusterPair::open(upper, lower, "stateful", 1, json!({"lostAfterSeconds": 3}), &[]).await;
    let namespace = pair.test_namespace("stateful").await;
    let template = json!({"metadata": {"labels": {"app": "db"}}, "spec": pair.pod_spec()});
    let spec = json!({"serviceName": "db", "replicas": 1, "selector": {"matchLabels": {"app": "db"}}, "template": template});
    namespace.upper.create("statefulsets", &json!({"metadata": {"name": "db"}, "spec": spec})).await;
    let first = namespace.upper.wait_running("db-0").await;
    namespace.run(&pair.pod("bare")).await;
    lose_node(&pair, &namespace, &["db-0", "bare"]).await;
    // When a pod that nobody creates again has failed, this one had its chance.
    namespace.upper.wait_phase("bare", "Failed").await;
    let lost = |pod: &Value| pod["status"]["reason"] == "LowerNodeLost";
    let waits = namespace.upper.wait_for("pods/db-0", "says why it stays", lost).await;
    assert_eq!(waits["metadata"]["uid"], first["metadata"]["uid"], "another pod of this name was created");
    assert_eq!(waits["status"]["phase"], "Running", "{}", waits["status"]);
    assert!(waits["status"]["containerStatuses"][0]["state"]["running"].is_object(), "{}", waits["status"]);
    // Also when somebody deletes it: it leaves when the lower cluster confirms its end.
    namespace.upper.delete("pods/db-0", None).await;
    namespace.upper.wait_event("db-0", &["Overdue"]).await;
    let still = namespace.upper.get("pods/db-0").await;
    assert_eq!(still["metadata"]["uid"], first["metadata"]["uid"], "it left before its containers");
    namespace.lower.delete("pods/db-0", Some(0)).await;
    let other = |pod: &Value| pod["metadata"]["uid"] != first["metadata"]["uid"];
    namespace.upper.wait_for("pods/db-0", "is another pod", other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_resize_is_applied_in_the_lower_cluster() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("resize").await;
    let mut pod = pair.pod("grows");
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}});
    let (_, lower_pod) = namespace.run(&pod).await;
    let resize =
        json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "200m"}}}]}});
    let resize = resize.to_string();
    namespace.upper.kubectl(&["patch", "pod", "grows", "--subresource=resize", "--patch", &resize]).await;
    let grown = |pod: &Value| pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "200m";
    let now = namespace.lower.wait_for("pods/grows", "is resized", grown).await;
    assert_eq!(now["metadata"]["uid"], lower_pod["metadata"]["uid"]);
    assert_eq!(now["spec"]["containers"][0]["resources"]["limits"]["cpu"], "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn tensile_kube_the_first_pods_of_a_namespace_do_not_conflict() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("first").await;
    let names: Vec<String> = (0..12).map(|number| format!("first-{number}")).collect();
    let pods = names.iter().map(|name| {
        let mut pod = pair.pod(name);
        pod["spec"]["nodeName"] = json!(pair.node);
        pod
    });
    let pods: Vec<Value> = pods.collect();
    futures::future::join_all(pods.iter().map(|pod| namespace.upper.create("pods", pod))).await;
    for name in &names {
        namespace.upper.wait_running(name).await;
        namespace.lower.wait_running(name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn with_lost_recreate_a_deleted_lower_pod_is_recreated_as_a_restart() {
    let (upper, lower) = (upper().await, lower().await);
    let pair = ClusterPair::open(upper, lower, "recreate", 1, json!({"lost": "recreate"}), &[]).await;
    let namespace = pair.test_namespace("recreate").await;
    let (_, first) = namespace.run(&pair.pod("app")).await;
    namespace.lower.delete("pods/app", Some(0)).await;
    let another = |lower_pod: &Value| {
        lower_pod["metadata"]["uid"] != first["metadata"]["uid"] && lower_pod["status"]["phase"] == "Running"
    };
    let second = namespace.lower.wait_for("pods/app", "is made again", another).await;
    let restarted = |pod: &Value| {
        let container = &pod["status"]["containerStatuses"][0];
        container["restartCount"] == 1 && container["ready"] == true
    };
    let pod = namespace.upper.wait_for("pods/app", "was restarted", restarted).await;
    assert_eq!(pod["metadata"]["uid"], second["metadata"]["labels"][ORIGIN_UID], "it is the same above");
    // A pod that may run only once is not.
    let mut once = pair.pod("once");
    once["spec"]["restartPolicy"] = json!("Never");
    namespace.run(&once).await;
    namespace.lower.delete("pods/once", Some(0)).await;
    let failed = namespace.upper.wait_phase("once", "Failed").await;
    assert_eq!(failed["status"]["reason"], "LowerPodDeleted", "{}", failed["status"]);
    assert!(namespace.lower.find("pods/once").await.is_none());
}
