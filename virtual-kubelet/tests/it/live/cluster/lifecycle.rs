//! How changes of lower pods affect their upper pods, row by row.

use serde_json::{Value, json};
use vk_testing::eventually;

use super::{
    cluster_namespace::{PATIENCE, condition, text},
    cluster_pair::{ClusterPair, NODE, ORIGIN_UID, SCHEDULED, lower, upper},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_somebody_deletes_below_has_failed_and_its_owner_makes_another() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("lost").await;
    let bare = pair.pod("bare");
    namespaces.run(&bare).await;
    let deployment = json!({"metadata": {"name": "web"}, "spec": {"replicas": 1,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": pair.pod_spec()}}});
    namespaces.above.create("deployments", &deployment).await;
    namespaces.above.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]).await;
    let of_web = |pods: Vec<Value>| pods.into_iter().filter(|pod| pod["metadata"]["labels"]["app"] == "web");
    let name = of_web(namespaces.above.list("pods").await).next().unwrap()["metadata"]["name"].clone();
    for pod in ["bare", text(&name)] {
        namespaces.below.delete(&format!("pods/{pod}"), Some(0)).await;
    }
    let failed = namespaces.above.phase("bare", "Failed").await;
    assert_eq!(failed["status"]["reason"], "LowerPodDeleted", "{}", failed["status"]);
    assert_eq!(condition(&failed, "Ready")["status"], "False");
    let state = &failed["status"]["containerStatuses"][0]["state"];
    assert!(state["terminated"].is_object(), "liqo 598: nothing seems to run: {state}");
    assert!(namespaces.below.find("pods/bare").await.is_none(), "it comes not again");
    eventually("another one runs on both sides", PATIENCE, || async {
        let other = |pod: &Value| pod["metadata"]["name"] != name && pod["status"]["phase"] == "Running";
        let above = of_web(namespaces.above.list("pods").await).find(other).ok_or("there is none above")?;
        let twin = namespaces.below.find(&format!("pods/{}", text(&above["metadata"]["name"]))).await;
        let twin = twin.ok_or("there is none below")?;
        if twin["metadata"]["labels"][ORIGIN_UID] == above["metadata"]["uid"] {
            Ok(())
        } else {
            Err("another")
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_1804_and_3096_a_finished_pod_is_not_run_again_when_it_is_deleted_below() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("finished").await;
    let mut template = json!({"metadata": {"annotations": {"mock.virtual-kubelet.io/run-for": "200ms"}},
        "spec": pair.pod_spec()});
    template["spec"]["restartPolicy"] = json!("Never");
    let job = json!({"metadata": {"name": "once"}, "spec": {"completions": 2, "backoffLimit": 0, "template": template}});
    namespaces.above.create("jobs", &job).await;
    namespaces.above.kubectl(&["wait", "--for=condition=Complete", "job/once", "--timeout=60s"]).await;
    let pods = namespaces.above.list("pods").await;
    assert_eq!(pods.len(), 2, "{pods:?}");
    for pod in &pods {
        let name = text(&pod["metadata"]["name"]);
        // Kept until the upper pod goes: its log can be read.
        let twin = namespaces.below.get(&format!("pods/{name}")).await;
        assert_eq!(twin["status"]["phase"], "Succeeded");
        namespaces.below.delete(&format!("pods/{name}"), Some(0)).await;
    }
    // A pod that comes later, and with it the proof that those deletions were seen.
    namespaces.run(&pair.pod("later")).await;
    for pod in &pods {
        let name = text(&pod["metadata"]["name"]);
        let now = namespaces.above.get(&format!("pods/{name}")).await;
        assert_eq!(
            (&now["status"]["phase"], &now["metadata"]["uid"]),
            (&json!("Succeeded"), &pod["metadata"]["uid"])
        );
        assert!(namespaces.below.find(&format!("pods/{name}")).await.is_none(), "{name} runs again below");
    }
    assert_eq!(namespaces.above.get("jobs/once").await["status"]["succeeded"], 2);
    // And they go when the user wants it, though nothing is below.
    namespaces.above.delete("jobs/once", None).await;
    for pod in &pods {
        namespaces.above.goes(&format!("pods/{}", text(&pod["metadata"]["name"]))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_604_a_pod_that_finds_no_lower_node_says_so_and_can_be_deleted() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("homeless").await;
    let mut pod = pair.pod("homeless");
    let nowhere = json!({"nodeSelector": {"no": "where"}});
    pod["metadata"]["annotations"] = json!({"multicluster.virtual-kubelet.io/lower": nowhere.to_string()});
    namespaces.above.create("pods", &pod).await;
    let told = namespaces
        .above
        .see("pods/homeless", "is told what the lower scheduler says", |pod| {
            condition(pod, SCHEDULED)["status"] == "False"
        })
        .await;
    let scheduled = condition(&told, SCHEDULED);
    assert_eq!(scheduled["reason"], "Unschedulable");
    assert!(text(&scheduled["message"]).contains("node affinity/selector"), "{scheduled}");
    assert_eq!(condition(&told, "PodScheduled")["status"], "True", "above it has its node");
    assert_eq!(told["status"]["phase"], "Pending");
    namespaces.above.told("homeless", &["nodes are available"]).await;
    namespaces.remove("homeless").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_598_deletion_ends_at_every_moment_of_a_pods_life() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("ends").await;
    // Before anybody has heard of it.
    for number in 0..10 {
        let name = format!("pods/at-once-{number}");
        namespaces.above.create("pods", &pair.pod(&format!("at-once-{number}"))).await;
        if number % 2 == 0 {
            namespaces.above.see(&name, "has its node", |pod| pod["spec"].get("nodeName").is_some()).await;
        }
        namespaces.above.delete(&name, (number % 3 == 0).then_some(0)).await;
    }
    for number in 0..10 {
        let name = format!("pods/at-once-{number}");
        namespaces.above.goes(&name).await;
        namespaces.below.goes(&name).await;
    }
    // While it runs; by force; and when its twin is gone already.
    for pod in ["runs", "forced", "halved"] {
        namespaces.run(&pair.pod(pod)).await;
    }
    namespaces.remove("runs").await;
    namespaces.above.delete("pods/forced", Some(0)).await;
    namespaces.below.goes("pods/forced").await;
    namespaces.below.delete("pods/halved", Some(0)).await;
    namespaces.above.delete("pods/halved", None).await;
    namespaces.above.goes("pods/halved").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_721_containers_that_end_one_after_the_other_are_told_so() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("gradual").await;
    let mut pod = pair.pod("slow");
    pod["metadata"]["annotations"] = json!({"mock.virtual-kubelet.io/stop-delay": "3s"});
    pod["spec"]["terminationGracePeriodSeconds"] = json!(20);
    namespaces.run(&pod).await;
    namespaces.above.delete("pods/slow", None).await;
    let going = namespaces
        .above
        .see("pods/slow", "is being deleted", |pod| pod["metadata"].get("deletionTimestamp").is_some())
        .await;
    assert_eq!(going["status"]["phase"], "Running");
    namespaces
        .below
        .see("pods/slow", "is being deleted", |pod| pod["metadata"].get("deletionTimestamp").is_some())
        .await;
    let twin = namespaces.below.get("pods/slow").await;
    let grace = twin["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap();
    assert!((10..=20).contains(&grace), "what is left of the grace: {grace}");
    namespaces.above.goes("pods/slow").await;
    assert!(namespaces.below.find("pods/slow").await.is_none(), "it left before its twin did");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_replica_set_below_does_not_take_pods_for_its_own() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("adoption").await;
    let (_, twin) = namespaces.run(&pair.pod("ours")).await;
    let owners = twin["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    assert!(
        owners.iter().any(|owner| owner["controller"] == true && owner["kind"] == "ConfigMap"),
        "{owners:?}"
    );
    // It selects our pod and wants none.
    let set = json!({"metadata": {"name": "greedy"}, "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "ours"}},
        "template": {"metadata": {"labels": {"app": "ours"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}}});
    namespaces.below.create("replicasets", &set).await;
    namespaces
        .below
        .see("replicasets/greedy", "was looked at", |set| set["status"]["observedGeneration"] == 1)
        .await;
    let now = namespaces.below.runs("ours").await;
    assert_eq!(now["metadata"]["uid"], twin["metadata"]["uid"]);
    assert_eq!(now["metadata"]["ownerReferences"], twin["metadata"]["ownerReferences"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn pods_of_kube_system_and_of_daemon_sets_stay_above_and_say_so() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("stay").await;
    let set = json!({"metadata": {"name": "agent"}, "spec": {"selector": {"matchLabels": {"app": "agent"}},
        "template": {"metadata": {"labels": {"app": "agent"}}, "spec": pair.pod_spec()}}});
    namespaces.above.create("daemonsets", &set).await;
    let pod = eventually("the DaemonSet has its pod", PATIENCE, || async {
        let pods = namespaces.above.list("pods").await;
        pods.first().map(|pod| text(&pod["metadata"]["name"]).to_owned()).ok_or("it has none")
    })
    .await;
    namespaces.above.told(&pod, &["DaemonSet"]).await;
    let system = super::cluster_namespace::ClusterNamespace::new(pair.upper, "kube-system");
    let mut own = pair.pod(&format!("system-{}", namespaces.above.namespace));
    own["metadata"]["namespace"] = json!("kube-system");
    let name = text(&own["metadata"]["name"]).to_owned();
    system.create("pods", &own).await;
    system.told(&name, &["kube-system"]).await;
    // What comes after them runs.
    namespaces.run(&pair.pod("later")).await;
    assert!(namespaces.below.find(&format!("pods/{pod}")).await.is_none());
    let below = super::cluster_namespace::ClusterNamespace::new(pair.lower, "kube-system");
    assert!(below.find(&format!("pods/{name}")).await.is_none());
    for (side, name) in [(&namespaces.above, &pod), (&system, &name)] {
        assert_eq!(side.get(&format!("pods/{name}")).await["status"]["phase"], "Pending");
    }
    system.delete(&format!("pods/{name}"), Some(0)).await;
    namespaces.above.delete("daemonsets/agent", None).await;
    namespaces.above.goes(&format!("pods/{pod}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_namespace_that_is_deleted_above_takes_its_pods_along_below() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("leaves").await;
    for pod in ["one", "two"] {
        namespaces.run(&pair.pod(pod)).await;
    }
    namespaces.above.delete(&format!("namespaces/{}", namespaces.above.namespace), None).await;
    namespaces.above.goes(&format!("namespaces/{}", namespaces.above.namespace)).await;
    for pod in ["one", "two"] {
        assert!(namespaces.below.find(&format!("pods/{pod}")).await.is_none(), "{pod} is left below");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn whoever_deletes_the_anchor_has_the_lower_cluster_clean_up_all_but_claims() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("anchor").await;
    let map = json!({"metadata": {"name": "settings"}, "data": {"a": "b"}});
    namespaces.above.create("configmaps", &map).await;
    let mut pod = pair.pod("held");
    pod["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "settings"}}]);
    namespaces.run(&pod).await;
    let maps = namespaces.below.list("configmaps").await;
    let anchor =
        maps.iter().map(|map| text(&map["metadata"]["name"])).find(|name| name.starts_with("vk-anchor-"));
    namespaces.below.delete(&format!("configmaps/{}", anchor.unwrap()), None).await;
    namespaces.below.goes("pods/held").await;
    // It has ended as its container did: with 0 when it was told to.
    namespaces.above.phase("held", "Succeeded").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn changes_above_reach_the_twin_and_changes_of_others_below_stay() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("changes").await;
    let (_, twin) = namespaces.run(&pair.pod("web")).await;
    assert_eq!(twin["metadata"]["labels"][NODE], json!(pair.node));
    namespaces.below.patch("pods/web", &json!({"metadata": {"labels": {"theirs": "stays"}}})).await;
    let change = json!({"metadata": {"labels": {"ours": "new"}}, "spec": {"activeDeadlineSeconds": 3600}});
    namespaces.above.patch("pods/web", &change).await;
    namespaces.above.kubectl(&["set", "image", "pod/web", "main=example.com/app:2"]).await;
    let now = namespaces
        .below
        .see("pods/web", "has all changes", |pod| {
            pod["spec"]["containers"][0]["image"] == "example.com/app:2"
                && pod["spec"]["activeDeadlineSeconds"] == 3600
                && pod["metadata"]["labels"]["ours"] == "new"
        })
        .await;
    assert_eq!(now["metadata"]["labels"]["theirs"], "stays");
    assert_eq!(now["metadata"]["uid"], twin["metadata"]["uid"]);
    namespaces.above.patch("pods/web", &json!({"metadata": {"labels": {"ours": null}}})).await;
    let gone = |pod: &Value| pod["metadata"]["labels"].get("ours").is_none();
    let now = namespaces.below.see("pods/web", "has lost the label", gone).await;
    assert_eq!(now["metadata"]["labels"]["theirs"], "stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_1194_a_pod_whose_lower_node_is_lost_fails_after_the_time_that_is_set() {
    let (upper, lower) = (upper().await, lower().await);
    let pair = ClusterPair::open(upper, lower, "nodeless", 1, json!({"lostAfterSeconds": 3}), &[]).await;
    let namespaces = pair.namespace_pair("nodeless").await;
    namespaces.run(&pair.pod("marooned")).await;
    // Nobody is there to end the pod, and the controllers below say of the node what they would after a time.
    pair.stop_lower_nodes();
    let node = format!("nodes/{}", pair.lower_node(0));
    namespaces.below.delete("pods/marooned", Some(1)).await;
    let mut now = namespaces.below.get(&node).await;
    for condition in now["status"]["conditions"].as_array_mut().unwrap() {
        if condition["type"] == "Ready" {
            condition["status"] = json!("Unknown");
            condition["reason"] = json!("NodeStatusUnknown");
        }
    }
    namespaces.below.replace(&format!("{node}/status"), &now).await;
    let failed = namespaces.above.phase("marooned", "Failed").await;
    assert_eq!(failed["status"]["reason"], "LowerNodeLost", "{}", failed["status"]);
    assert!(
        namespaces.below.find("pods/marooned").await.is_some(),
        "nothing is deleted by force unless it is asked for"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_resize_above_is_a_resize_below() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("resize").await;
    let mut pod = pair.pod("grows");
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}});
    let (_, twin) = namespaces.run(&pod).await;
    let resize =
        json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "200m"}}}]}});
    let resize = resize.to_string();
    namespaces.above.kubectl(&["patch", "pod", "grows", "--subresource=resize", "--patch", &resize]).await;
    let grown = |pod: &Value| pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "200m";
    let now = namespaces.below.see("pods/grows", "is resized", grown).await;
    assert_eq!(now["metadata"]["uid"], twin["metadata"]["uid"]);
    assert_eq!(now["spec"]["containers"][0]["resources"]["limits"]["cpu"], "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn tensile_kube_the_first_pods_of_a_namespace_do_not_hinder_each_other() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("first").await;
    let names: Vec<String> = (0..12).map(|number| format!("first-{number}")).collect();
    let pods = names.iter().map(|name| {
        let mut pod = pair.pod(name);
        pod["spec"]["nodeName"] = json!(pair.node);
        pod
    });
    let pods: Vec<Value> = pods.collect();
    futures::future::join_all(pods.iter().map(|pod| namespaces.above.create("pods", pod))).await;
    for name in &names {
        namespaces.above.runs(name).await;
        namespaces.below.runs(name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn with_lost_recreate_a_pod_that_somebody_deletes_below_is_made_again_and_counts_as_restarted() {
    let (upper, lower) = (upper().await, lower().await);
    let pair = ClusterPair::open(upper, lower, "recreate", 1, json!({"lost": "recreate"}), &[]).await;
    let namespaces = pair.namespace_pair("recreate").await;
    let (_, first) = namespaces.run(&pair.pod("app")).await;
    namespaces.below.delete("pods/app", Some(0)).await;
    let another = |twin: &Value| {
        twin["metadata"]["uid"] != first["metadata"]["uid"] && twin["status"]["phase"] == "Running"
    };
    let second = namespaces.below.see("pods/app", "is made again", another).await;
    let restarted = |pod: &Value| {
        let container = &pod["status"]["containerStatuses"][0];
        container["restartCount"] == 1 && container["ready"] == true
    };
    let pod = namespaces.above.see("pods/app", "was restarted", restarted).await;
    assert_eq!(pod["metadata"]["uid"], second["metadata"]["labels"][ORIGIN_UID], "it is the same above");
    // What may run once only is not.
    let mut once = pair.pod("once");
    once["spec"]["restartPolicy"] = json!("Never");
    namespaces.run(&once).await;
    namespaces.below.delete("pods/once", Some(0)).await;
    let failed = namespaces.above.phase("once", "Failed").await;
    assert_eq!(failed["status"]["reason"], "LowerPodDeleted", "{}", failed["status"]);
    assert!(namespaces.below.find("pods/once").await.is_none());
}
