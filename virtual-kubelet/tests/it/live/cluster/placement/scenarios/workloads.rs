//! Pods of controllers that need care.

use serde_json::{Value, json};
use vk_testing::eventually;

use super::{USED_BY_OTHERS, by_estimate, gated, occupy, spec_for, tolerations};
use crate::live::cluster::{
    cluster_pair::ORIGIN_UID,
    namespace_client::{NamespaceClient, TIMEOUT, condition, text},
};

/// The only pod of a namespace whose name begins with this.
async fn pod_of(client: &NamespaceClient<'_>, prefix: &str) -> Value {
    eventually(&format!("there is a pod of {prefix}"), TIMEOUT, || async {
        let pods = client.list("pods").await;
        let is_its = |pod: &&Value| text(&pod["metadata"]["name"]).starts_with(prefix);
        pods.iter().find(is_its).cloned().ok_or_else(|| format!("{} others", pods.len()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_1398_and_admiralty_114_pods_of_daemon_sets_are_neither_converted_nor_offloaded() {
    let placement = by_estimate().await;
    let (pair, second) =
        tokio::join!(placement.node("daemons", 1, json!({})), placement.node("daemons-b", 1, json!({})));
    let team = placement.offloaded_team("daemons").await;
    let labels = json!({"app": "agent", "virtual-pod": "true"});
    let mut spec = spec_for(&[&pair.node], 1);
    spec["tolerations"] = tolerations();
    spec["nodeSelector"] = json!({"kubernetes.io/os": "linux"});
    let set = json!({"metadata": {"name": "agent"}, "spec": {
        "selector": {"matchLabels": {"app": "agent"}},
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }});
    team.upper.create("daemonsets", &set).await;
    let name = text(&pod_of(&team.upper, "agent-").await["metadata"]["name"]).to_owned();
    team.upper.wait_event(&name, &["DaemonSet"]).await;
    // The policy is effective here.
    let web = json!({"metadata": {"name": "web"}, "spec": spec_for(&[&second.node], 1)});
    let web = team.upper.create("pods", &web).await;
    assert_eq!(gated(std::slice::from_ref(&web)), 1, "{web}");
    team.wait_running_on("web", &second).await;
    let pod = team.upper.get(&format!("pods/{name}")).await;
    assert_eq!(gated(std::slice::from_ref(&pod)), 0, "{pod}");
    assert_eq!(pod["spec"]["nodeSelector"]["kubernetes.io/os"], "linux", "{pod}");
    assert!(!pod["metadata"].to_string().contains("lower-nodes"), "{pod}");
    assert_eq!(pod["spec"]["nodeName"], json!(pair.node), "{pod}");
    assert!(team.lower.find(&format!("pods/{name}")).await.is_none(), "the lower cluster has its own");
}

/// A Job of one attempt whose pods run for a moment.
fn job(name: &str, labels: &Value, spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["restartPolicy"] = json!("Never");
    let annotations = json!({"mock.virtual-kubelet.io/run-for": "200ms"});
    let template = json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": spec});
    json!({"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": template}})
}

fn has_failed(job: &Value) -> bool {
    job["status"]["failed"].as_u64().unwrap_or_default() > 0 || condition(job, "Failed")["status"] == "True"
}

/// An eviction would count as a failure, and a Job with one attempt would be over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn jobs_whose_pods_have_to_wait_are_not_failed_behind_the_gate_and_not_descheduled() {
    let placement = by_estimate().await;
    let (pair, others) = placement.fragmented_node("jobs", 2, json!({})).await;
    let team = placement.team("jobs").await;
    let needed = USED_BY_OTHERS + 1;
    let opted_in = job("opted-in", &json!({"virtual-pod": "true"}), &spec_for(&[&pair.node], needed));
    team.upper.create("jobs", &opted_in).await;
    let waiting = pod_of(&team.upper, "opted-in-").await;
    team.wait_waiting(text(&waiting["metadata"]["name"]), "0 of 2 lower nodes (2 insufficient cpu)").await;

    let mut spec = spec_for(&[&pair.node, "vk-jobs-b"], needed);
    spec["tolerations"] = tolerations();
    team.upper.create("jobs", &job("without", &json!({"app": "without"}), &spec)).await;
    let stuck = pod_of(&team.upper, "without-").await;
    let name = text(&stuck["metadata"]["name"]).to_owned();
    team.wait_stuck(&name).await;
    // Now there is a better place for it.
    let _second = placement.node("jobs-b", 1, json!({})).await;
    team.upper.wait_event(&name, &["NotDescheduled", "its Job would count an eviction as a failure"]).await;

    // 8 CPUs are free then, for one after the other.
    others.delete("pods/other-0", None).await;
    for name in ["without", "opted-in"] {
        let done = |job: &Value| has_failed(job) || job["status"]["succeeded"] == 1;
        let job = team.upper.wait_for(&format!("jobs/{name}"), "is done", done).await;
        assert!(!has_failed(&job), "{:#?}", (&job["status"], team.upper.list("pods").await));
    }
    let pods = team.upper.list("pods").await;
    let mut uids: Vec<_> = pods.iter().map(|pod| &pod["metadata"]["uid"]).collect();
    uids.sort_by_key(ToString::to_string);
    let mut first = vec![&waiting["metadata"]["uid"], &stuck["metadata"]["uid"]];
    first.sort_by_key(ToString::to_string);
    assert_eq!(uids, first, "the first pods have succeeded");
}

/// The descheduler of tensile-kube creates evicted pods again itself, and so does their controller, under the same name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn tensile_kube_a_stateful_set_creates_its_descheduled_pod_again_under_the_same_name_and_it_runs_elsewhere()
 {
    let placement = by_estimate().await;
    let autoscales = json!({"autoscales": true});
    let ((first, _), second) = tokio::join!(
        placement.fragmented_node("races-a", 2, autoscales),
        placement.node("races-b", 1, json!({})),
    );
    let blocker = occupy(&second, 0..1, USED_BY_OTHERS).await;
    super::offers(placement.upper(), &second.node, &json!({"cpu": super::LEFT_FREE.to_string()})).await;
    let team = placement.team("races").await;
    let set = json!({"metadata": {"name": "web"}, "spec": {
        "replicas": 1, "serviceName": "web",
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web", "virtual-pod": "true"}},
            "spec": spec_for(&[&first.node, &second.node], USED_BY_OTHERS + 1),
        },
    }});
    team.upper.create("statefulsets", &set).await;
    // The first cluster says that it adds nodes, and does not.
    let stuck = team.wait_stuck("web-0").await;
    assert_eq!(stuck["spec"]["nodeName"], json!(first.node), "{stuck}");
    team.upper.wait_event("web-0", &["NotDescheduled", "no other node fits"]).await;
    blocker.delete("pods/other-0", None).await;
    let is_another = |pod: &Value| pod["metadata"]["uid"] != stuck["metadata"]["uid"];
    team.upper.wait_for("pods/web-0", "is another pod", is_another).await;
    let below = team.wait_running_on("web-0", &second).await;
    let upper = team.upper.get("pods/web-0").await;
    assert_eq!(below["metadata"]["labels"][ORIGIN_UID], upper["metadata"]["uid"]);
    assert_eq!(below["spec"]["nodeName"], json!(second.lower_node(0)));
    team.upper.wait_event("web-0", &["Descheduled", &second.node]).await;
    assert_eq!(team.upper.list("pods").await.len(), 1);
    assert_eq!(team.lower.list("pods").await.len(), 1);
}
