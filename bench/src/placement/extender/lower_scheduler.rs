//! Binds the pods of a lower cluster in turn to the nodes of their pool, and removes those that are deleted, as kube-scheduler and kubelets
//! would. The real ones, with thousands of nodes, would use most of the machine on which the upper scheduler is measured.

use std::collections::HashSet;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::DeleteParams, runtime::watcher};
use serde_json::json;
use tokio::{sync::mpsc, task::JoinHandle};

use crate::objects::CONCURRENCY;

/// The label of lower nodes that says to which virtual node they belong.
pub(super) const POOL: &str = "pool";

/// It ends when this is dropped.
pub(super) struct LowerScheduler([JoinHandle<()>; 2]);

/// What is to be done with a pod.
enum Step {
    Bind { name: String, node: String },
    Remove { name: String },
}

// === impl LowerScheduler ===

impl LowerScheduler {
    /// Schedules the pods of a namespace onto `nodes` nodes per pool, which [`node_name`] names.
    pub(super) fn start(client: &kube::Client, namespace: &str, nodes: usize) -> Self {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let (sender, steps) = mpsc::unbounded_channel();
        let watched = pods.clone();
        #[expect(clippy::disallowed_methods, reason = "ended by its owner")]
        let watching = tokio::spawn(async move {
            let (mut scheduled, mut sent) = (0, HashSet::new());
            let mut events = watcher(watched, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                let Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) = event else {
                    continue;
                };
                let Some(step) = step(&pod, scheduled % nodes.max(1)) else { continue };
                let is_bind = matches!(step, Step::Bind { .. });
                if !sent.insert((pod.metadata.uid, is_bind)) {
                    continue;
                }
                scheduled += usize::from(is_bind);
                if sender.send(step).is_err() {
                    return;
                }
            }
        });
        let (client, namespace) = (client.clone(), namespace.to_owned());
        #[expect(clippy::disallowed_methods, reason = "ended by its owner")]
        let writing = tokio::spawn(async move {
            let steps = futures::stream::unfold(steps, async |mut steps| Some((steps.recv().await?, steps)));
            steps
                .for_each_concurrent(CONCURRENCY, |step| {
                    let (client, pods, namespace) = (client.clone(), pods.clone(), namespace.clone());
                    async move {
                        // The pod may be gone. One that is not shows as an upper pod that stays.
                        drop(carry_out(step, &client, &pods, &namespace).await);
                    }
                })
                .await;
        });
        Self([watching, writing])
    }
}

impl Drop for LowerScheduler {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

pub(super) fn node_name(pool: &str, index: usize) -> String {
    format!("{pool}-node-{index}")
}

fn step(pod: &Pod, index: usize) -> Option<Step> {
    let name = pod.metadata.name.clone()?;
    if pod.metadata.deletion_timestamp.is_some() {
        return Some(Step::Remove { name });
    }
    let spec = pod.spec.as_ref()?;
    if spec.node_name.is_some() {
        return None;
    }
    let pool = spec.node_selector.as_ref()?.get(POOL)?;
    Some(Step::Bind { name, node: node_name(pool, index) })
}

async fn carry_out(
    step: Step,
    client: &kube::Client,
    pods: &Api<Pod>,
    namespace: &str,
) -> anyhow::Result<()> {
    match step {
        Step::Bind { name, node } => {
            let binding = json!({
                "apiVersion": "v1", "kind": "Binding",
                "metadata": {"name": name},
                "target": {"kind": "Node", "name": node},
            });
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
            let request = http::Request::post(path)
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(serde_json::to_vec(&binding)?)?;
            client.request_text(request).await?;
        }
        Step::Remove { name } => {
            pods.delete(&name, &DeleteParams::default().grace_period(0)).await?;
        }
    }
    Ok(())
}
