//! `virtual-kubelet placement explain`.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use clap::Args;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;
use vk_kube::{Client, Kind, Objects, Selector};
use vk_placement::{
    ask::{AskLimits, FitClient},
    explain::{Candidate, candidates, summary},
};
use vk_provider::requests::{ResourceList, requests};

use crate::{
    Registry,
    cli::{
        Failure, Flags,
        connection::{load_without_nodes, with_client},
        output::{print, table},
    },
    config::Layer,
};

/// Resources that are always shown, first.
const COMMON_RESOURCES: [&str; 3] = ["cpu", "memory", "pods"];

/// Asks every virtual node that can tell whether a pod fits, and shows what else keeps the pod from it.
///
/// Needs the permissions of deploy/placement/rbac-explain.yaml. The nodes are asked directly, at their addresses.
#[derive(Debug, Args)]
pub(super) struct Explain {
    /// Name of the pod
    #[arg(value_name = "POD")]
    pod: String,
    /// Namespace of the pod [default: the one of the kubeconfig's context]
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Kubeconfig of the cluster with the virtual nodes
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
}

// === impl Explain ===

impl Explain {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        let extra = self.kubeconfig.as_ref().map(|path| Layer::from_value(json!({ "kubeconfig": path })).0);
        let config = load_without_nodes(&before, extra, registry)?;
        let explained = with_client(&config, async |client| Ok(self.explain(client).await?)).await;
        print(&explained?)?;
        Ok(())
    }

    async fn explain(&self, client: &Client) -> anyhow::Result<String> {
        let default = || client.kube().default_namespace().to_owned();
        let namespace = self.namespace.clone().unwrap_or_else(default);
        let pods: Objects<Pod> = Objects::namespaced(client.clone(), &namespace);
        let pod = pods.get(&self.pod).await.map_err(|error| match error.kind {
            Kind::NotFound => {
                anyhow!("there is no pod {:?} in namespace {namespace:?}; choose another with -n", self.pod)
            }
            _ => anyhow::Error::new(error).context(format!("read pod {namespace}/{}", self.pod)),
        })?;
        let nodes = Objects::<Node>::all(client.clone()).list(&Selector::default()).await;
        let nodes = nodes.context("list nodes")?.objects;
        let asking = FitClient::new(client.clone(), AskLimits::default());
        let all = candidates(&asking, &nodes, &pod).await;
        Ok(report(&pod, &all))
    }
}

/// The whole answer: one line, the pod, and a table of the nodes and of their best lower nodes.
fn report(pod: &Pod, candidates: &[Candidate]) -> String {
    let requested = requests(pod);
    let mut text = format!("{}\n\n{}\n", summary(candidates), pod_line(pod, &requested));
    if candidates.is_empty() {
        return text;
    }
    let answer = |yes: bool| String::from(if yes { "yes" } else { "no" });
    let (mut nodes, mut lower_nodes) = (Vec::new(), Vec::new());
    for candidate in candidates {
        nodes.push([
            candidate.node.clone(),
            answer(candidate.is_ready),
            answer(candidate.is_cordoned),
            answer(candidate.is_selected),
            answer(candidate.untolerated.is_none()),
            candidate.verdict(),
        ]);
        for lower in candidate.answer.iter().flat_map(|answer| &answer.best_nodes) {
            lower_nodes.push([candidate.node.clone(), lower.name.clone(), amounts(&lower.free, &requested)]);
        }
    }
    text += "\n";
    text += &table(["NODE", "READY", "CORDONED", "SELECTED", "TOLERATED", "VERDICT"], &nodes);
    if !lower_nodes.is_empty() {
        text += "\n";
        text += &table(["NODE", "BEST LOWER NODES", "FREE"], &lower_nodes);
    }
    text
}

fn pod_line(pod: &Pod, requested: &ResourceList) -> String {
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    let (namespace, own) = (name(&pod.metadata.namespace), name(&pod.metadata.name));
    let amounts =
        if requested.is_empty() { "no resources".to_owned() } else { amounts(requested, requested) };
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let bound = node.map(|node| format!(" and is bound to {node}")).unwrap_or_default();
    format!("Pod {namespace}/{own} requests {amounts}{bound}.")
}

/// The common resources, then the others that the pod requests.
fn amounts(list: &ResourceList, requested: &ResourceList) -> String {
    let others = requested.keys().map(String::as_str).filter(|name| !COMMON_RESOURCES.contains(name));
    let shown = COMMON_RESOURCES.into_iter().chain(others);
    let texts: Vec<String> = shown.filter_map(|name| Some(format!("{name} {}", list.get(name)?))).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use vk_placement::{ask::AskError, explain::NodeAnswer};
    use vk_provider::ability::{Cause, LowerNode, Verdict};

    use super::*;

    fn free(amounts: &[(&str, &str)]) -> ResourceList {
        amounts.iter().map(|(name, amount)| ((*name).to_owned(), amount.parse().unwrap())).collect()
    }

    #[test]
    fn the_report_shows_the_reasons_and_the_best_lower_nodes() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "team", "name": "train-2"},
            "spec": {"containers": [{"name": "main", "resources": {"requests": {"gpu": "1", "memory": "4Gi", "cpu": "20"}}}]},
        }))
        .unwrap();
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "vk-a"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap();
        let why = vec![Cause { text: "insufficient cpu".to_owned(), nodes: 2 }];
        let lower = |name: &str, cpu: &str| LowerNode {
            name: name.to_owned(),
            free: free(&[
                ("cpu", cpu),
                ("ephemeral-storage", "1Gi"),
                ("gpu", "0"),
                ("memory", "8Gi"),
                ("pods", "9"),
            ]),
        };
        let answer = NodeAnswer {
            verdict: Verdict::Refused { why, lasting: false },
            best_nodes: vec![lower("m-7", "12"), lower("m-1", "500m")],
        };
        let silent = Candidate::new(&node, &pod, Err(AskError::NotOffered));
        let full = Candidate { answer: Ok(answer), ..silent.clone() };
        let silent = Candidate { node: "vk-b".to_owned(), is_cordoned: true, ..silent };
        assert_eq!(
            report(&pod, &[full, silent]),
            "0 of 2 nodes: vk-a: 0 of 2 lower nodes (2 insufficient cpu); vk-b: cordoned\n\
             \n\
             Pod team/train-2 requests cpu 20, memory 4Gi, gpu 1.\n\
             \n\
             NODE  READY  CORDONED  SELECTED  TOLERATED  VERDICT\n\
             vk-a  yes    no        yes       yes        0 of 2 lower nodes (2 insufficient cpu)\n\
             vk-b  yes    yes       yes       yes        not asked: the provider of the node does not tell whether pods fit\n\
             \n\
             NODE  BEST LOWER NODES  FREE\n\
             vk-a  m-7               cpu 12, memory 8Gi, pods 9, gpu 0\n\
             vk-a  m-1               cpu 500m, memory 8Gi, pods 9, gpu 0\n"
        );
    }

    #[test]
    fn without_nodes_that_can_be_asked_the_report_says_so() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "team", "name": "a"}, "spec": {"nodeName": "vk", "containers": []},
        }))
        .unwrap();
        let text = report(&pod, &[]);
        assert!(text.starts_with("0 of 0 nodes: no node has the annotation"), "{text}");
        assert!(text.ends_with("Pod team/a requests no resources and is bound to vk.\n"), "{text}");
    }
}
