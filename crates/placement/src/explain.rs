//! Explains where a pod could go: what keeps it from each node, and what the node itself says.

mod candidate;
mod machines;

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use vk_provider::placement::{FitQuery, PLACEMENT_ANNOTATION, declares_fit};

use crate::ask::FitClient;

pub use self::candidate::{Candidate, NodeAnswer};
pub(crate) use self::{
    candidate::{NOT_SELECTED, is_ready},
    machines::{CONVERTED, machines_verdict},
};

/// Nodes that are asked at the same time.
const CONCURRENT_QUESTIONS: usize = 32;

/// Asks all nodes that can be asked about a pod, also those that it could not be bound to. The result is sorted by name. The last one is
/// `local`, the cluster's own machines together, if there are any: they are evaluated here.
pub async fn candidates(client: &FitClient, nodes: &[Node], pod: &Pod) -> Vec<Candidate> {
    // The node that has it already evaluates it in its own place.
    let without = pod.metadata.uid.as_deref().map(Arc::from).into_iter().collect();
    let query = FitQuery { pods: vec![Arc::new(pod.clone())], without, explain: true, ..FitQuery::default() };
    let questions = nodes.iter().filter(|node| declares_fit(node)).map(|node| {
        let query = &query;
        async move {
            let answer = client.ask(node, query).await;
            Candidate::new(node, pod, answer)
        }
    });
    let mut all: Vec<Candidate> =
        stream::iter(questions).buffer_unordered(CONCURRENT_QUESTIONS).collect().await;
    all.sort_by(|one, other| one.node.cmp(&other.node));
    all.extend(machines::candidate(client.api_client(), nodes, pod).await);
    all
}

/// One line about all nodes, such as `0 of 2 nodes: vk-a: 0 of 100 lower nodes (60 insufficient cpu, 40 taint gpu); vk-b: cordoned`.
pub fn summary(candidates: &[Candidate]) -> String {
    if candidates.is_empty() {
        return format!("0 of 0 nodes: no node has the annotation {PLACEMENT_ANNOTATION}: fit");
    }
    let fitting = candidates.iter().filter(|candidate| candidate.fits()).count();
    let reasons = candidates.iter().map(|candidate| format!("{}: {}", candidate.node, candidate.reason()));
    summary_of(fitting, candidates.len(), reasons)
}

/// The same of reasons that name their nodes.
pub(crate) fn summary_of(fitting: usize, nodes: usize, reasons: impl IntoIterator<Item = String>) -> String {
    let reasons: Vec<String> = reasons.into_iter().collect();
    format!("{fitting} of {nodes} nodes: {}", reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vk_provider::ability::{Cause, Verdict};

    use super::*;
    use crate::ask::AskError;

    fn candidate(name: &str, verdict: Verdict) -> Candidate {
        let node = json!({
            "metadata": {"name": name},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        let answer = NodeAnswer { verdict, best_nodes: Vec::new() };
        Candidate {
            answer: Ok(answer),
            ..Candidate::new(
                &serde_json::from_value(node).unwrap(),
                &Pod::default(),
                Err(AskError::NotOffered),
            )
        }
    }

    #[test]
    fn the_summary_counts_the_nodes_that_fit_and_gives_a_reason_for_each() {
        let cause = |text: &str, nodes| Cause { text: text.to_owned(), nodes };
        let why = vec![cause("insufficient cpu", 60), cause("taint gpu", 40)];
        let full = candidate("vk-a", Verdict::Refused { why, lasting: false });
        let quota = candidate("vk-b", Verdict::refused("quota \"team\" has 2 of 8 cpu left", false));
        assert_eq!(
            summary(&[full.clone(), quota]),
            "0 of 2 nodes: vk-a: 0 of 100 lower nodes (60 insufficient cpu, 40 taint gpu); \
             vk-b: quota \"team\" has 2 of 8 cpu left"
        );
        let fits = candidate("vk-c", Verdict::Fits { room: 3, fullness: 50 });
        let cordoned =
            Candidate { is_cordoned: true, ..candidate("vk-d", Verdict::Fits { room: 1, fullness: 1 }) };
        let silent =
            Candidate { answer: Err(AskError::NotOffered), ..candidate("vk-e", Verdict::unknown("x")) };
        assert_eq!(
            summary(&[fits, cordoned, silent]),
            "1 of 3 nodes: vk-c: fits (room for 3, 50% full); vk-d: cordoned; \
             vk-e: not asked: the provider of the node does not tell whether pods fit"
        );
        assert!(summary(&[]).contains("virtual-kubelet.io/placement"));
    }
}
