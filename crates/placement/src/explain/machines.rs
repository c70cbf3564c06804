//! The cluster's own machines, which are one candidate together.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use vk_kube::{Client, Error, Objects, Partial, Selector};
use vk_provider::{ability::Verdict, placement::declares_fit};

use super::{Candidate, NodeAnswer};
use crate::{
    ask::AskError,
    choose::LOCAL,
    cluster_state::{ClusterState, may_be_local, trim_node},
    controller::ACTIVE_PODS,
    watched_pod::WatchedPod,
};

/// Machines that are shown with what is free on them.
const BEST: usize = 3;
/// Why a pod goes to no machine.
pub(crate) const CONVERTED: &str = "the pod was converted for virtual nodes";

/// What the nodes that cannot be asked have left for a pod; `None` if there are none.
pub(super) async fn candidate(client: &Client, nodes: &[Node], pod: &Pod) -> Option<Candidate> {
    let machines: Vec<&Node> = nodes.iter().filter(|node| !declares_fit(node)).collect();
    if machines.is_empty() {
        return None;
    }
    if !may_be_local(pod) {
        let verdict = Verdict::refused(CONVERTED, true);
        return Some(of_machines(Ok(NodeAnswer { verdict, best_nodes: Vec::new() })));
    }
    let answer = match active_pods(client).await {
        Ok(pods) => answer(&machines, pods, pod),
        Err(error) => Err(AskError::UnknownUsage(error)),
    };
    Some(of_machines(answer))
}

/// The verdict of machines on one line: they are no lower nodes.
pub(crate) fn machines_verdict(verdict: &Verdict) -> String {
    verdict.to_string().replace(" lower nodes ", " nodes ")
}

/// What keeps a pod off single machines is in the verdict.
fn of_machines(answer: Result<NodeAnswer, AskError>) -> Candidate {
    Candidate {
        node: LOCAL.to_owned(),
        is_ready: true,
        is_cordoned: false,
        is_selected: true,
        untolerated: None,
        answer,
    }
}

/// The pods that use nodes, or are nominated for one.
async fn active_pods(client: &Client) -> Result<Vec<Pod>, Error> {
    let active = Selector { fields: Some(ACTIVE_PODS.to_owned()), ..Selector::default() };
    let pods = Objects::<WatchedPod>::all(client.clone()).list(&active).await?.objects;
    Ok(pods.into_iter().map(|Partial(pod)| pod).collect())
}

/// The same evaluation as that of pods that wait.
fn answer(machines: &[&Node], pods: Vec<Pod>, pod: &Pod) -> Result<NodeAnswer, AskError> {
    let mut cluster = ClusterState::default();
    for machine in machines {
        let mut machine = Node::clone(machine);
        trim_node(&mut machine);
        cluster.apply_node(machine);
    }
    // The pod in question is evaluated in its own place.
    for other in pods.into_iter().filter(|other| other.metadata.uid != pod.metadata.uid) {
        cluster.apply_pod(Duration::ZERO, &Arc::new(other));
    }
    let pod = Arc::new(pod.clone());
    let local = cluster.local_verdict(&pod).ok_or_else(|| AskError::Invalid("no verdict".to_owned()))?;
    Ok(NodeAnswer { verdict: local.verdict, best_nodes: cluster.best_local_nodes(&pod, BEST) })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{explain::summary, names};

    fn machine(name: &str, change: &Value) -> Node {
        let mut node = json!({
            "metadata": {"name": name},
            "status": {
                "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        json_patch::merge(&mut node, change);
        serde_json::from_value(node).unwrap()
    }

    fn pod(name: &str, cpu: &str, change: &Value) -> Pod {
        let mut pod = json!({
            "metadata": {"namespace": "team", "name": name, "uid": name},
            "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]},
        });
        json_patch::merge(&mut pod, change);
        serde_json::from_value(pod).unwrap()
    }

    fn on(node: &str) -> Value {
        json!({"spec": {"nodeName": node}})
    }

    fn explained(pods: Vec<Pod>, pod: &Pod) -> Candidate {
        let machines: Vec<Node> = (0..5).map(|index| machine(&format!("m-{index}"), &json!({}))).collect();
        of_machines(answer(&machines.iter().collect::<Vec<_>>(), pods, pod))
    }

    #[test]
    fn machines_are_one_candidate_with_what_other_pods_leave_free() {
        let others = |cpu: &str| -> Vec<Pod> {
            (0..5).map(|index| pod(&format!("other-{index}"), cpu, &on(&format!("m-{index}")))).collect()
        };
        let full = explained(others("3"), &pod("web", "2", &json!({})));
        assert_eq!(summary(&[full]), "0 of 1 nodes: local: 0 of 5 nodes (5 insufficient cpu)");
        let mut some = others("3");
        some[1] = pod("small", "1", &on("m-1"));
        let fits = explained(some, &pod("web", "2", &json!({})));
        assert_eq!(fits.reason(), "fits (room for 1, 75% full)");
        let best = fits.answer.unwrap().best_nodes;
        assert_eq!((best.len(), &*best[0].name, best[0].free["cpu"].to_string()), (3, "m-1", "3".to_owned()));
    }

    #[test]
    fn the_pod_in_question_does_not_count_and_a_nominated_one_does() {
        let own = pod("web", "4", &on("m-0"));
        let others: Vec<Pod> =
            (1..5).map(|index| pod(&format!("other-{index}"), "4", &on(&format!("m-{index}")))).collect();
        let mut all = others.clone();
        all.push(own.clone());
        assert_eq!(explained(all, &own).reason(), "fits (room for 1, 100% full)");
        let mut all = others;
        all.push(pod("soon", "1", &json!({"status": {"nominatedNodeName": "m-0"}})));
        assert_eq!(explained(all, &own).reason(), "0 of 5 nodes (5 insufficient cpu)");
    }

    #[tokio::test]
    async fn a_pod_that_was_converted_goes_to_no_machine_and_without_machines_there_is_no_candidate() {
        let client = vk_kube::Client::fixed(unreachable(), vk_kube::Metrics::default());
        let converted =
            pod("web", "1", &json!({"metadata": {"annotations": {names::LOWER_NODES: "disk=ssd"}}}));
        let nodes = [machine("m-0", &json!({}))];
        let found = candidate(&client, &nodes, &converted).await.unwrap();
        assert_eq!(summary(&[found]), "0 of 1 nodes: local: the pod was converted for virtual nodes");
        let virtual_node =
            machine("vk-a", &json!({"metadata": {"annotations": {"virtual-kubelet.io/placement": "fit"}}}));
        assert_eq!(candidate(&client, &[virtual_node], &pod("web", "1", &json!({}))).await, None);
        // What their pods use is not known.
        let found = candidate(&client, &nodes, &pod("web", "1", &json!({}))).await.unwrap();
        assert!(
            found.reason().starts_with("not asked: what pods use of them is not known: "),
            "{}",
            found.reason()
        );
        assert!(!found.fits());
    }

    /// A client whose server does not answer.
    fn unreachable() -> kube::Client {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        kube::Client::try_from(config).unwrap()
    }
}
