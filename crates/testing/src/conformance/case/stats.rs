//! Usage figures.

use crate::conformance::{
    context::{CaseContext, NODE},
    pod_builder::APP,
    result::{Outcome, ensure},
};

/// The figures belong to this node and its pods.
pub(crate) async fn figures_name_their_pods(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let stats = caller.stats()?;
    let (made, _) = caller.start(&context.pod().build()).await?;
    let advice = "report every pod that runs, with namespace, name and UID, and its containers by name";
    let figures = || async {
        let answer = caller.call("stats.summary", stats.summary()).await;
        let answer = answer.map_err(|_| "stats.summary did not return".to_owned())?;
        let summary = answer.map_err(|error| error.report())?;
        let pods = summary.pods.iter().map(|pod| &pod.pod_ref);
        let seen: Vec<String> =
            pods.map(|pod| format!("{}/{} ({})", pod.namespace, pod.name, pod.uid)).collect();
        let own = summary.pods.iter().find(|pod| {
            let named = &pod.pod_ref;
            named.uid == *made.uid && named.name == *made.name && named.namespace == *made.namespace
        });
        match own {
            None => Err(format!("figures of {seen:?}")),
            Some(pod) if pod.containers.iter().all(|container| container.name != APP) => {
                Err("figures of the pod without its container".to_owned())
            }
            Some(_) => Ok(summary.node.node_name),
        }
    };
    let node = caller.until("there are figures of a pod that runs", advice, figures).await?;
    ensure(
        node == NODE,
        || format!("the figures of node {NODE:?} are called those of {node:?}"),
        "put the node's name (Context::node_name) into the summary",
    )
}
